//! Who owns what: registration, capacity, claims and watch, over an authoritative store.
//!
//! Owns the [`Store`] trait and its semantics, the [`EmbeddedStore`] that keeps them in memory, the [`EtcdStore`] that
//! keeps them in etcd, and [`Registration`], which keeps a worker group registered. A session has at most one owner at
//! a time, because a claim is create-if-absent under the owner's lease and dies with that lease. Never on the path of
//! a warm turn.

mod backoff;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
pub mod etcd;
mod metrics;
pub mod registration;
pub mod store;

pub use embedded::{EmbeddedOptions, EmbeddedStore};
pub use etcd::{EtcdOptions, EtcdStore, InvalidEtcdOptions};
pub use metrics::{METRICS, PlacementMetrics};
pub use registration::{ClaimError, Registration, RegistrationHandle, Standing, Terms};
pub use store::{
    Change, ClaimOutcome, Event, Lease, LeaseId, MAX_BATCH, Snapshot, Store, StoreError, StoreFuture, Update,
    Watch,
};
