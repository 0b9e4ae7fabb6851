//! Connections to the leaders: one channel per address, made on first use, kept while its group is registered.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hawser_common::ErrorCode;
use hawser_common::group::GroupRecord;
use hawser_common::keepalive::Keepalive;
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::worker_client::WorkerClient;
use hawser_proto::{Dial, MAX_MESSAGE_BYTES};
use tonic::transport::{Channel, Endpoint};

/// Unread frames that one stream may hold before its worker has to wait. Small, so that a slow reader pauses itself
/// long before it fills the connection that all streams share.
const STREAM_WINDOW: u32 = 64 << 10;
/// Unread frames that all streams of one connection may hold: a thousand slow readers.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// A leader that is there and does nothing, such as one on a machine that hangs, is found in the sum of both: its clients
/// must not wait longer than for one that died.
pub(crate) const KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_millis(500), timeout: Duration::from_secs(2) };

/// Makes a channel to an endpoint, which connects with its first call. A test may put a network of its own here.
#[derive(Clone)]
pub struct Reach(Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>);

impl Reach {
    /// Over TCP.
    #[must_use]
    pub fn tcp() -> Self {
        Self::new(hawser_proto::connect_lazy)
    }

    #[must_use]
    pub fn new(reach: impl Fn(&Endpoint) -> Channel + Send + Sync + 'static) -> Self {
        Self(Arc::new(reach))
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reach").finish()
    }
}

#[derive(Debug)]
pub(crate) struct Upstream {
    channels: Mutex<HashMap<String, Channel>>,
    dial: Dial,
    reach: Reach,
    connect_timeout: Duration,
}

impl Upstream {
    pub(crate) fn new(dial: Dial, reach: Reach, connect_timeout: Duration) -> Self {
        Self { channels: Mutex::default(), dial, reach, connect_timeout }
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
        let endpoint = self.dial.endpoint(address).map_err(|error| Fault {
            code: ErrorCode::Unavailable,
            message: format!("the group registered an address that cannot be used: {error}"),
            owner: None,
            retry_after: None,
            origin: Origin::Connect,
        })?;
        let endpoint = endpoint
            .connect_timeout(self.connect_timeout)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Ok((self.reach.0)(&endpoint))
    }
}
