//! The public service: parse, place, answer. Thin; what can be decided without a connection is decided elsewhere.

mod models;
mod sessions;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use hawser_common::telemetry::Telemetry;
use hawser_common::{Coded as _, SessionId, SessionKey, TenantId};
use hawser_proto::v1::hawser_server::Hawser;
use hawser_proto::v1::worker_client::WorkerClient;
use hawser_proto::{Fault, status, v1};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::admission::Admission;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::metrics::RouterMetrics;
use crate::place::Placer;
use crate::relay::Relay;
use crate::upstream::Upstream;
use crate::view::Target;

#[derive(Debug)]
pub(crate) struct HawserService {
    pub(crate) placer: Placer,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) admission: Admission,
    /// Longest that a call other than a turn may take at a group.
    pub(crate) call_timeout: Duration,
    /// Ends every stream.
    pub(crate) cut: CancellationToken,
    pub(crate) metrics: RouterMetrics,
    pub(crate) telemetry: Telemetry,
}

impl HawserService {
    fn key(session: SessionId) -> SessionKey {
        SessionKey { tenant: TenantId::single(), session }
    }

    fn client(&self, target: &Target) -> Result<WorkerClient<Channel>, Fault> {
        self.upstream.client(&target.address)
    }

    /// The deadline of a call other than a turn.
    fn call_deadline<T>(&self, request: &Request<T>) -> Deadline {
        let clock = &self.placer.clock;
        Deadline::of(request.metadata(), clock).at_most(self.call_timeout, clock)
    }

    /// Answers a call other than a turn.
    fn answer<T>(&self, result: Result<T, RouteError>) -> Result<Response<T>, Status> {
        self.metrics.called(result.as_ref().map(drop).map_err(RouteError::code));
        result.map(Response::new).map_err(|error| status(&error))
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

fn route(target: &Target) -> Option<v1::Route> {
    Some(v1::Route { tenant: TenantId::single().to_string(), epoch: target.owner.epoch.0 })
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
        self.answer(self.open(request).await)
    }

    async fn fork_session(
        &self,
        request: Request<v1::ForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        self.answer(self.fork(request).await)
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
        _request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups = self.placer.view.groups().iter().map(Into::into).collect();
        Ok(Response::new(v1::ListGroupsResponse { groups }))
    }
}
