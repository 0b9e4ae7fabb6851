//! Connections to the leaders: one channel per address, made on first use, kept while its group is registered.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hawser_common::ErrorCode;
use hawser_common::group::GroupRecord;
use hawser_proto::MAX_MESSAGE_BYTES;
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::worker_client::WorkerClient;
use tonic::transport::{Channel, Endpoint};

/// Unread frames that one stream may hold before its worker has to wait. Small, so that a slow reader pauses itself
/// long before it fills the connection that all streams share.
const STREAM_WINDOW: u32 = 64 << 10;
/// Unread frames that all streams of one connection may hold: a thousand slow readers.
const CONNECTION_WINDOW: u32 = 64 << 20;
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a channel to an endpoint, which connects with its first call. A test may put a network of its own here.
#[derive(Clone)]
pub struct Dial(Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>);

impl Dial {
    /// Over TCP.
    #[must_use]
    pub fn tcp() -> Self {
        Self::new(Endpoint::connect_lazy)
    }

    #[must_use]
    pub fn new(dial: impl Fn(&Endpoint) -> Channel + Send + Sync + 'static) -> Self {
        Self(Arc::new(dial))
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dial").finish()
    }
}

#[derive(Debug)]
pub(crate) struct Upstream {
    channels: Mutex<HashMap<String, Channel>>,
    connect_timeout: Duration,
    dial: Dial,
}

impl Upstream {
    pub(crate) fn new(connect_timeout: Duration, dial: Dial) -> Self {
        Self { channels: Mutex::default(), connect_timeout, dial }
    }

    /// A client of the leader at `address`. Connecting happens with the first call.
    pub(crate) fn client(&self, address: &str) -> Result<WorkerClient<Channel>, Fault> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let channel = self.connect(address)?;
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        let client = WorkerClient::new(channel);
        Ok(client.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Drops channels to groups that are not registered any more. Streams that run on them go on.
    pub(crate) fn keep(&self, groups: &[GroupRecord]) {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if channels.is_empty() {
            return;
        }
        let known: HashSet<_> = groups.iter().map(|group| group.address.as_str()).collect();
        channels.retain(|address, _| known.contains(address.as_str()));
    }

    fn connect(&self, address: &str) -> Result<Channel, Fault> {
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| Fault {
            code: ErrorCode::Unavailable,
            message: format!("the group registered the address {address:?}, which is no URI: {error}"),
            owner: None,
            retry_after: None,
            origin: Origin::Connect,
        })?;
        let endpoint = endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok((self.dial.0)(&endpoint))
    }
}
