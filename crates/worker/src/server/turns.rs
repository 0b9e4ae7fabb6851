//! One turn from request to stream: check the route, check the session out, render, submit, claim, stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::Owner;
use hawser_common::request::{Begun, Extent, Input, TurnRequest};
use hawser_common::retention::{Choice, Retention};
use hawser_common::sampling::Sampling;
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_common::{Epoch, GroupId, SessionKey, TenantId};
use hawser_placement::{ClaimError, RegistrationHandle};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::intent::keep;
use super::stream::{TurnStream, TurnStreamParts};
use crate::driver::{DriverHandle, Turn};
use crate::metrics::{TurnWatch, WorkerMetrics};
use crate::moving::{Moves, hand_over};
use crate::scheduler::{Keep, SequenceId, Submission};
use crate::session::{Held, Prompt, Sessions, Text, Transcript, build_prompt};
use crate::turn::{Generation, GenerationOptions, TurnEnd, TurnError, TurnEvent};

/// What every handler of a leader shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: GroupId,
    pub(crate) model: String,
    pub(crate) text: Text,
    pub(crate) end_ids: Vec<u32>,
    /// Longest prompt plus generation.
    pub(crate) context: usize,
    /// Slots that a session can have.
    pub(crate) usable_slots: usize,
    pub(crate) stream_buffer: usize,
    /// Of sessions that choose nothing.
    pub(crate) retention: Retention,
    pub(crate) driver: DriverHandle,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) registration: RegistrationHandle,
    pub(crate) moves: Moves,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    /// Cancelled once the group drains.
    pub(crate) draining: CancellationToken,
    /// Tracks the running turns.
    pub(crate) turns: TaskTracker,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) telemetry: Telemetry,
}

impl Shared {
    /// Whether a turn that was routed by `epoch` may run here now.
    ///
    /// # Errors
    /// [`TurnError::Draining`], [`TurnError::Fenced`], or [`TurnError::StaleOwner`] with the current epoch.
    pub(crate) fn admit(&self, epoch: Epoch) -> Result<(), TurnError> {
        if self.draining.is_cancelled() {
            return Err(TurnError::Draining);
        }
        self.stands(epoch)
    }

    /// Whether the group is the one that was meant by `epoch`: enough to look at what it has.
    ///
    /// # Errors
    /// [`TurnError::Fenced`], or [`TurnError::StaleOwner`] with the current epoch.
    pub(crate) fn stands(&self, epoch: Epoch) -> Result<(), TurnError> {
        if !self.registration.valid(self.clock.now()) {
            return Err(TurnError::Fenced);
        }
        let current = self.registration.epoch();
        if epoch != current {
            return Err(TurnError::StaleOwner(self.owner()));
        }
        Ok(())
    }

    /// As [`Shared::admit`], for a call that names a session. While the group drains, a session of its own is handed over
    /// first, so that the refusal says who the owner is.
    ///
    /// # Errors
    /// As [`Shared::admit`].
    pub(crate) async fn admit_for(self: &Arc<Self>, epoch: Epoch, key: &SessionKey) -> Result<(), TurnError> {
        match self.admit(epoch) {
            Err(TurnError::Draining) => {
                let owner = hand_over(self, key).await;
                Err(owner.map_or(TurnError::Draining, TurnError::StaleOwner))
            }
            admitted => admitted,
        }
    }

    /// Makes the session this group's in the store, once per registration. Where it is not won, nothing is left of what
    /// was begun for it; and nothing at all of a session that another group has.
    pub(crate) async fn claim(&self, key: &SessionKey, held: &mut Held) -> Result<(), TurnError> {
        // Where the group registers again meanwhile, the claim counts for a term that is over, and nothing is served.
        let term = self.registration.standing().term;
        if held.claimed == Some(term) {
            return Ok(());
        }
        match self.registration.claim(key.clone()).await {
            Ok(_) => {
                held.own(term);
                self.moves.forget(key);
                Ok(())
            }
            Err(ClaimError::Owned(owner)) => {
                **held = Transcript::default();
                self.give_rows_back(key).await;
                Err(TurnError::StaleOwner(owner))
            }
            Err(error) => {
                // What is left of a session that was this group's may still be of use to its next turn.
                if !held.is_kept() {
                    self.give_rows_back(key).await;
                }
                Err(TurnError::ClaimFailed { detail: error.to_string() })
            }
        }
    }

    /// Gives the rows of a session back that is not this group's, and ends what runs for it.
    pub(crate) async fn give_rows_back(&self, key: &SessionKey) {
        if let Err(error) = self.driver.close(key.clone()).await {
            tracing::debug!(%error, session = %key.session, "rows that are nobody's stay until they are needed");
        }
    }

    /// Whether the store has given the session to this group, as of its present registration.
    pub(crate) fn owns(&self, held: &Transcript) -> bool {
        held.claimed == Some(self.registration.standing().term)
    }

    /// Checks a session out. One that has moved away, before or while this waited, is refused with its owner's name.
    ///
    /// # Errors
    /// As [`Sessions::checkout`], or [`TurnError::StaleOwner`].
    pub(crate) async fn checkout(&self, key: &SessionKey) -> Result<Held, TurnError> {
        let mut held = self.sessions.checkout(key).await?;
        if held.is_kept() || self.moves.moved(key).is_none() {
            return Ok(held);
        }
        // The store knows better: who took it may be gone, or have handed it on. Where it is nobody's, so it stays.
        self.claim(key, &mut held).await?;
        held.claimed = None;
        self.unclaim(key);
        Ok(held)
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { group: self.group.clone(), epoch: self.registration.epoch() }
    }

    /// Gives the session back to the store. Called while the session is checked out: its next turn's claim comes after
    /// this, and is not undone by it.
    pub(crate) fn unclaim(&self, key: &SessionKey) {
        self.registration.give_up(key.clone());
    }
}

/// What follows a prompt: which of the history is kept, and the beginning of the answer if another group made one.
struct Answered {
    keep: Keep,
    begun: Begun,
}

/// Runs turns.
#[derive(Debug, Clone)]
pub(crate) struct TurnService {
    shared: Arc<Shared>,
    next_id: Arc<AtomicU64>,
}

impl TurnService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, next_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Starts a turn; what fails before its first frame fails here. Dropping the stream aborts the turn.
    pub(crate) async fn start(
        &self,
        tenant: TenantId,
        request: TurnRequest,
        begun: Option<Begun>,
        deadline: Option<Tick>,
        watch: &mut TurnWatch,
    ) -> Result<TurnStream, TurnError> {
        let continued = begun.as_ref().map_or(0, |begun| begun.tokens.len());
        let shared = &self.shared;
        // Taken before anything is waited for, so that a shutdown waits for this turn, or this turn sees the drain.
        let tracked = shared.turns.token();
        if shared.draining.is_cancelled() {
            return Err(TurnError::Draining);
        }
        watch.about(request.session.as_ref(), &shared.owner());
        let key = request.session.clone().map(|session| SessionKey { tenant: tenant.clone(), session });
        let held = match &key {
            Some(key) => Some(shared.checkout(key).await?),
            None => None,
        };
        // Since the registration that the history was claimed under, another group may have gone on with the session.
        let term = shared.registration.standing().term;
        if request.extent == Extent::Delta && held.as_ref().is_some_and(|held| held.claimed != Some(term)) {
            return Err(TurnError::SessionLost);
        }
        let chosen = held.as_ref().and_then(|held| held.retention.clone());
        let retention = request.retention.over(chosen.as_ref().unwrap_or(&shared.retention));
        retention.validate()?;
        // What was never chosen stays the group's default, whatever that is at the next owner.
        let is_chosen = chosen.is_some() || request.retention != Choice::default();
        let (sampling, intent) = (request.sampling.clone(), request.intent.clone());
        let (held, mut prompt) = self.render(held, request).await?;
        prompt.retention = is_chosen.then(|| retention.clone());
        let keep = keep(&shared.text, shared.context, &prompt, (retention, &intent))?;
        let keep = Answered { keep, begun: begun.unwrap_or_default() };
        let mut guard = TurnGuard { shared: Arc::clone(shared), key: key.clone(), held };
        let (id, events) =
            self.submit((tenant, key.as_ref()), (&prompt, keep), &sampling, (deadline, watch))?;
        watch.request(id.0);
        if let (Some(key), Some(held)) = (&key, &mut guard.held) {
            // Prefill is running meanwhile; nothing has left this process yet.
            shared.claim(key, held).await?;
        }
        Ok(TurnStream::new(TurnStreamParts { guard, prompt, continued, events, tracked }))
    }

    async fn render(
        &self,
        held: Option<Held>,
        request: TurnRequest,
    ) -> Result<(Option<Held>, Prompt), TurnError> {
        let text = self.shared.text.clone();
        // Nothing is rendered or tokenised: not worth another thread.
        let is_quick = matches!(request.input, Input::Tokens(_));
        let work = move || {
            let fresh = Transcript::default();
            let session = held.as_deref().unwrap_or(&fresh);
            let prompt =
                build_prompt(&text, session, request.input, request.extent, request.protected_tokens)?;
            Ok((held, prompt))
        };
        if is_quick {
            return work();
        }
        tokio::task::spawn_blocking(work).await.map_err(|_| TurnError::TaskFailed)?
    }

    fn submit(
        &self,
        (namespace, key): (TenantId, Option<&SessionKey>),
        (prompt, Answered { keep, begun }): (&Prompt, Answered),
        sampling: &Sampling,
        (deadline, watch): (Option<Tick>, &TurnWatch),
    ) -> Result<(SequenceId, mpsc::Receiver<TurnEvent>), TurnError> {
        let shared = &self.shared;
        let (tokens, context) = (&prompt.tokens, shared.context);
        if tokens.len() >= context {
            return Err(TurnError::PromptTooLong { prompt: tokens.len(), context });
        }
        let vocabulary = shared.text.vocabulary;
        if let Some(&id) = begun.tokens.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(TurnError::UnknownToken { id, vocabulary });
        }
        let max_new = most_new_tokens(tokens.len(), sampling.max_tokens, context, shared.usable_slots);
        // A group with a larger pool may have begun it.
        let max_new = max_new.max(begun.tokens.len());
        let mut generation = Generation::new(&GenerationOptions {
            tokenizer: shared.text.tokenizer.clone(),
            sampling,
            seed: sampling.seed.unwrap_or_else(rand::random),
            prompt: tokens,
            max_new,
            end_ids: &shared.end_ids,
        });
        let id = SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, events) = mpsc::channel(shared.stream_buffer + Turn::MIN_ROOM);
        if let Some((finish, rest)) = generation.resume(&begun)? {
            // Both find room: the channel is new.
            if !rest.is_empty() {
                let _ = sender.try_send(TurnEvent::Text(rest));
            }
            let end = TurnEnd::of_begun(finish, tokens.len(), generation, shared.clock.now());
            let _ = sender.try_send(TurnEvent::Finished(Box::new(end)));
            return Ok((id, events));
        }
        let session = key.cloned();
        let (prompt, begun) = (tokens.clone(), begun.tokens);
        let submission = Submission { id, session, namespace, prompt, begun, max_new, deadline, keep };
        let (arrived, trace) = (watch.arrived(), watch.parent().clone());
        shared.driver.run(Turn { submission, generation, events: sender, arrived, trace })?;
        Ok((id, events))
    }
}

/// Most tokens a turn may generate. A request that names no limit takes what the context and the pool leave; one that
/// names more than the context leaves ends with `length` there; one that names more than the pool holds is refused by
/// the scheduler, which says both numbers.
fn most_new_tokens(prompt: usize, asked: Option<u32>, context: usize, usable: usize) -> usize {
    let left = context - prompt;
    match asked {
        Some(asked) => left.min(asked as usize),
        None => left.min(usable.saturating_sub(prompt).max(1)),
    }
}

/// The session of a running turn. However the turn ends, a session that nothing was committed to leaves no claim.
#[derive(Debug)]
pub(crate) struct TurnGuard {
    pub(crate) shared: Arc<Shared>,
    key: Option<SessionKey>,
    pub(crate) held: Option<Held>,
}

impl TurnGuard {
    /// Whether the session's claim may have ended while the turn ran. A turn without a session has none to lose.
    pub(crate) fn is_fenced(&self) -> bool {
        let registration = &self.shared.registration;
        let claimed = self.held.as_ref().and_then(|held| held.claimed);
        let standing = registration.standing();
        claimed.is_some_and(|term| term != standing.term || !standing.valid(self.shared.clock.now()))
    }

    /// Checks the session in, before the stream itself ends.
    pub(crate) fn check_in(&mut self) {
        let (Some(key), Some(held)) = (&self.key, self.held.take()) else { return };
        if held.claimed.is_none() {
            return;
        }
        if !held.is_kept() {
            self.shared.unclaim(key);
        } else if self.shared.draining.is_cancelled() {
            // The turn counts as running until its session is somebody's.
            let (shared, key, running) = (Arc::clone(&self.shared), key.clone(), self.shared.turns.token());
            drop(held);
            self.shared.tasks.spawn(async move {
                hand_over(&shared, &key).await;
                drop(running);
            });
        }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.check_in();
    }
}

#[cfg(test)]
mod tests {
    use super::most_new_tokens;

    #[test]
    fn e15_generation_is_bounded_by_the_context_and_only_then_by_the_pool() {
        assert_eq!(most_new_tokens(100, Some(28), 128, 4_096), 28);
        assert_eq!(most_new_tokens(100, Some(29), 128, 4_096), 28, "prompt + max_tokens = max + 1");
        assert_eq!(most_new_tokens(100, None, 128, 4_096), 28);
        assert_eq!(most_new_tokens(100, None, 8_192, 512), 412);
        assert_eq!(
            most_new_tokens(100, Some(1_000), 8_192, 512),
            1_000,
            "the scheduler refuses it, with numbers"
        );
        assert_eq!(most_new_tokens(600, None, 8_192, 512), 1, "the scheduler refuses it, with numbers");
    }
}
