//! What every placement store must do, as a suite over the [`Store`] trait: the embedded store, the store over the
//! wire and etcd pass the same cases. And a real etcd for tests, which ends with the test that started it.

mod cases;
mod mirror;
mod proxy;
mod server;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture, join_all};
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, GroupId, SessionId, SessionKey, TenantId};

use crate::store::Store;
pub use mirror::Mirror;
pub use proxy::Proxy;
pub use server::{EtcdServer, TlsFiles, etcd_program};

/// A fresh store, and a way to let time pass for it.
pub struct Harness {
    pub store: Arc<dyn Store>,
    pub advance: Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>,
}

/// Runs every case, each on a harness of its own and all at once: over a store whose leases end in real time they
/// wait together.
///
/// # Panics
/// Where the store breaks its contract.
pub async fn run(make: impl AsyncFn() -> Harness) {
    let make = &make;
    /// Each case as a future.
    macro_rules! cases {
        ($($case:ident),* $(,)?) => {
            vec![$(Box::pin(async { cases::$case(&make().await).await }) as LocalBoxFuture<'_, ()>),*]
        };
    }
    join_all(cases![
        a_lease_lives_from_renewal_to_renewal,
        an_expired_lease_can_do_nothing,
        an_expired_lease_takes_every_claim_with_it,
        revoking_ends_everything_and_can_be_repeated,
        epochs_grow_and_a_group_has_one_holder,
        registering_again_ends_the_earlier_claims,
        a_claim_is_won_once_and_can_be_repeated,
        a_claim_needs_the_group_of_its_lease,
        a_batch_is_answered_session_by_session,
        racing_claims_have_one_winner_each,
        names_that_begin_alike_are_independent,
        watchers_see_a_snapshot_and_every_change,
        a_watcher_that_lags_misses_nothing,
        batches_are_bounded,
    ])
    .await;
}

/// A group record for tests.
#[must_use]
pub fn record(id: &str) -> GroupRecord {
    GroupRecord {
        id: group(id),
        model: "m".to_owned(),
        address: "http://127.0.0.1:1".to_owned(),
        tp: 1,
        epoch: Epoch(0),
        capacity: Capacity { slots_total: 100, slots_free: 100, ..Capacity::default() },
        draining: false,
    }
}

/// A group id for tests.
#[must_use]
pub fn group(id: &str) -> GroupId {
    GroupId::parse(id).expect("tests use legal ids")
}

/// A session of a tenant, for tests.
#[must_use]
pub fn key(tenant: &str, session: &str) -> SessionKey {
    let tenant = TenantId::parse(tenant).expect("tests use legal ids");
    SessionKey { tenant, session: SessionId::parse(session).expect("tests use legal ids") }
}
