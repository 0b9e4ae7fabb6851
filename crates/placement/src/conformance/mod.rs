//! What every placement store must do, as a suite over the [`Store`] trait: the embedded store, the store over the
//! wire and etcd pass the same cases.

mod cases;
mod mirror;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::{Epoch, GroupId, SessionId, SessionKey, TenantId};

use crate::store::Store;
pub use mirror::Mirror;

/// A fresh store, and a way to let time pass for it.
pub struct Harness {
    pub store: Arc<dyn Store>,
    pub advance: Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>,
}

/// Runs every case, each on a harness of its own.
///
/// # Panics
/// Where the store breaks its contract.
pub async fn run(make: impl AsyncFn() -> Harness) {
    cases::a_lease_lives_from_renewal_to_renewal(&make().await).await;
    cases::an_expired_lease_can_do_nothing(&make().await).await;
    cases::revoking_ends_everything_and_can_be_repeated(&make().await).await;
    cases::epochs_grow_and_a_group_has_one_holder(&make().await).await;
    cases::registering_again_ends_the_earlier_claims(&make().await).await;
    cases::a_claim_is_won_once_and_can_be_repeated(&make().await).await;
    cases::a_claim_needs_the_group_of_its_lease(&make().await).await;
    cases::names_that_begin_alike_are_independent(&make().await).await;
    cases::watchers_see_a_snapshot_and_every_change(&make().await).await;
    cases::a_watcher_that_lags_misses_nothing(&make().await).await;
    cases::batches_are_bounded(&make().await).await;
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
