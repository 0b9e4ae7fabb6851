//! Finding the group that takes a call: choose, ask, and go on as [`Attempts`] says.
//!
//! Nothing is recorded but the count of calls in flight and the hold of a session without an owner, so that first turns
//! that come at the same time go to the same group: who owns the session afterwards is what the store says.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::SessionKey;
use hawser_common::clock::Clock;
use hawser_common::group::Owner;
use hawser_proto::Fault;
use tracing::{debug, warn};

use crate::affinity::HoldId;
use crate::attempts::{Attempts, Limits, Next, Replay, SETTLE};
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::fleet::InFlight;
use crate::metrics::{Retry, RouterMetrics};
use crate::prefix::Prefix;
use crate::reachable::Reachable;
use crate::view::{Target, View, Wanted, Went};

/// How long a session that this router has not heard of may still be on its way from the store.
pub(crate) const NEWS: Duration = Duration::from_millis(100);

/// Whom a call may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The session's owner, or any group that takes it.
    Group,
    /// The owner; a session without one is not known.
    Owner,
}

/// A call that is to be placed.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) session: Option<SessionKey>,
    /// Empty where any model will do.
    pub(crate) model: String,
    /// How its conversation begins, for groups that have rows of it.
    pub(crate) prefix: Option<Prefix>,
    pub(crate) to: To,
    pub(crate) replay: Replay,
    pub(crate) deadline: Deadline,
}

/// A session's hold of the group that a call was sent to, given back however the call ends.
struct Hold<'a>(Option<(&'a View, &'a SessionKey, HoldId)>);

impl<'a> Hold<'a> {
    fn of(view: &'a View, call: &'a Call, target: &Target) -> Self {
        let held = call.session.as_ref().zip(target.hold);
        Self(held.map(|(session, hold)| (view, session, hold)))
    }

    fn settle(mut self, went: Went) {
        if let Some((view, session, hold)) = self.0.take() {
            view.settle(session, hold, went);
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some((view, session, hold)) = self.0.take() {
            view.settle(session, hold, Went::GivenUp);
        }
    }
}

/// Places calls.
#[derive(Clone, Debug)]
pub(crate) struct Placer {
    pub(crate) view: Arc<View>,
    pub(crate) reachable: Arc<Reachable>,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) metrics: RouterMetrics,
}

impl Placer {
    /// Offers `call` to groups with `ask` until one takes it. What `ask` returned comes with the group that took it
    /// and its place in that group's count.
    pub(crate) async fn place<T, F>(
        &self,
        call: &Call,
        ask: impl Fn(Target) -> F,
    ) -> Result<(T, Target, InFlight), RouteError>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let placed = call.deadline.bound(&self.clock, self.attempts(call, ask)).await;
        placed.unwrap_or(Err(RouteError::Deadline))
    }

    async fn attempts<T, F>(
        &self,
        call: &Call,
        ask: impl Fn(Target) -> F,
    ) -> Result<(T, Target, InFlight), RouteError>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let mut attempts = Attempts::new(self.limits, call.replay);
        let mut named: Option<Owner> = None;
        let (started, mut asking) = (self.clock.now(), Duration::ZERO);
        loop {
            let target = match named.take().and_then(|owner| self.view.target(&owner)) {
                Some(target) => target,
                None => match self.choose(call, &attempts).await {
                    Ok(target) => target,
                    Err(error) => return Err(attempts.exhausted(error)),
                },
            };
            let in_flight = InFlight::enter(Arc::clone(&target.load));
            let hold = Hold::of(&self.view, call, &target);
            let asked = self.clock.now();
            let answer = ask(target.clone()).await;
            asking += self.clock.now().since(asked);
            let fault = match answer {
                Ok(taken) => {
                    hold.settle(Went::Answered);
                    if let Some(prefix) = call.prefix {
                        self.view.sent(prefix, &target.owner.group);
                    }
                    self.metrics.placed(self.clock.now().since(started).saturating_sub(asking));
                    return Ok((taken, target, in_flight));
                }
                Err(fault) => fault,
            };
            hold.settle(Went::Refused);
            drop(in_flight);
            debug!(group = %target.owner.group, held = target.held, %fault, "not taken");
            if fault.origin == hawser_proto::fault::Origin::Connect {
                self.view.shun(&target.owner.group);
                if let Some(unreachable) = self.reachable.unreached(&target.owner, &target.address, &fault) {
                    warn!("{unreachable}");
                }
            }
            match attempts.after(&target.owner, target.held, fault, self.clock.now()) {
                Next::Fail(error) => return Err(error),
                Next::Choose => self.metrics.retried(Retry::Refused),
                Next::Ask(owner) => {
                    self.metrics.redirected();
                    if self.view.target(&owner).is_none() {
                        // The worker heard of the owner before this router did.
                        self.view.wait(SETTLE, |view| view.target(&owner).is_some()).await;
                    }
                    named = Some(owner);
                }
                Next::Wait(wait) => {
                    self.metrics.retried(Retry::Waited);
                    self.wait(call, &target, wait).await;
                }
            }
        }
    }

    async fn choose(&self, call: &Call, attempts: &Attempts) -> Result<Target, RouteError> {
        let wanted = Wanted {
            session: call.session.as_ref(),
            model: &call.model,
            prefix: call.prefix,
            excluded: attempts.excluded(),
        };
        let (To::Owner, Some(session)) = (call.to, &call.session) else {
            // Only its owner can go on from what a session has. One that moves is nobody's for a moment.
            if let (Replay::Delta, Some(session)) = (call.replay, &call.session) {
                self.view.wait(NEWS, |view| view.is_known(session)).await;
            }
            return self.view.choose(wanted);
        };
        if self.view.wait(NEWS, |view| view.owner(session).is_some()).await {
            self.view.choose(wanted)
        } else {
            Err(RouteError::UnknownSession { session: session.session.clone() })
        }
    }

    /// Waits, but no longer than the session's owner stays the one that was asked.
    async fn wait(&self, call: &Call, asked: &Target, limit: Duration) {
        let Some(session) = &call.session else {
            return tokio::time::sleep(limit).await;
        };
        let before = self.view.owner(session);
        let moved = |view: &View| {
            let owner = view.owner(session);
            owner != before || owner.is_some_and(|owner| owner != asked.owner)
        };
        self.view.wait(limit, moved).await;
    }
}
