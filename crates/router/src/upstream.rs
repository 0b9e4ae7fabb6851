//! Connections to the leaders: one link per address, made on first use, kept while its group is registered.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hawser_common::ErrorCode;
use hawser_common::group::GroupRecord;
use hawser_common::keepalive::Keepalive;
use hawser_common::tasks::Tasks;
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::link::Limits;
use hawser_proto::v1::worker_client::WorkerClient;
use hawser_proto::{Dial, Link, MAX_MESSAGE_BYTES, Reach};

/// Unread frames that one stream may hold before its worker has to wait. Small, so that a slow reader pauses itself
/// long before it fills the connection that all streams share.
const STREAM_WINDOW: u32 = 64 << 10;
/// Unread frames that all streams of one connection may hold: a thousand slow readers.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// A leader that is there and does nothing, such as one on a machine that hangs, is found in the sum of both: its clients
/// must not wait longer than for one that died.
pub(crate) const KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_millis(500), timeout: Duration::from_secs(2) };

/// Bounds of a router's connection to a leader, which is made within `connect`.
#[must_use]
pub const fn link_limits(connect: Duration) -> Limits {
    Limits { connect, stream_window: STREAM_WINDOW, connection_window: CONNECTION_WINDOW }
}

#[derive(Debug)]
pub(crate) struct Upstream {
    links: Mutex<HashMap<String, Link>>,
    dial: Dial,
    reach: Reach,
    connect_timeout: Duration,
    /// What the connections run in.
    tasks: Tasks,
}

impl Upstream {
    pub(crate) fn new(dial: Dial, reach: Reach, connect_timeout: Duration, tasks: Tasks) -> Self {
        Self { links: Mutex::default(), dial, reach, connect_timeout, tasks }
    }

    /// A client of the leader at `address`. Connecting happens with the first call.
    pub(crate) fn client(&self, address: &str) -> Result<WorkerClient<Link>, Fault> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = match links.get(address) {
            Some(link) => link.clone(),
            None => {
                let link = self.link(address)?;
                links.insert(address.to_owned(), link.clone());
                link
            }
        };
        let client = WorkerClient::new(link);
        Ok(client.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Drops links to groups that are not registered any more. Streams that run on them go on.
    pub(crate) fn keep(&self, groups: &[GroupRecord]) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if links.is_empty() {
            return;
        }
        let known: HashSet<_> = groups.iter().map(|group| group.address.as_str()).collect();
        links.retain(|address, _| known.contains(address.as_str()));
    }

    fn link(&self, address: &str) -> Result<Link, Fault> {
        let limits = link_limits(self.connect_timeout);
        let peer = self.dial.peer(address, limits, self.reach.clone()).map_err(|error| Fault {
            code: ErrorCode::Unavailable,
            message: format!("the group registered an address that cannot be used: {error}"),
            owner: None,
            retry_after: None,
            origin: Origin::Connect,
        })?;
        Ok(Link::new(peer, self.tasks.clone()))
    }
}
