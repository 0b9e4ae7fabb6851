//! What a group says of itself while it runs: to whoever asks for its health, and to the store.
//!
//! Promises that only sessions count which the group holds by a claim of its present registration. Never decides anything.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::group::Capacity;
use hawser_placement::RegistrationHandle;
use hawser_proto::v1;
use tokio_util::sync::CancellationToken;

use crate::server::{Shared, WorkerService};

/// Shortest time between two reports: the store is told once a second.
const REPORT_PERIOD: Duration = Duration::from_millis(200);
/// Longest: claims may have ended while nothing ran.
const CLAIMS_PERIOD: Duration = Duration::from_secs(1);

/// SERVING while the lease may be relied on.
pub(super) async fn report_health(
    mut registration: RegistrationHandle,
    clock: Clock,
    health: tonic_health::server::HealthReporter,
    stopping: CancellationToken,
) {
    loop {
        let standing = registration.standing();
        let now = clock.now();
        if standing.valid(now) {
            health.set_serving::<v1::worker_server::WorkerServer<WorkerService>>().await;
        } else {
            health.set_not_serving::<v1::worker_server::WorkerServer<WorkerService>>().await;
        }
        let until_invalid = standing.valid_until.since(now).max(Duration::from_millis(100));
        // Cancel-safe: each branch only waits; the standing is read anew above.
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = registration.changed() => {}
            () = tokio::time::sleep(until_invalid) => {}
        }
    }
}

/// Tells the registration what the group has left, again and again.
pub(super) async fn report_capacity(shared: Arc<Shared>, stopping: CancellationToken) {
    let mut latest = shared.driver.capacity();
    loop {
        // Cancel-safe: `changed` only waits, and the latest value is read after it.
        tokio::select! {
            () = stopping.cancelled() => return,
            changed = latest.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(CLAIMS_PERIOD) => {}
        }
        let sessions = shared.sessions.owned(shared.registration.standing().term) as u64;
        let capacity = Capacity { sessions, ..*latest.borrow_and_update() };
        shared.registration.report(capacity);
        // Cancel-safe: both only wait.
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(REPORT_PERIOD) => {}
        }
    }
}
