//! The contract of a placement store.
//!
//! Every registration, capacity and claim belongs to a lease and dies with it. Implementations promise:
//! - a lease that has expired or was revoked can do nothing, and nothing made under it is left;
//! - a session has at most one owner at any time;
//! - epochs grow with every registration of any group;
//! - a watcher sees a snapshot, then every change after it in order. One that lags behind what the store remembers
//!   gets a fresh snapshot, never a gap.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::BoxStream;
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::{Coded, Epoch, ErrorCode, GroupId, SessionKey};
use thiserror::Error;

/// Most sessions of one `claim` or `release`.
pub const MAX_BATCH: usize = 4096;

/// A lease by number. Whoever knows it can act under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A lease as granted: it ends `ttl` after it was granted or last renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// What the store gave, which may differ from what was asked for.
    pub ttl: Duration,
}

/// What became of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The session had no owner, or the lease held it already.
    Won,
    /// Another lease holds it.
    Owned(Owner),
}

/// Everything there is at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub groups: Vec<GroupRecord>,
    pub claims: Vec<(SessionKey, Owner)>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A group was registered, or published its capacity.
    GroupChanged(GroupRecord),
    /// A registration ended, and with it every claim of the group: those are not reported one by one.
    GroupGone(GroupId),
    Claimed(SessionKey, Owner),
    Released(SessionKey),
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Revision of the store after this update. Grows with every change.
    pub revision: u64,
    pub change: Change,
}

/// The content of an [`Update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state itself: forget everything older.
    Snapshot(Snapshot),
    /// Changes since the update before, in order.
    Events(Vec<Event>),
}

/// Updates without end; an error, or the end, means that the store must be watched anew.
pub type Watch = BoxStream<'static, Result<Update, StoreError>>;

/// Why a store refused, or could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    #[error("lease {lease} is not held: it expired or was revoked; register again")]
    LeaseGone { lease: LeaseId },
    /// [`StoreError::taken`] makes one.
    #[error("{reason}")]
    GroupTaken { holder: Owner, reason: String },
    #[error("{reason}")]
    Invalid { reason: String },
    /// The store does not let this process in, whatever it asks.
    #[error("the placement store does not let this process in: {reason}")]
    Denied { reason: String },
    #[error("the placement store is full: {reason}")]
    Full { reason: String },
    #[error("the placement store does not answer: {reason}")]
    Unreachable { reason: String },
}

impl StoreError {
    /// The group's name is `holder`'s, which is registered with this address. The text goes over the wire as it is.
    #[must_use]
    pub fn taken(holder: Owner, address: &str) -> Self {
        let Owner { group, epoch } = &holder;
        let reason = format!(
            "the name {group} is taken: the worker at {address} is registered with it (epoch {epoch}); wait until that \
             one has left, or give this one another name (--group, worker.group)"
        );
        Self::GroupTaken { holder, reason }
    }
}

impl Coded for StoreError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::LeaseGone { .. } => ErrorCode::NotFound,
            Self::GroupTaken { .. } => ErrorCode::StaleOwner,
            Self::Invalid { .. } => ErrorCode::Invalid,
            Self::Denied { .. } => ErrorCode::Forbidden,
            Self::Full { .. } => ErrorCode::Exhausted,
            Self::Unreachable { .. } => ErrorCode::Unavailable,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::GroupTaken { holder, .. } => Some(holder),
            Self::LeaseGone { .. }
            | Self::Invalid { .. }
            | Self::Denied { .. }
            | Self::Full { .. }
            | Self::Unreachable { .. } => None,
        }
    }
}

/// What a store's operation returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// An authoritative placement store. Every operation may fail with [`StoreError::Unreachable`], after which whether
/// it happened is not known: all of them can be repeated.
pub trait Store: fmt::Debug + Send + Sync {
    /// A new lease.
    fn grant(&self, ttl: Duration) -> StoreFuture<'_, Lease>;

    /// Starts the lease's time again and gives it. [`StoreError::LeaseGone`] once it has ended: it never comes back.
    fn renew(&self, lease: LeaseId) -> StoreFuture<'_, Duration>;

    /// Ends a lease and everything under it. Ending one that has ended is not an error.
    fn revoke(&self, lease: LeaseId) -> StoreFuture<'_, ()>;

    /// Registers `group` under a lease and gives its epoch; the record's own epoch is ignored. A lease holds one
    /// group: registering it again ends the earlier registration and its claims.
    /// [`StoreError::GroupTaken`] while another live lease holds the id.
    fn register(&self, lease: LeaseId, group: GroupRecord) -> StoreFuture<'_, Epoch>;

    /// What the group has left, and whether it takes new sessions. Watchers see it even where nothing changed.
    fn publish<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        capacity: Capacity,
        draining: bool,
    ) -> StoreFuture<'a, ()>;

    /// Create-if-absent of each session for the group; one outcome per session, in order. Claiming what the lease
    /// holds already is won again. At most [`MAX_BATCH`] sessions.
    fn claim<'a>(
        &'a self,
        lease: LeaseId,
        group: &'a GroupId,
        sessions: Vec<SessionKey>,
    ) -> StoreFuture<'a, Vec<ClaimOutcome>>;

    /// Ends claims that the lease holds and leaves others alone. At most [`MAX_BATCH`] sessions.
    fn release(&self, lease: LeaseId, sessions: Vec<SessionKey>) -> StoreFuture<'_, ()>;

    /// Everything there is, then every change.
    fn watch(&self) -> StoreFuture<'_, Watch>;
}
