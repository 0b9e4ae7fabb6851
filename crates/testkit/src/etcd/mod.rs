//! A fake etcd: the part of its API that the store uses, with the real behaviours, over any network and clock.
//!
//! Owns one etcd's state, which outlives the servers that serve it, so that a server can crash and come back with it or
//! without it. Promises what a single member promises: transactions within transactions, leases that take their keys
//! with them, watches that replay history, compaction. It passes the suite that the real one passes. What it adds for
//! tests: a trail of every write, and faults.

mod mvcc;
mod services;
mod state;
mod txn;
mod watches;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::proto::{PbKvServer, PbLeaseServer, PbWatchServer};
use hawser_common::clock::Tick;
use hawser_common::tasks::Tasks;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use services::Service;
use state::State;
pub use state::Write;

/// Time as the etcd sees it.
type Now = Arc<dyn Fn() -> Tick + Send + Sync>;

/// A fake etcd. Clones are the same one.
#[derive(Clone)]
pub struct FakeEtcd {
    inner: Arc<Mutex<Inner>>,
    now: Now,
    /// Counts changes, for watches.
    changes: Arc<watch::Sender<u64>>,
}

struct Inner {
    state: State,
    incarnation: u32,
    faults: Faults,
    /// Of incarnations that are gone.
    trail: Vec<Write>,
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// The process stands still: no lease ends meanwhile.
    paused: bool,
    /// Watches say nothing for now.
    watches_held: bool,
    /// Watches pass deletions over, for good.
    deletions_lost: bool,
}

impl fmt::Debug for FakeEtcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeEtcd").finish_non_exhaustive()
    }
}

impl FakeEtcd {
    /// An empty etcd whose leases end by the time that `now` tells.
    #[must_use]
    pub fn new(now: impl Fn() -> Tick + Send + Sync + 'static) -> Self {
        let inner =
            Inner { state: State::new(0), incarnation: 0, faults: Faults::default(), trail: Vec::new() };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            now: Arc::new(now),
            changes: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Serves until the future is dropped or `incoming` ends.
    ///
    /// # Errors
    /// What the server says.
    pub async fn serve<I, IO>(&self, incoming: I) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = std::io::Result<IO>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let tasks = Tasks::new();
        let service = Service::new(self.clone(), tasks.clone());
        tasks.spawn(self.clone().expire_leases());
        let _stopped = tasks.stopping().drop_guard();
        Server::builder()
            .add_service(PbKvServer::new(service.clone()))
            .add_service(PbLeaseServer::new(service.clone()))
            .add_service(PbWatchServer::new(service))
            .serve_with_incoming(incoming)
            .await
    }

    /// Ends leases as their time comes. Ends with the runtime it was spawned on.
    async fn expire_leases(self) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let next = self.with(|_, _| ()).next_end;
            let wait = next.map(|end| end.since((self.now)()).max(std::time::Duration::from_millis(1)));
            let waited = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel-safe: both branches only wait.
            tokio::select! {
                biased;
                () = waited => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Ends what has ended, and tells watches. For clocks that are moved by hand.
    pub fn sweep(&self) {
        self.with(|_, _| ());
    }

    /// Runs `act` on the state as it is now.
    fn with<T>(&self, act: impl FnOnce(&mut State, Tick) -> T) -> Acted<T> {
        let now = (self.now)();
        let mut inner = self.lock();
        let before = inner.state.mvcc.revision();
        let ended = !inner.faults.paused && inner.state.expire(now);
        let result = act(&mut inner.state, now);
        let next_end = inner.state.next_end().filter(|_| !inner.faults.paused);
        let changed = ended || inner.state.mvcc.revision() != before;
        drop(inner);
        if changed {
            self.tell();
        }
        Acted { result, next_end }
    }

    fn tell(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> Faults {
        self.lock().faults
    }

    /// Everything that was ever written, the incarnations before this one included.
    #[must_use]
    pub fn trail(&self) -> Vec<Write> {
        let mut inner = self.lock();
        let mut new = inner.state.take_trail();
        inner.trail.append(&mut new);
        inner.trail.clone()
    }

    /// Revision as of now.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.with(|state, _| state.mvcc.revision()).result
    }

    /// Forgets all history.
    pub fn compact(&self) {
        // Compacting twice at one revision is refused, and changes nothing.
        let _done = self.with(|state, _| state.mvcc.compact(state.mvcc.revision()));
    }

    /// A member that starts again with its data: every lease gets its whole time again.
    pub fn restarted(&self) {
        let now = (self.now)();
        // Before anything looks at the leases, which would end those whose time passed while it was down.
        self.lock().state.promote(now);
        self.tell();
    }

    /// A member that starts again without its data.
    pub fn lost(&self) {
        let mut inner = self.lock();
        let mut gone = inner.state.take_trail();
        inner.trail.append(&mut gone);
        inner.incarnation += 1;
        inner.state = State::new(inner.incarnation);
        drop(inner);
        self.tell();
    }

    /// Whether the process stands still. What would have ended meanwhile ends when it goes on. Calls that arrive are
    /// the network's to hold back.
    pub fn pause(&self, paused: bool) {
        self.lock().faults.paused = paused;
        self.tell();
    }

    /// Whether watches say nothing. What they missed follows, unless it is compacted by then.
    pub fn hold_watches(&self, held: bool) {
        self.lock().faults.watches_held = held;
        self.tell();
    }

    /// Whether watches pass over deletions, and never tell them.
    pub fn lose_deletions(&self, lost: bool) {
        self.lock().faults.deletions_lost = lost;
    }
}

/// What was done, and when there is something to do next.
struct Acted<T> {
    result: T,
    next_end: Option<Tick>,
}
