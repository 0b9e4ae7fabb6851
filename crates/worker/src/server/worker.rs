//! The tonic service: parse, call, convert.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use hawser_common::request::{Extent, Input};
use hawser_common::{Coded, Epoch, ErrorCode, SessionId, SessionKey, TenantId};
use hawser_proto::{convert, deadline, fault, status, trace_parent, v1};
use thiserror::Error;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use super::ranks::state;
use super::sessions::SessionService;
use super::stream::TurnStream;
use super::turns::{Shared, TurnService};
use crate::metrics::TurnWatch;
use crate::session::{History, Transcript, build_prompt};
use crate::turn::TurnError;

/// Metadata key of the session's handle.
const SESSION_KEY: &str = "hawser-session";

#[derive(Debug, Clone)]
pub(crate) struct WorkerService {
    shared: Arc<Shared>,
    turns: TurnService,
    sessions: SessionService,
    model: v1::ModelInfo,
}

#[derive(Debug, Error)]
#[error("this group serves {serves:?}, not {asked:?}")]
struct WrongModel {
    asked: String,
    serves: String,
}

impl Coded for WrongModel {
    fn code(&self) -> ErrorCode {
        ErrorCode::NotFound
    }
}

#[derive(Debug, Error)]
#[error("{field} is missing")]
struct Missing {
    field: &'static str,
}

impl Coded for Missing {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

fn refuse(error: impl Coded) -> Status {
    status(&error)
}

fn required<T>(value: Option<T>, field: &'static str) -> Result<T, Status> {
    value.ok_or_else(|| refuse(Missing { field }))
}

impl WorkerService {
    pub(crate) fn new(shared: Arc<Shared>, model: v1::ModelInfo) -> Self {
        let turns = TurnService::new(Arc::clone(&shared));
        let sessions = SessionService::new(Arc::clone(&shared));
        Self { shared, turns, sessions, model }
    }

    pub(crate) fn clock(&self) -> hawser_common::clock::Clock {
        self.shared.clock.clone()
    }

    /// The route's tenant, once the route may be served.
    fn admit(&self, route: Option<&v1::Route>) -> Result<TenantId, Status> {
        let (tenant, epoch): (TenantId, Epoch) = convert::route(route).map_err(refuse)?;
        self.shared.admit(epoch).map_err(refuse)?;
        Ok(tenant)
    }

    /// As `admit`, for a call that names a session.
    async fn admit_for(&self, route: Option<&v1::Route>, session: &str) -> Result<TenantId, Status> {
        let (tenant, epoch): (TenantId, Epoch) = convert::route(route).map_err(refuse)?;
        if session.is_empty() {
            self.shared.admit(epoch).map_err(refuse)?;
        } else {
            let key = Self::key(&tenant, session)?;
            self.shared.admit_for(epoch, &key).await.map_err(refuse)?;
        }
        Ok(tenant)
    }

    async fn turn(
        &self,
        request: Request<v1::WorkerGenerateRequest>,
        watch: &mut TurnWatch,
    ) -> Result<TurnStream, Status> {
        let limit = deadline(request.metadata()).map(|limit| self.shared.clock.now().after(limit));
        let v1::WorkerGenerateRequest { route, request, continue_from } = request.into_inner();
        let request = required(request, "request")?;
        let tenant = self.admit_for(route.as_ref(), &request.session).await?;
        let turn = convert::turn_request(request).map_err(refuse)?;
        self.check_model(&turn.model)?;
        let begun = continue_from.map(convert::begun).transpose().map_err(refuse)?;
        self.turns.start(tenant, turn, begun, limit, watch).await.map_err(refuse)
    }

    fn check_model(&self, asked: &str) -> Result<(), Status> {
        let serves = &self.shared.model;
        if asked.is_empty() || asked == serves {
            return Ok(());
        }
        Err(refuse(WrongModel { asked: asked.to_owned(), serves: serves.clone() }))
    }

    fn key(tenant: &TenantId, session: &str) -> Result<SessionKey, Status> {
        let session: SessionId = convert::session_id(session).map_err(refuse)?;
        Ok(SessionKey { tenant: tenant.clone(), session })
    }
}

#[tonic::async_trait]
impl v1::worker_server::Worker for WorkerService {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<v1::WorkerGenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let (shared, parent) = (&self.shared, trace_parent(request.metadata()));
        let mut watch = TurnWatch::start(&shared.telemetry, &shared.metrics, &parent, &shared.clock);
        let lines = watch.lines();
        let stream = match self.turn(request, &mut watch).instrument(lines).await {
            Ok(stream) => stream.watched_by(watch),
            Err(status) => {
                watch.failed(fault(&status).code, status.message());
                return Err(status);
            }
        };
        let session = stream.session().map(MetadataValue::try_from);
        let mut response = Response::new(Box::pin(stream.into_frames()) as Self::GenerateStream);
        if let Some(Ok(session)) = session {
            response.metadata_mut().insert(SESSION_KEY, session);
        }
        Ok(response)
    }

    async fn open_session(
        &self,
        request: Request<v1::WorkerOpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let v1::WorkerOpenSessionRequest { route, request } = request.into_inner();
        let (tenant, request) = (self.admit(route.as_ref())?, required(request, "request")?);
        self.check_model(&request.model)?;
        let retention = request.retention.as_ref().map(convert::retention).transpose().map_err(refuse)?;
        let retention = retention.unwrap_or_default();
        let key = Self::key(&tenant, &request.session)?;
        let session = self.sessions.open(key, retention).await.map_err(refuse)?;
        Ok(Response::new(v1::OpenSessionResponse { session: Some(session) }))
    }

    async fn fork_session(
        &self,
        request: Request<v1::WorkerForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        let v1::WorkerForkSessionRequest { route, request } = request.into_inner();
        let (tenant, request) = (self.admit(route.as_ref())?, required(request, "request")?);
        let (from, to) = (Self::key(&tenant, &request.session)?, Self::key(&tenant, &request.fork)?);
        let session = self.sessions.fork(&from, &to).await.map_err(refuse)?;
        Ok(Response::new(v1::ForkSessionResponse { session: Some(session) }))
    }

    async fn close_session(
        &self,
        request: Request<v1::WorkerCloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let v1::WorkerCloseSessionRequest { route, request } = request.into_inner();
        let request = required(request, "request")?;
        let tenant = self.admit_for(route.as_ref(), &request.session).await?;
        let key = Self::key(&tenant, &request.session)?;
        let freed = self.sessions.close(&key).await.map_err(refuse)?;
        Ok(Response::new(v1::CloseSessionResponse { slots_freed: freed as u64 }))
    }

    async fn describe_session(
        &self,
        request: Request<v1::WorkerDescribeSessionRequest>,
    ) -> Result<Response<v1::DescribeSessionResponse>, Status> {
        let v1::WorkerDescribeSessionRequest { route, request } = request.into_inner();
        let request = required(request, "request")?;
        let tenant = self.admit_for(route.as_ref(), &request.session).await?;
        let key = Self::key(&tenant, &request.session)?;
        let session = self.sessions.describe(&key).await.map_err(refuse)?;
        Ok(Response::new(v1::DescribeSessionResponse { session: Some(session) }))
    }

    async fn inspect_session(
        &self,
        request: Request<v1::WorkerInspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        let v1::WorkerInspectSessionRequest { route, request } = request.into_inner();
        let request = required(request, "request")?;
        let tenant = self.admit_for(route.as_ref(), &request.session).await?;
        let key = Self::key(&tenant, &request.session)?;
        self.sessions.inspect(&key).await.map(Response::new).map_err(refuse)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::WorkerListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let v1::WorkerListSessionsRequest { route, request } = request.into_inner();
        // A group that drains has its sessions still.
        let (tenant, epoch) = convert::route(route.as_ref()).map_err(refuse)?;
        self.shared.stands(epoch).map_err(refuse)?;
        let request = required(request, "request")?;
        let (sessions, truncated) = self.sessions.list(&tenant, request.limit).await.map_err(refuse)?;
        Ok(Response::new(v1::ListSessionsResponse { sessions, truncated, silent: Vec::new() }))
    }

    async fn describe_model(
        &self,
        _request: Request<v1::DescribeModelRequest>,
    ) -> Result<Response<v1::DescribeModelResponse>, Status> {
        Ok(Response::new(v1::DescribeModelResponse { model: Some(self.model.clone()) }))
    }

    async fn describe_ranks(
        &self,
        _request: Request<v1::DescribeRanksRequest>,
    ) -> Result<Response<v1::DescribeRanksResponse>, Status> {
        let report = self.shared.driver.report();
        let state = state(&report.borrow(), self.shared.clock.now());
        Ok(Response::new(v1::DescribeRanksResponse { state: Some(state) }))
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        let request = request.into_inner();
        self.check_model(&request.model)?;
        let input = required(request.input, "input")?;
        let text = self.shared.text.clone();
        let work = move || tokenize(&text, input, request.parse_special);
        let done = tokio::task::spawn_blocking(work).await.map_err(|_| refuse(TurnError::TaskFailed))?;
        done.map(Response::new)
    }
}

fn tokenize(
    text: &crate::session::Text,
    input: v1::tokenize_request::Input,
    parse_special: bool,
) -> Result<v1::TokenizeResponse, Status> {
    let no_tokenizer = || refuse(TurnError::Render(hawser_model::text::RenderError::NoTemplate));
    match input {
        v1::tokenize_request::Input::Text(plain) => {
            let tokenizer = text.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
            let ids = if parse_special { tokenizer.encode_special(&plain) } else { tokenizer.encode(&plain) };
            Ok(v1::TokenizeResponse { ids, text: plain })
        }
        v1::tokenize_request::Input::Conversation(conversation) => {
            let (messages, tools) = convert::conversation(conversation).map_err(refuse)?;
            let input = Input::Messages { messages, tools };
            let session = Transcript { history: History::Empty, ..Transcript::default() };
            let prompt = build_prompt(text, &session, input, Extent::Whole, 0).map_err(refuse)?;
            let tokenizer = text.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
            let text = tokenizer.decode(&prompt.tokens);
            Ok(v1::TokenizeResponse { ids: prompt.tokens, text })
        }
    }
}
