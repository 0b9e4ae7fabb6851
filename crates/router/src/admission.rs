//! How many calls a router takes at a time, and whose.
//!
//! A call takes a place when it arrives, or waits for one in its tenant's queue: decided by [`Fair`], which is pure. It
//! waits no longer than its deadline and `queue_wait_ms`. Its place is held to the end of its stream and given back
//! however that ends: by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_common::TenantId;
use hawser_common::clock::Clock;
use tokio::sync::oneshot;

use crate::auth::Caller;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::quota::fair::{Entry, Fair, Ticket};

/// Counts calls in flight. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Admission(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    clock: Clock,
    limit: usize,
    longest_wait: Duration,
}

#[derive(Debug)]
struct State {
    fair: Fair,
    /// Who is told when a ticket's turn has come.
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

/// A call's place, held to the end of its stream.
#[derive(Debug)]
pub(crate) struct Permit {
    shared: Arc<Shared>,
    tenant: TenantId,
}

/// A call that waits for its place. Dropped, it gives up the place or its hope of one.
struct Waiting {
    /// Taken once the place is a permit.
    shared: Option<Arc<Shared>>,
    tenant: TenantId,
    ticket: Ticket,
}

impl Admission {
    /// A router with `limit` places, which calls wait for no longer than `longest_wait`.
    pub(crate) fn new(limit: usize, longest_wait: Duration, clock: Clock) -> Self {
        let state = Mutex::new(State { fair: Fair::new(limit), waiting: HashMap::new() });
        Self(Arc::new(Shared { state, clock, limit, longest_wait }))
    }

    /// A place for a call of `caller`.
    ///
    /// # Errors
    /// [`RouteError::TooSoon`], [`RouteError::Busy`] or [`RouteError::Deadline`].
    pub(crate) async fn enter(&self, caller: &Caller, deadline: Deadline) -> Result<Permit, RouteError> {
        let shared = &self.0;
        let tenant = caller.tenant.clone();
        let (turn, waiting) = {
            let mut state = shared.lock();
            match state.fair.enter(&tenant, &caller.quota, shared.clock.now()) {
                Entry::Admitted => return Ok(Permit { shared: Arc::clone(shared), tenant }),
                Entry::TooSoon { retry_after } => {
                    let per_s = caller.quota.requests_per_s;
                    return Err(RouteError::TooSoon { tenant, per_s, retry_after });
                }
                Entry::QueueFull { queued } => return Err(self.busy(caller, queued)),
                Entry::Waits(ticket) => {
                    let (sender, turn) = oneshot::channel();
                    state.waiting.insert(ticket, sender);
                    (turn, Waiting { shared: Some(Arc::clone(shared)), tenant, ticket })
                }
            }
        };
        let limit = shared.longest_wait;
        match deadline.bound(&shared.clock, tokio::time::timeout(limit, turn)).await {
            Some(Ok(_)) => Ok(waiting.placed()),
            Some(Err(_)) => Err(self.busy(caller, shared.lock().fair.queued())),
            None => Err(RouteError::Deadline),
        }
    }

    fn busy(&self, caller: &Caller, queued: usize) -> RouteError {
        let (limit, own) = (self.0.limit, caller.quota.max_in_flight);
        RouteError::Busy { limit, tenant: caller.tenant.clone(), own, queued }
    }

    /// Calls in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.lock().fair.running()
    }

    /// Calls that wait for a place.
    pub(crate) fn queued(&self) -> usize {
        self.0.lock().fair.queued()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What panics under the lock is a bug in the counts, which stay as they are.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, tenant: &TenantId) {
        let mut state = self.lock();
        for ticket in state.fair.leave(tenant, self.clock.now()) {
            if let Some(turn) = state.waiting.remove(&ticket) {
                // Whoever does not listen any more gives its place back when it is dropped.
                let _ = turn.send(());
            }
        }
    }
}

impl Waiting {
    /// Its turn has come.
    fn placed(mut self) -> Permit {
        let shared = self.shared.take().expect("taken here only, and this consumes it");
        Permit { shared, tenant: self.tenant.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let mut state = shared.lock();
        let waited = state.fair.abandon(&self.tenant, self.ticket);
        state.waiting.remove(&self.ticket);
        drop(state);
        if !waited {
            shared.leave(&self.tenant);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.leave(&self.tenant);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::quota::Quota;

    fn caller(tenant: &str, quota: Quota) -> Caller {
        Caller { tenant: TenantId::parse(tenant).unwrap(), operator: false, quota }
    }

    fn admission(limit: usize) -> Admission {
        Admission::new(limit, Duration::from_secs(5), Clock::system())
    }

    #[tokio::test]
    async fn without_a_queue_full_means_refused_until_one_leaves() {
        let (admission, none) = (admission(2), caller("a", Quota { max_queued: 0, ..Quota::default() }));
        let enter = || admission.enter(&none, Deadline::none());
        let first = enter().await.unwrap();
        let _second = enter().await.unwrap();
        assert!(matches!(enter().await.unwrap_err(), RouteError::Busy { limit: 2, .. }));
        assert_eq!(admission.in_flight(), 2);
        drop(first);
        assert!(enter().await.is_ok());
        assert_eq!(admission.in_flight(), 1);
    }

    #[tokio::test]
    async fn a_place_goes_to_who_waits_and_is_lost_with_nobody() {
        let (admission, a) = (admission(1), caller("a", Quota::default()));
        let place = admission.enter(&a, Deadline::none()).await.unwrap();
        let mut gone = Box::pin(admission.enter(&a, Deadline::none()));
        let mut next = Box::pin(admission.enter(&a, Deadline::none()));
        assert!((&mut gone).now_or_never().is_none() && (&mut next).now_or_never().is_none());
        assert_eq!((admission.in_flight(), admission.queued()), (1, 2));
        // The first in the queue is given the place and goes before it hears of it.
        drop(place);
        assert_eq!((admission.in_flight(), admission.queued()), (1, 1));
        drop(gone);
        let place = next.await.unwrap();
        assert_eq!((admission.in_flight(), admission.queued()), (1, 0));
        drop(place);
        assert_eq!(admission.in_flight(), 0);
        assert!(admission.0.lock().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_allowed() {
        let (admission, a) = (admission(1), caller("a", Quota::default()));
        let _place = admission.enter(&a, Deadline::none()).await.unwrap();
        let refused = admission.enter(&a, Deadline::none()).await.unwrap_err();
        assert!(matches!(refused, RouteError::Busy { .. }), "{refused}");
        let soon = Deadline::none().at_most(Duration::from_millis(10), &Clock::system());
        assert_eq!(admission.enter(&a, soon).await.unwrap_err(), RouteError::Deadline);
        assert_eq!((admission.in_flight(), admission.queued()), (1, 0));
    }
}
