//! Sessions: open, fork, close, describe, inspect, list.

use futures_util::{StreamExt as _, stream};
use hawser_common::SessionKey;
use hawser_common::group::GroupRecord;
use hawser_proto::{convert, fault, v1};
use tonic::{Request, Response};
use tracing::debug;

use super::{HawserService, route};
use crate::attempts::Replay;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::place::{Call, To};
use crate::view::Target;

/// Most sessions that one call lists.
const MAX_LISTED: u32 = 1_000;
/// Groups asked at the same time.
const FAN_OUT: usize = 16;

/// A session id nobody has: 128 random bits.
fn drawn() -> String {
    format!("s-{:032x}", rand::random::<u128>())
}

/// What the owner of a session is asked, and how its answer is had.
macro_rules! forward {
    ($service:expr, $call:expr, $request:expr, $rpc:ident, $message:ident) => {{
        let (service, call, request) = ($service, &$call, &$request);
        let ask = |target: Target| {
            let message = v1::$message { route: route(&target), request: Some(request.clone()) };
            async move {
                let answer = service.client(&target)?.$rpc(service.wire(message, call.deadline)).await;
                answer.map(Response::into_inner).map_err(|status| fault(&status))
            }
        };
        service.placer.place(call, ask).await.map(|(answer, ..)| answer)
    }};
}

fn to_owner(session: SessionKey, replay: Replay, deadline: Deadline) -> Call {
    Call { session: Some(session), model: String::new(), prefix: None, to: To::Owner, replay, deadline }
}

impl HawserService {
    pub(super) async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<v1::OpenSessionResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        if request.session.is_empty() {
            request.session = drawn();
        }
        let session = Some(Self::key(convert::session_id(&request.session)?));
        convert::optional_model(&request.model)?;
        let _permit = self.admission.enter()?;
        let model = request.model.clone();
        let call = Call { session, model, prefix: None, to: To::Group, replay: Replay::Safe, deadline };
        forward!(self, call, request, open_session, WorkerOpenSessionRequest)
    }

    pub(super) async fn fork(
        &self,
        request: Request<v1::ForkSessionRequest>,
    ) -> Result<v1::ForkSessionResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        let session = Self::key(convert::session_id(&request.session)?);
        if request.fork.is_empty() {
            request.fork = drawn();
        }
        convert::session_id(&request.fork)?;
        let _permit = self.admission.enter()?;
        // A second try would find the id of the fork taken by the first.
        let call = to_owner(session, Replay::Never, deadline);
        forward!(self, call, request, fork_session, WorkerForkSessionRequest)
    }

    pub(super) async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<v1::CloseSessionResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let request = request.into_inner();
        let session = Self::key(convert::session_id(&request.session)?);
        let _permit = self.admission.enter()?;
        let call = to_owner(session, Replay::Safe, deadline);
        match forward!(self, call, request, close_session, WorkerCloseSessionRequest) {
            // Closing what is not there is done.
            Err(RouteError::UnknownSession { .. }) => Ok(v1::CloseSessionResponse { slots_freed: 0 }),
            closed => closed,
        }
    }

    pub(super) async fn describe(
        &self,
        request: Request<v1::DescribeSessionRequest>,
    ) -> Result<v1::DescribeSessionResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let request = request.into_inner();
        let session = Self::key(convert::session_id(&request.session)?);
        let _permit = self.admission.enter()?;
        let call = to_owner(session, Replay::Safe, deadline);
        forward!(self, call, request, describe_session, WorkerDescribeSessionRequest)
    }

    pub(super) async fn inspect(
        &self,
        request: Request<v1::InspectSessionRequest>,
    ) -> Result<v1::InspectSessionResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let request = request.into_inner();
        let session = Self::key(convert::session_id(&request.session)?);
        let _permit = self.admission.enter()?;
        let call = to_owner(session, Replay::Safe, deadline);
        forward!(self, call, request, inspect_session, WorkerInspectSessionRequest)
    }

    /// Every group is asked. One that does not answer in time makes the list incomplete, which it says.
    pub(super) async fn sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<v1::ListSessionsResponse, RouteError> {
        let deadline = self.call_deadline(&request);
        let limit = match request.into_inner().limit {
            0 => MAX_LISTED,
            limit => limit.min(MAX_LISTED),
        };
        let _permit = self.admission.enter()?;
        let groups = self.placer.view.groups();
        let answers = groups.into_iter().map(|group| self.sessions_of(group, limit, deadline));
        let mut answers = stream::iter(answers).buffer_unordered(FAN_OUT);
        let (mut sessions, mut truncated) = (Vec::new(), false);
        while let Some(answer) = answers.next().await {
            match answer {
                Some(listed) => {
                    truncated |= listed.truncated;
                    sessions.extend(listed.sessions);
                }
                None => truncated = true,
            }
        }
        sessions.sort_by(|a: &v1::SessionInfo, b| a.id.cmp(&b.id));
        truncated |= sessions.len() > limit as usize;
        sessions.truncate(limit as usize);
        Ok(v1::ListSessionsResponse { sessions, truncated })
    }

    async fn sessions_of(
        &self,
        group: GroupRecord,
        limit: u32,
        deadline: Deadline,
    ) -> Option<v1::ListSessionsResponse> {
        let target = self.placer.view.target(&group.owner())?;
        let request = Some(v1::ListSessionsRequest { limit });
        let message = v1::WorkerListSessionsRequest { route: route(&target), request };
        let asked = async {
            let listed = self.client(&target)?.list_sessions(self.wire(message, deadline)).await;
            listed.map(Response::into_inner).map_err(|status| fault(&status))
        };
        match deadline.bound(&self.placer.clock, asked).await {
            Some(Ok(listed)) => Some(listed),
            Some(Err(error)) => {
                debug!(group = %group.id, %error, "did not list its sessions");
                None
            }
            None => None,
        }
    }
}
