//! The task that owns a group's claims: many waiting claims become one call of the store.
//!
//! It knows which sessions are held, so that claiming one of them again asks nobody, and which are to be given up, so
//! that a claim nobody waits for any more, or whose answer was lost, is not left behind. A claim always beats an
//! earlier release of the same session.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::{Epoch, GroupId, SessionKey};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::keeper::limited;
use super::{ClaimError, Held};
use crate::metrics::{Claimed, PlacementMetrics};
use crate::store::{ClaimOutcome, LeaseId, Store, StoreError};

/// Most commands of one round.
const MAX_ROUND: usize = 1024;
/// Pause before releases that failed are tried again.
const RETRY: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<Epoch, ClaimError>>;

pub(super) enum Command {
    Claim {
        session: SessionKey,
        reply: Reply,
    },
    /// Nobody saw the answer of a claim that was won.
    Abandon(SessionKey),
    Release(SessionKey),
    /// As `Release`; says when the store has given the session up, or drops the reply where a claim overtook it.
    ReleaseNow {
        session: SessionKey,
        done: oneshot::Sender<()>,
    },
}

pub(super) struct Claims {
    store: Arc<dyn Store>,
    clock: Clock,
    group: GroupId,
    held: watch::Receiver<Held>,
    commands: mpsc::Receiver<Command>,
    call_limit: Duration,
    /// Lease that the two sets below belong to.
    lease: LeaseId,
    /// How many claims of each session were answered and not abandoned.
    owned: HashMap<SessionKey, u32>,
    to_release: HashSet<SessionKey>,
    /// Who waits for a release.
    leaving: HashMap<SessionKey, Vec<oneshot::Sender<()>>>,
    metrics: PlacementMetrics,
}

impl Claims {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        group: GroupId,
        (held, commands): (watch::Receiver<Held>, mpsc::Receiver<Command>),
        call_limit: Duration,
    ) -> Self {
        let lease = held.borrow().lease;
        let (owned, to_release, leaving) = (HashMap::new(), HashSet::new(), HashMap::new());
        let metrics = PlacementMetrics::default();
        Self { store, clock, group, held, commands, call_limit, lease, owned, to_release, leaving, metrics }
    }

    pub(super) fn observed_by(self, metrics: PlacementMetrics) -> Self {
        Self { metrics, ..self }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let mut round = Vec::new();
            // Cancel-safe: `recv_many` takes nothing unless it completes, and a sleep holds nothing.
            tokio::select! {
                () = stop.cancelled() => return,
                taken = self.commands.recv_many(&mut round, MAX_ROUND) => {
                    if taken == 0 {
                        // The last handle is gone: nobody needs the group any more.
                        stop.cancel();
                        return;
                    }
                }
                () = tokio::time::sleep(RETRY), if !self.to_release.is_empty() => {}
            }
            // Dropping the replies at the stop answers their claims with `Stopped`; the lease ends them all.
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.round(round) => {}
            }
        }
    }

    async fn round(&mut self, commands: Vec<Command>) {
        let held = *self.held.borrow();
        if held.lease != self.lease {
            self.lease = held.lease;
            self.owned.clear();
            self.to_release.clear();
            self.tell_released();
        }
        let mut waiting: HashMap<SessionKey, Vec<Reply>> = HashMap::new();
        for command in commands {
            match command {
                Command::Release(session) => {
                    self.to_release.insert(session);
                }
                Command::ReleaseNow { session, done } => {
                    self.to_release.insert(session.clone());
                    self.leaving.entry(session).or_default().push(done);
                }
                Command::Abandon(session) => {
                    let left = self.owned.get_mut(&session).map(|answers| {
                        *answers = answers.saturating_sub(1);
                        *answers
                    });
                    if left == Some(0) {
                        self.to_release.insert(session);
                    }
                }
                Command::Claim { session, reply } => {
                    self.to_release.remove(&session);
                    self.leaving.remove(&session);
                    waiting.entry(session).or_default().push(reply);
                }
            }
        }
        if !held.standing.valid(self.clock.now()) {
            let reason = "the group has lost touch with the placement store".to_owned();
            return refuse(waiting.into_values(), &ClaimError::Unavailable { reason });
        }
        self.claim(held, waiting).await;
        self.release().await;
    }

    async fn claim(&mut self, held: Held, mut waiting: HashMap<SessionKey, Vec<Reply>>) {
        let epoch = held.standing.epoch;
        let new: Vec<SessionKey> = waiting.keys().filter(|s| !self.owned.contains_key(s)).cloned().collect();
        if !new.is_empty() {
            let (sent, call) = (self.clock.now(), self.store.claim(held.lease, &self.group, new.clone()));
            let claimed = limited(self.call_limit, call).await;
            self.metrics.asked(new.len(), self.clock.now().since(sent));
            match claimed {
                Ok(outcomes) => {
                    for (session, outcome) in new.into_iter().zip(outcomes) {
                        let is_won = outcome == ClaimOutcome::Won;
                        self.metrics.claimed(if is_won { Claimed::Won } else { Claimed::Lost }, 1);
                        let replies = waiting.remove(&session).unwrap_or_default();
                        self.settle(session, outcome, replies, epoch);
                    }
                }
                Err(error) => {
                    self.metrics.claimed(Claimed::Failed, new.len());
                    // The call may have happened all the same.
                    self.to_release.extend(new.iter().cloned());
                    let failed = new.iter().filter_map(|session| waiting.remove(session));
                    refuse(failed.collect::<Vec<_>>().into_iter(), &claim_error(&error));
                }
            }
        }
        // What is left was held before.
        for (session, replies) in waiting {
            self.settle(session, ClaimOutcome::Won, replies, epoch);
        }
    }

    /// Tells everyone who waits; a claim that was won for nobody is given up again.
    fn settle(&mut self, session: SessionKey, outcome: ClaimOutcome, replies: Vec<Reply>, epoch: Epoch) {
        match outcome {
            ClaimOutcome::Owned(owner) => refuse(std::iter::once(replies), &ClaimError::Owned(owner)),
            ClaimOutcome::Won => {
                let mut told = self.owned.get(&session).copied().unwrap_or(0);
                for reply in replies {
                    told = told.saturating_add(u32::from(reply.send(Ok(epoch)).is_ok()));
                }
                if told == 0 {
                    self.to_release.insert(session.clone());
                }
                self.owned.insert(session, told);
            }
        }
    }

    async fn release(&mut self) {
        let batch: Vec<SessionKey> = self.to_release.iter().take(MAX_ROUND).cloned().collect();
        if batch.is_empty() {
            return;
        }
        for session in &batch {
            self.owned.remove(session);
        }
        let call = self.store.release(self.lease, batch.clone());
        match limited(self.call_limit, call).await {
            Ok(()) => batch.iter().for_each(|session| {
                self.to_release.remove(session);
            }),
            // With the lease all of its claims are gone.
            Err(StoreError::LeaseGone { .. }) => self.to_release.clear(),
            Err(error) => {
                tracing::debug!(group = %self.group, %error, "claims were not released; trying again");
            }
        }
        self.tell_released();
    }

    /// Tells whoever waits for a release that has happened.
    fn tell_released(&mut self) {
        let Self { leaving, to_release, .. } = self;
        for (_, done) in leaving.extract_if(|session, _| !to_release.contains(session)) {
            done.into_iter().for_each(|done| {
                let _gone = done.send(());
            });
        }
    }
}

fn refuse(replies: impl Iterator<Item = Vec<Reply>>, error: &ClaimError) {
    for reply in replies.flatten() {
        let _gone = reply.send(Err(error.clone()));
    }
}

fn claim_error(error: &StoreError) -> ClaimError {
    match error {
        StoreError::Full { .. } => ClaimError::Exhausted { reason: error.to_string() },
        StoreError::LeaseGone { .. }
        | StoreError::GroupTaken { .. }
        | StoreError::Invalid { .. }
        | StoreError::Denied { .. }
        | StoreError::Unreachable { .. } => ClaimError::Unavailable { reason: error.to_string() },
    }
}
