//! The group that a session comes to.
//!
//! The session is checked out here from the offer on, so that a turn which comes early waits for it. Nothing of it is
//! served before the claim is won; whoever releases it, or dies, it is the store that says whose it is. Everything that
//! fails before gives its slots back and leaves the session's name free.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use hawser_common::group::Owner;
use hawser_common::{Coded, ErrorCode, SessionKey};
use hawser_proto::convert::InvalidRequest;
use hawser_proto::{convert, status, v1};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use v1::import_session_request::Step as Ask;
use v1::import_session_response::Step as Answer;

use super::balance::accept;
use super::rebalance::{Terms, Unbalanced};
use super::snapshot::{Manifest, Piece, Reader, SnapshotError};
use super::wire::{answer, balance_of, chunk_of, offer_of};
use crate::driver::{Arrival, Arriving, MoveError};
use crate::metrics::Moved;
use crate::server::Shared;
use crate::session::{Held, Transcript};
use crate::turn::TurnError;

/// Longest wait for another session to have arrived.
const PLACE_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait for a turn of the same session that is here already.
const BUSY_LIMIT: Duration = Duration::from_secs(1);

/// Why a session did not come.
#[derive(Debug, Error)]
pub(crate) enum ImportError {
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    #[error("an offer, chunks, the end and the release are expected, in this order")]
    Order,
    #[error("the other group ended the move")]
    Ended,
    #[error("this group takes no sessions over")]
    Disabled,
    #[error("sessions are arriving already, as many as may at once")]
    Full,
    #[error("the session is here already")]
    Exists,
    #[error("the move took too long")]
    Late,
    #[error(transparent)]
    Unbalanced(#[from] Unbalanced),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Driver(#[from] MoveError),
    #[error(transparent)]
    Turn(#[from] TurnError),
}

impl Coded for ImportError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Request(error) => error.code(),
            Self::Order | Self::Exists => ErrorCode::Invalid,
            Self::Ended | Self::Disabled | Self::Late => ErrorCode::Unavailable,
            Self::Full | Self::Unbalanced(_) => ErrorCode::Exhausted,
            Self::Snapshot(error) => error.code(),
            Self::Driver(error) => error.code(),
            Self::Turn(error) => error.code(),
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Turn(error) => error.owner(),
            _ => None,
        }
    }
}

/// Takes sessions over.
#[derive(Debug, Clone)]
pub(crate) struct HandoverService {
    shared: Arc<Shared>,
}

impl HandoverService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl v1::handover_server::Handover for HandoverService {
    type ImportSessionStream = Pin<Box<dyn Stream<Item = Result<v1::ImportSessionResponse, Status>> + Send>>;

    async fn import_session(
        &self,
        request: Request<Streaming<v1::ImportSessionRequest>>,
    ) -> Result<Response<Self::ImportSessionStream>, Status> {
        // At most an acceptance, that it is staged, and the end.
        let (answers, out) = mpsc::channel(4);
        let (shared, asks) = (Arc::clone(&self.shared), request.into_inner());
        // A task of its own: it comes to its end also where the other group has gone.
        self.shared.tasks.spawn(async move {
            let end = match take_over(&shared, asks, &answers).await {
                Ok(owner) => Ok(answer(Answer::Owned((&owner).into()))),
                Err(error) => {
                    tracing::info!(%error, "a session was not taken over");
                    Err(status(&error))
                }
            };
            let _gone = answers.send(end).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }
}

type Asks = Streaming<v1::ImportSessionRequest>;
type Answers = mpsc::Sender<Result<v1::ImportSessionResponse, Status>>;

/// A session that is here and nobody's.
struct Staged {
    key: SessionKey,
    held: Held,
    transcript: Transcript,
    arrival: Option<Arrival>,
    /// Time since its last turn.
    idle: Duration,
    /// It comes for the sake of balance, and no other does meanwhile.
    balance: Option<(Terms, OwnedSemaphorePermit)>,
}

async fn take_over(shared: &Arc<Shared>, mut asks: Asks, answers: &Answers) -> Result<Owner, ImportError> {
    let limit = shared.moves.limit;
    let permit = tokio::time::timeout(PLACE_LIMIT, shared.moves.arriving.acquire()).await;
    let _permit = permit.ok().and_then(Result::ok).ok_or(ImportError::Full)?;
    let staging = tokio::time::timeout(limit, stage(shared, &mut asks, answers));
    let Staged { key, mut held, transcript, arrival, idle, balance } =
        staging.await.map_err(|_| ImportError::Late)??;
    let _gone = answers.send(Ok(answer(Answer::Staged(v1::ImportStaged {})))).await;
    // Whatever comes next, or nothing, or the end: the store says whether the session was released.
    let heard = tokio::time::timeout(limit, next(&mut asks)).await;
    if !matches!(heard, Ok(Ok(Ask::Released(_)))) {
        tracing::info!(session = %key.session, "the other group went silent; the store says whose its session is");
    }
    shared.claim(&key, &mut held).await?;
    if let Some(arrival) = arrival {
        // The claim is won: without its rows it is the same session, which is computed again.
        if let Err(error) = arrival.commit(key).await {
            tracing::warn!(%error, session = %held.key().session, "the rows of a session that came are lost");
        }
    } else if held.is_kept() {
        // It comes without rows: those that it had when it was here before are of another history.
        shared.driver.close(key).await?;
    }
    let claimed = held.claimed;
    *held = Transcript { claimed, ..transcript };
    held.came(idle);
    drop(held);
    let terms = balance.as_ref().map(|(terms, _)| terms);
    shared.moves.balance.rebalancer().took(terms, shared.clock.now());
    shared.metrics.moved(Moved::In);
    Ok(shared.owner())
}

async fn stage(shared: &Arc<Shared>, asks: &mut Asks, answers: &Answers) -> Result<Staged, ImportError> {
    let Ask::Offer(wire) = next(asks).await? else { return Err(ImportError::Order) };
    let key = convert::session_key(&wire.session.clone().unwrap_or_default())?;
    if !shared.moves.enabled {
        return Err(ImportError::Disabled);
    }
    shared.admit(shared.registration.epoch())?;
    let terms = wire.balance.as_ref().map(balance_of);
    let offer = offer_of(wire);
    offer.check(&shared.moves.shape, shared.usable_slots as u64)?;
    let balance = match terms {
        Some(terms) => Some((terms, accept(shared, &terms).await?)),
        None => None,
    };
    let checkout = tokio::time::timeout(BUSY_LIMIT, shared.sessions.checkout(&key));
    let held = checkout.await.map_err(|_| ImportError::Exists)??;
    // What is left of one that was this group's before gives way, once the claim is won.
    if held.claimed == Some(shared.registration.standing().term) {
        return Err(ImportError::Exists);
    }
    let _gone = answers.send(Ok(answer(Answer::Accepted(v1::ImportAccepted {})))).await;
    let mut reader = Reader::new(offer, shared.text.vocabulary);
    let (transcript, idle) = (Transcript::default(), Duration::ZERO);
    let mut staged = Staged { key, held, transcript, arrival: None, idle, balance };
    loop {
        match next(asks).await? {
            Ask::Chunk(chunk) => match reader.chunk(chunk_of(chunk))? {
                Piece::Part => {}
                Piece::Manifest(manifest) => staged.begin(shared, *manifest).await?,
                Piece::Rows { first, bytes } => {
                    let arrival = staged.arrival.as_ref().ok_or(ImportError::Order)?;
                    arrival.write(first, bytes).await?;
                }
            },
            Ask::End(end) => {
                reader.end(end.checksum)?;
                return Ok(staged);
            }
            Ask::Offer(_) | Ask::Released(_) => return Err(ImportError::Order),
        }
    }
}

impl Staged {
    async fn begin(&mut self, shared: &Shared, manifest: Manifest) -> Result<(), ImportError> {
        let Manifest { transcript, state, memory, idle_ms } = manifest;
        self.transcript = transcript;
        self.idle = Duration::from_millis(idle_ms);
        if let Some(state) = state {
            let (key, idle) = (self.key.clone(), self.idle);
            let vocabulary = shared.text.vocabulary;
            let arriving = Arriving { key, state, memory, idle, vocabulary };
            self.arrival = Some(shared.driver.arrive(arriving).await?);
        }
        Ok(())
    }
}

async fn next(asks: &mut Asks) -> Result<Ask, ImportError> {
    let message = asks.message().await.map_err(|_| ImportError::Ended)?;
    message.and_then(|message| message.step).ok_or(ImportError::Ended)
}
