//! A worker without a model, for simulated time: the real registration and the real rules of a turn, around tokens that
//! are their own numbers.
//!
//! The real worker computes on threads that no simulated clock drives. What this one must get right is what a router
//! and a store see of a worker: it serves only while its lease may be relied on, refuses a stale epoch, claims a session
//! before its first token leaves, runs one turn of a session at a time, commits at the end of a turn and not before, and
//! refuses what is only new where it does not hold the rest.

mod refusal;
mod sessions;
mod turn;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::tasks::Tasks;
use hawser_common::{Epoch, GroupId, SessionKey};
use hawser_placement::{Registration, RegistrationHandle, Store, StoreError};
use hawser_proto::v1::worker_server::{Worker, WorkerServer};
use hawser_proto::{convert, status, v1};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use crate::history::{Event, Recorder};
use refusal::Refusal;
use sessions::Sessions;
use turn::Turn;

/// What a worker does with a turn.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Tokens of every answer.
    pub tokens: u32,
    /// From the request to the first token.
    pub prefill: Duration,
    /// Between two tokens.
    pub step: Duration,
}

/// A worker group of one.
#[derive(Clone, Debug)]
pub struct ScriptedWorker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: GroupId,
    registration: RegistrationHandle,
    sessions: Sessions,
    script: Script,
    clock: Clock,
    recorder: Recorder,
}

/// Name of the model that is not there.
pub const MODEL: &str = "script";

impl ScriptedWorker {
    /// Registers the group under `address` in `store`, as [`Registration::start`] does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn register(
        (group, address): (GroupId, String),
        store: Arc<dyn Store>,
        (clock, tasks): (Clock, &Tasks),
        ttl: Duration,
        (script, recorder): (Script, Recorder),
    ) -> Result<Self, StoreError> {
        let capacity = Capacity { slots_total: 1_000_000, slots_free: 1_000_000, ..Capacity::default() };
        let record = GroupRecord {
            id: group.clone(),
            model: MODEL.to_owned(),
            address,
            tp: 1,
            epoch: Epoch(0),
            capacity,
            draining: false,
        };
        let registration = Registration::start(store, clock.clone(), tasks, record, ttl).await?;
        let sessions = Sessions::default();
        Ok(Self { shared: Arc::new(Shared { group, registration, sessions, script, clock, recorder }) })
    }

    #[must_use]
    pub fn registration(&self) -> &RegistrationHandle {
        &self.shared.registration
    }

    /// Serves until the future is dropped or `incoming` ends.
    ///
    /// # Errors
    /// What the server says.
    pub async fn serve<I, IO>(&self, incoming: I) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = std::io::Result<IO>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        Server::builder().add_service(WorkerServer::new(self.clone())).serve_with_incoming(incoming).await
    }
}

impl Shared {
    /// Whether a call that was routed by `epoch` may be served now.
    fn admit(&self, epoch: Epoch) -> Result<(), Refusal> {
        let standing = self.registration.standing();
        if !standing.valid(self.clock.now()) {
            self.recorder.record(Event::Fenced { owner: self.owner(standing.epoch) });
            return Err(Refusal::Fenced);
        }
        if epoch != standing.epoch {
            return Err(Refusal::Stale(self.owner(standing.epoch)));
        }
        Ok(())
    }

    fn owner(&self, epoch: Epoch) -> hawser_common::group::Owner {
        hawser_common::group::Owner { group: self.group.clone(), epoch }
    }
}

type Frames = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

fn not_scripted<T>() -> Result<Response<T>, Status> {
    Err(status(&Refusal::NotScripted))
}

#[tonic::async_trait]
impl Worker for ScriptedWorker {
    type GenerateStream = Frames;

    async fn generate(
        &self,
        request: Request<v1::WorkerGenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let v1::WorkerGenerateRequest { route, request, continue_from } = request.into_inner();
        let (tenant, epoch) = convert::route(route.as_ref()).map_err(|error| status(&error))?;
        self.shared.admit(epoch).map_err(|refusal| status(&refusal))?;
        let request = request.unwrap_or_default();
        let session = convert::session_id(&request.session).map_err(|error| status(&error))?;
        let key = SessionKey { tenant, session };
        let begun = continue_from.map_or(0, |begun| begun.token_ids.len());
        let begun = u32::try_from(begun).unwrap_or(u32::MAX);
        let turn = Turn::start(Arc::clone(&self.shared), key, epoch, &request, begun);
        let turn = turn.await.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(Box::pin(turn.into_frames())))
    }

    async fn open_session(
        &self,
        _request: Request<v1::WorkerOpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        not_scripted()
    }

    async fn fork_session(
        &self,
        _request: Request<v1::WorkerForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        not_scripted()
    }

    async fn close_session(
        &self,
        _request: Request<v1::WorkerCloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        not_scripted()
    }

    async fn describe_session(
        &self,
        _request: Request<v1::WorkerDescribeSessionRequest>,
    ) -> Result<Response<v1::DescribeSessionResponse>, Status> {
        not_scripted()
    }

    async fn inspect_session(
        &self,
        _request: Request<v1::WorkerInspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        not_scripted()
    }

    async fn list_sessions(
        &self,
        _request: Request<v1::WorkerListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        not_scripted()
    }

    async fn describe_model(
        &self,
        _request: Request<v1::DescribeModelRequest>,
    ) -> Result<Response<v1::DescribeModelResponse>, Status> {
        not_scripted()
    }

    async fn describe_ranks(
        &self,
        _request: Request<v1::DescribeRanksRequest>,
    ) -> Result<Response<v1::DescribeRanksResponse>, Status> {
        not_scripted()
    }

    async fn tokenize(
        &self,
        _request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        not_scripted()
    }
}
