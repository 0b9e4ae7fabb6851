//! The group that a session leaves.
//!
//! A session is offered, copied and staged while this group still owns it; every failure up to there leaves it here.
//! From the release of its claim on it is no more this group's, whatever becomes of it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_common::group::{GroupRecord, Owner};
use hawser_common::numbers::millis;
use hawser_proto::transport::innermost;
use hawser_proto::{MAX_MESSAGE_BYTES, convert, fault, v1};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::handover_client::HandoverClient;
use v1::import_session_request::Step as Ask;
use v1::import_session_response::Step as Answer;

use super::peers::candidates;
use super::rebalance::{Proposal, Terms};
use super::snapshot::{CHUNK_BYTES, Manifest, Offer, Writer};
use super::wire::{ask, chunk_to_wire, offer_to_wire};
use crate::driver::{Departure, MoveError};
use crate::metrics::MoveEnd;
use crate::server::Shared;
use crate::session::{Held, Transcript};
use crate::turn::TurnError;

/// Groups that one session is offered to.
const MAX_TARGETS: usize = 3;
/// Messages on their way to the other group.
const AHEAD: usize = 2;
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for the store to give the claim up.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for the word of a group that may have a session which turns here may ask for.
const OWNED_LIMIT: Duration = Duration::from_secs(3);

const LATE: &str = "it took too long";

/// Why a session did not leave.
#[derive(Debug, Error)]
pub(super) enum LeaveError {
    #[error("no other group of this model takes sessions")]
    NoTarget,
    #[error("a turn needs the session")]
    Wanted,
    #[error("the session is not this group's any more")]
    NotOwned,
    #[error(transparent)]
    Driver(#[from] MoveError),
    #[error(transparent)]
    Turn(#[from] TurnError),
    #[error("group {group}: {reason}")]
    Refused { group: String, reason: String },
    #[error("the store did not give the claim up in time")]
    Unreleased,
    #[error("the claim was released, and group {group} did not say that it has it: {reason}")]
    Lost { group: String, reason: String },
}

impl LeaveError {
    /// Whether this group has let go of the session, or may have.
    pub(super) fn is_released(&self) -> bool {
        matches!(self, Self::Unreleased | Self::Lost { .. })
    }

    /// Whether another session had better go to another group.
    pub(super) fn lies_there(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Lost { .. })
    }
}

/// Hands over what this group has, the most recently used sessions first. Sessions in a turn wait for its end.
pub(crate) async fn hand_over_all(shared: &Arc<Shared>, wanted: impl Fn(&crate::session::Summary) -> bool) {
    let mut sessions = shared.sessions.summaries(|_| true);
    sessions.retain(|(_, summary)| wanted(summary));
    sessions.sort_by_key(|(_, summary)| std::cmp::Reverse(summary.last_used));
    let moves = sessions.into_iter().map(|(key, _)| async move {
        hand_over(shared, &key).await;
    });
    futures_util::stream::iter(moves).buffer_unordered(shared.moves.most).for_each(|()| async {}).await;
}

/// Hands one session over and says who has it; `None` where it was given up, or is not here. It is this group's no more
/// in any case.
pub(crate) async fn hand_over(shared: &Arc<Shared>, key: &SessionKey) -> Option<Owner> {
    if !shared.sessions.contains(key) {
        return shared.moves.moved(key);
    }
    let mut held = shared.sessions.checkout(key).await.ok()?;
    if !held.is_kept() {
        // Another task handed it over meanwhile.
        return shared.moves.moved(key);
    }
    if !owns(shared, &held) {
        return None;
    }
    let moved =
        if shared.moves.enabled { leave(shared, key, &held).await } else { Err(LeaveError::NoTarget) };
    match moved {
        Ok(owner) => {
            shared.metrics.move_ended(MoveEnd::Drained);
            has_left(shared, held, &owner).await;
            Some(owner)
        }
        Err(error) => {
            held.claimed = None;
            let end = if error.is_released() { MoveEnd::Lost } else { MoveEnd::GivenUp };
            shared.metrics.move_ended(end);
            tracing::info!(session = %key.session, %error, "a session is given up; it is computed again elsewhere");
            shared.registration.release(key.clone()).await;
            None
        }
    }
}

/// Gives an idle session to a group that is less loaded, and says who has it. Up to the release of its claim it stays
/// here whatever fails, and goes on at once for a turn that comes; from then on it is as with any move.
pub(super) async fn give(
    shared: &Arc<Shared>,
    proposal: &Proposal,
    target: &GroupRecord,
) -> Result<Owner, LeaveError> {
    let key = &proposal.session;
    let held = shared.sessions.try_checkout(key).ok_or(LeaveError::Wanted)?;
    let given = give_held(shared, proposal, target, &held).await;
    match &given {
        Ok(owner) => {
            shared.metrics.move_ended(MoveEnd::Rebalanced);
            has_left(shared, held, owner).await;
        }
        Err(error) if error.is_released() => {
            // Rows and tokens stay for a turn that brings the whole conversation; one that brings only what is new is
            // not served by them, since another group may have gone on meanwhile.
            let mut held = held;
            held.claimed = None;
            shared.metrics.move_ended(MoveEnd::Lost);
            shared.registration.release(key.clone()).await;
        }
        Err(_) => shared.metrics.move_ended(MoveEnd::Stayed),
    }
    given
}

async fn give_held(
    shared: &Arc<Shared>,
    proposal: &Proposal,
    target: &GroupRecord,
    held: &Held,
) -> Result<Owner, LeaveError> {
    if !(held.is_kept() && owns(shared, held)) {
        return Err(LeaveError::NotOwned);
    }
    let _permit = shared.moves.leaving.acquire().await.map_err(|_| LeaveError::NoTarget)?;
    let started = shared.clock.now();
    let staging = async {
        let leaving = Leaving::begin(shared, &proposal.session, held, Some(proposal.terms)).await?;
        let staged = leaving.stage(target).await?;
        Ok((leaving, staged))
    };
    // Cancel-safe: whatever is dropped half-way ends the move, and nothing was released.
    let (leaving, staged) = tokio::select! {
        staged = tokio::time::timeout(shared.moves.limit, staging) => staged.unwrap_or_else(|_| {
            Err(LeaveError::Refused { group: target.id.to_string(), reason: LATE.to_owned() })
        }),
        () = held.wanted() => Err(LeaveError::Wanted),
    }?;
    let limit = shared.moves.limit.min(OWNED_LIMIT);
    leaving.settle(staged, target, (started, limit)).await
}

fn owns(shared: &Shared, held: &Transcript) -> bool {
    shared.registration.valid(shared.clock.now())
        && held.claimed.is_some_and(|term| term == shared.registration.standing().term)
}

/// Forgets a session that another group has.
async fn has_left(shared: &Shared, held: Held, owner: &Owner) {
    let key = held.key().clone();
    shared.moves.moved.insert(key.clone(), owner.clone());
    if let Err(error) = shared.driver.close(key.clone()).await {
        tracing::debug!(%error, session = %key.session, "rows of a session that left stay until they are needed");
    }
    held.forget();
}

async fn leave(shared: &Arc<Shared>, key: &SessionKey, transcript: &Transcript) -> Result<Owner, LeaveError> {
    // Its own token: the semaphore is never closed.
    let _permit = shared.moves.leaving.acquire().await.map_err(|_| LeaveError::NoTarget)?;
    let started = shared.clock.now();
    let groups = shared.moves.peers.groups(&shared.tasks).await;
    let to = (&shared.group, shared.model.as_str());
    if candidates(groups.clone(), to, key, 0).is_empty() {
        return Err(LeaveError::NoTarget);
    }
    let leaving = Leaving::begin(shared, key, transcript, None).await?;
    let mut last = LeaveError::NoTarget;
    for target in candidates(groups, to, key, leaving.rows).iter().take(MAX_TARGETS) {
        let staged = tokio::time::timeout(shared.moves.limit, leaving.stage(target)).await;
        let refused = |reason| LeaveError::Refused { group: target.id.to_string(), reason };
        match staged.unwrap_or_else(|_| Err(refused(LATE.to_owned()))) {
            Ok(staged) => return leaving.settle(staged, target, (started, shared.moves.limit)).await,
            Err(error) => {
                tracing::debug!(session = %key.session, %error, "not taken");
                last = error;
            }
        }
    }
    Err(last)
}

/// Work grows with the conversation: off the runtime's threads.
async fn manifest(
    shared: &Shared,
    key: &SessionKey,
    transcript: &Transcript,
    departure: Option<&Departure>,
) -> Result<Vec<u8>, LeaveError> {
    let used = shared.sessions.summary(key).map_or_else(Tick::default, |summary| summary.last_used);
    let idle = shared.clock.now().since(used);
    let manifest = Manifest {
        transcript: transcript.clone(),
        state: departure.map(|departure| departure.state.clone()),
        memory: departure.and_then(|departure| departure.memory.clone()),
        idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
    };
    let encoded = tokio::task::spawn_blocking(move || manifest.encode()).await;
    Ok(encoded.map_err(|_| TurnError::TaskFailed)?)
}

struct Leaving<'a> {
    shared: &'a Arc<Shared>,
    key: &'a SessionKey,
    departure: Option<Departure>,
    manifest: Vec<u8>,
    rows: usize,
    /// Set where it goes for the sake of balance.
    terms: Option<Terms>,
}

/// Everything is at the other group, and this one still owns it. Dropping it ends the move.
struct Staged {
    asks: mpsc::Sender<v1::ImportSessionRequest>,
    answers: Streaming<v1::ImportSessionResponse>,
}

impl<'a> Leaving<'a> {
    /// Pins the session's rows and writes down the rest of it.
    async fn begin(
        shared: &'a Arc<Shared>,
        key: &'a SessionKey,
        transcript: &Transcript,
        terms: Option<Terms>,
    ) -> Result<Self, LeaveError> {
        let departure = shared.driver.depart(key.clone()).await?;
        let rows = departure.as_ref().map_or(0, |departure| departure.state.live.len());
        let manifest = manifest(shared, key, transcript, departure.as_ref()).await?;
        Ok(Self { shared, key, departure, manifest, rows, terms })
    }

    async fn stage(&self, target: &GroupRecord) -> Result<Staged, LeaveError> {
        let refused = |reason: String| LeaveError::Refused { group: target.id.to_string(), reason };
        let endpoint =
            self.shared.moves.dial.endpoint(&target.address).map_err(|e| refused(e.to_string()))?;
        let channel = endpoint.connect_timeout(CONNECT_LIMIT).connect().await;
        let channel = channel.map_err(|error| refused(innermost(&error)))?;
        let mut client = HandoverClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (asks, outgoing) = mpsc::channel(AHEAD);
        let answers = client.import_session(ReceiverStream::new(outgoing)).await;
        let answers = answers.map_err(|status| refused(fault(&status).to_string()))?.into_inner();
        let mut staged = Staged { asks, answers };
        let offer = Offer::new(&self.shared.moves.shape, self.manifest.len(), self.rows);
        let session = self.key.into();
        let opened = staged.send(Ask::Offer(offer_to_wire(session, &offer, self.terms.as_ref()))).await;
        staged.expect(|answer| matches!(answer, Answer::Accepted(_)).then_some(())).await.map_err(refused)?;
        if opened && self.copy(&offer, &staged).await?.is_none() {
            tracing::debug!(session = %self.key.session, group = %target.id, "the other group ended the move");
        }
        // Where it ended the move, its answer says why.
        staged.expect(|answer| matches!(answer, Answer::Staged(_)).then_some(())).await.map_err(refused)?;
        Ok(staged)
    }

    /// Sends everything; `None` where the other group does not listen any more.
    async fn copy(&self, offer: &Offer, staged: &Staged) -> Result<Option<()>, LeaveError> {
        let mut writer = Writer::new(offer);
        for part in self.manifest.chunks(CHUNK_BYTES) {
            let chunk = writer.chunk(part.to_vec());
            if !staged.send(Ask::Chunk(chunk_to_wire(chunk))).await {
                return Ok(None);
            }
        }
        let Some(departure) = self.departure.as_ref() else {
            return Ok(staged.send(end(writer)).await.then_some(()));
        };
        let step = offer.chunk_rows();
        for first in (0..self.rows).step_by(step) {
            let data = departure.read(first..(first + step).min(self.rows)).await?;
            if !staged.send(Ask::Chunk(chunk_to_wire(writer.chunk(data)))).await {
                return Ok(None);
            }
        }
        Ok(staged.send(end(writer)).await.then_some(()))
    }

    /// Releases the claim and waits for the other group to have it.
    async fn settle(
        &self,
        mut staged: Staged,
        target: &GroupRecord,
        (started, limit): (Tick, Duration),
    ) -> Result<Owner, LeaveError> {
        let copied = self.shared.clock.now().since(started);
        let released = self.shared.registration.release_now(self.key.clone());
        if !tokio::time::timeout(RELEASE_LIMIT, released).await.unwrap_or(false) {
            return Err(LeaveError::Unreleased);
        }
        staged.send(Ask::Released(v1::ImportReleased {})).await;
        let owned = staged.expect(|answer| match answer {
            Answer::Owned(owner) => convert::owner(Some(&owner)).ok(),
            Answer::Accepted(_) | Answer::Staged(_) => None,
        });
        let owned = tokio::time::timeout(limit, owned).await;
        let owned = owned.unwrap_or_else(|_| Err(LATE.to_owned()));
        let lost = |reason| LeaveError::Lost { group: target.id.to_string(), reason };
        let owner = owned.map_err(lost)?;
        let took_ms = millis(self.shared.clock.now().since(started));
        let row_bytes = self.departure.as_ref().map_or(0, |departure| departure.row_bytes);
        let bytes = self.manifest.len() + self.rows * row_bytes;
        self.shared.moves.balance.pace().moved(bytes, copied);
        let (session, to, rows) = (&self.key.session, &owner.group, self.rows);
        tracing::info!(%session, %to, rows, bytes, took_ms, "handed a session over");
        Ok(owner)
    }
}

fn end(writer: Writer) -> Ask {
    Ask::End(v1::ImportEnd { checksum: writer.end() })
}

impl Staged {
    async fn send(&self, step: Ask) -> bool {
        self.asks.send(ask(step)).await.is_ok()
    }

    async fn expect<T>(&mut self, wanted: impl FnOnce(Answer) -> Option<T>) -> Result<T, String> {
        match self.answers.message().await {
            Ok(Some(v1::ImportSessionResponse { step: Some(step) })) => {
                wanted(step).ok_or_else(|| "it answered out of order".to_owned())
            }
            Ok(_) => Err("it ended the move without a word".to_owned()),
            Err(status) => Err(fault(&status).to_string()),
        }
    }
}
