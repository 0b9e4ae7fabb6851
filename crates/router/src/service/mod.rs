//! The public service: who calls, parse, place, answer. Thin; what can be decided without a connection is decided
//! elsewhere.

mod groups;
mod models;
mod sessions;
mod sessions_of;
mod turn;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_common::telemetry::Telemetry;
use hawser_common::{Coded as _, ErrorCode, SessionKey, TenantId};
use hawser_proto::v1::hawser_server::Hawser;
use hawser_proto::v1::worker_client::WorkerClient;
use hawser_proto::{Fault, Link, status, v1};
use tokio_util::sync::CancellationToken;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::{Request, Response, Status};

use crate::admission::Admission;
use crate::auth::{Auth, Caller};
use crate::continuation::Continuations;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::handle::Handles;
use crate::metrics::RouterMetrics;
use crate::place::Placer;
use crate::quota::opening::Openings;
use crate::relay::Relay;
use crate::upstream::Upstream;
use crate::view::Target;

/// A group that has not answered by then is left out of what is shown to people.
const PATIENCE: Duration = Duration::from_secs(2);
/// Why it is.
const LATE: &str = "it did not answer in time";
/// Initial metadata that carries the session's handle.
const SESSION_HEADER: &str = "hawser-session";

/// Why a group that failed so did not answer: its transport has a timer of its own, with words of its own.
fn silence(fault: Fault) -> String {
    if fault.code == ErrorCode::Deadline { LATE.to_owned() } else { fault.message }
}

#[derive(Clone, Debug)]
pub(crate) struct HawserService {
    pub(crate) placer: Placer,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) auth: Auth,
    pub(crate) handles: Arc<Handles>,
    pub(crate) openings: Arc<Mutex<Openings>>,
    pub(crate) admission: Admission,
    /// Longest that a call other than a turn may take at a group.
    pub(crate) call_timeout: Duration,
    pub(crate) continuations: Continuations,
    /// Ends every stream.
    pub(crate) cut: CancellationToken,
    pub(crate) metrics: RouterMetrics,
    pub(crate) telemetry: Telemetry,
}

impl HawserService {
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, RouteError> {
        self.auth.caller(request.metadata())
    }

    /// Tells the client what to call the session, before anything else is sent.
    fn announce(&self, metadata: &mut MetadataMap, session: &SessionKey) {
        if let Ok(handle) = AsciiMetadataValue::try_from(self.handles.name(session)) {
            metadata.insert(SESSION_HEADER, handle);
        }
    }

    fn client(&self, target: &Target) -> Result<WorkerClient<Link>, Fault> {
        self.upstream.client(&target.address)
    }

    /// The deadline of a call other than a turn.
    fn call_deadline<T>(&self, request: &Request<T>) -> Deadline {
        let clock = &self.placer.clock;
        Deadline::of(request.metadata(), clock).at_most(self.call_timeout, clock)
    }

    /// Answers a call other than a turn.
    fn answer<T>(&self, result: Result<T, RouteError>) -> Result<Response<T>, Status> {
        self.told(result.map(Response::new))
    }

    /// The same, with metadata.
    fn told<T>(&self, result: Result<Response<T>, RouteError>) -> Result<Response<T>, Status> {
        self.metrics.called(result.as_ref().map(drop).map_err(RouteError::code));
        result.map_err(|error| status(&error))
    }

    /// A message for a worker, with what is left of the caller's time.
    fn wire<T>(&self, message: T, deadline: Deadline) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(left) = deadline.left(&self.placer.clock) {
            request.set_timeout(left);
        }
        request
    }
}

fn route(tenant: &TenantId, target: &Target) -> Option<v1::Route> {
    Some(v1::Route { tenant: tenant.to_string(), epoch: target.owner.epoch.0 })
}

#[tonic::async_trait]
impl Hawser for HawserService {
    type GenerateStream = Relay;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        self.turn(request).await.map_err(|error| status(&error))
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        self.told(self.open(request).await)
    }

    async fn fork_session(
        &self,
        request: Request<v1::ForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        self.told(self.fork(request).await)
    }

    async fn close_session(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.answer(self.close(request).await)
    }

    async fn describe_session(
        &self,
        request: Request<v1::DescribeSessionRequest>,
    ) -> Result<Response<v1::DescribeSessionResponse>, Status> {
        self.answer(self.describe(request).await)
    }

    async fn inspect_session(
        &self,
        request: Request<v1::InspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        self.answer(self.inspect(request).await)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        self.answer(self.sessions(request).await)
    }

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        self.answer(self.models(&request).await)
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        self.answer(self.tokens(request).await)
    }

    async fn list_groups(
        &self,
        request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        self.auth.operator(request.metadata()).map_err(|error| status(&error))?;
        Ok(Response::new(self.groups(request.get_ref())))
    }

    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        self.answer(self.group(request).await)
    }
}
