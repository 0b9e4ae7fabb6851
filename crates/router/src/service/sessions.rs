//! Sessions: open, fork, close, describe, inspect, list.

use futures_util::{StreamExt as _, stream};
use hawser_common::group::GroupRecord;
use hawser_common::{SessionKey, TenantId};
use hawser_proto::{convert, fault, v1};
use tonic::{Request, Response};
use tracing::debug;

use super::sessions_of::Beginning;
use super::{HawserService, LATE, PATIENCE, route, silence};
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
    ($service:expr, $caller:expr, $call:expr, $request:expr, $rpc:ident, $message:ident) => {{
        let (service, tenant, call, request) = ($service, &$caller.tenant, &$call, &$request);
        let ask = |target: Target| {
            let message = v1::$message { route: route(tenant, &target), request: Some(request.clone()) };
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
    ) -> Result<Response<v1::OpenSessionResponse>, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        if request.session.is_empty() {
            request.session = drawn();
        }
        let session = Some(self.session(&caller, &request.session)?);
        convert::optional_model(&request.model)?;
        let _permit = self.admission.enter(&caller, deadline).await?;
        let beginning = Beginning {
            caller: &caller,
            session,
            model: &request.model,
            prefix: None,
            replay: Replay::Safe,
            deadline,
        };
        let ask = |session: Option<&SessionKey>, target: Target| {
            let session = session.map_or_else(String::new, |key| key.session.to_string());
            let request = Some(v1::OpenSessionRequest { session, ..request.clone() });
            let message = v1::WorkerOpenSessionRequest { route: route(&caller.tenant, &target), request };
            async move {
                let opened = self.client(&target)?.open_session(self.wire(message, deadline)).await;
                opened.map(Response::into_inner).map_err(|status| fault(&status))
            }
        };
        let begun = self.begin(beginning, ask).await?;
        let mut response = Response::new(begun.answer);
        if let Some(session) = &begun.session {
            self.announce(response.metadata_mut(), session);
        }
        Ok(response)
    }

    pub(super) async fn fork(
        &self,
        request: Request<v1::ForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        let session = self.session(&caller, &request.session)?;
        if request.fork.is_empty() {
            request.fork = drawn();
        }
        let fork = self.session(&caller, &request.fork)?;
        (request.session, request.fork) = (session.session.to_string(), fork.session.to_string());
        let _permit = self.admission.enter(&caller, deadline).await?;
        let opening = self.opening(&caller, &fork, deadline).await?;
        // A second try would find the id of the fork taken by the first.
        let call = to_owner(session, Replay::Never, deadline);
        let forked = forward!(self, caller, call, request, fork_session, WorkerForkSessionRequest)?;
        if let Some(opening) = opening {
            opening.settle();
        }
        let mut response = Response::new(forked);
        self.announce(response.metadata_mut(), &fork);
        Ok(response)
    }

    pub(super) async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<v1::CloseSessionResponse, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        let session = self.session(&caller, &request.session)?;
        request.session = session.session.to_string();
        let _permit = self.admission.enter(&caller, deadline).await?;
        let call = to_owner(session, Replay::Safe, deadline);
        match forward!(self, caller, call, request, close_session, WorkerCloseSessionRequest) {
            // Closing what is not there is done.
            Err(RouteError::UnknownSession { .. }) => Ok(v1::CloseSessionResponse { slots_freed: 0 }),
            closed => closed,
        }
    }

    pub(super) async fn describe(
        &self,
        request: Request<v1::DescribeSessionRequest>,
    ) -> Result<v1::DescribeSessionResponse, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        let session = self.session(&caller, &request.session)?;
        request.session = session.session.to_string();
        let _permit = self.admission.enter(&caller, deadline).await?;
        let call = to_owner(session, Replay::Safe, deadline);
        forward!(self, caller, call, request, describe_session, WorkerDescribeSessionRequest)
    }

    pub(super) async fn inspect(
        &self,
        request: Request<v1::InspectSessionRequest>,
    ) -> Result<v1::InspectSessionResponse, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let mut request = request.into_inner();
        let session = self.session(&caller, &request.session)?;
        request.session = session.session.to_string();
        let _permit = self.admission.enter(&caller, deadline).await?;
        let call = to_owner(session, Replay::Safe, deadline);
        forward!(self, caller, call, request, inspect_session, WorkerInspectSessionRequest)
    }

    /// Every group is asked. One that does not answer in time makes the list incomplete, and is named.
    pub(super) async fn sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<v1::ListSessionsResponse, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let limit = match request.into_inner().limit {
            0 => MAX_LISTED,
            limit => limit.min(MAX_LISTED),
        };
        let _permit = self.admission.enter(&caller, deadline).await?;
        let groups = self.placer.view.groups();
        let tenant = &caller.tenant;
        let answers = groups.into_iter().map(|group| self.sessions_of(tenant, group, limit, deadline));
        let mut answers = stream::iter(answers).buffer_unordered(FAN_OUT);
        let (mut sessions, mut silent, mut truncated) = (Vec::new(), Vec::new(), false);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(listed) => {
                    truncated |= listed.truncated;
                    sessions.extend(listed.sessions);
                }
                Err(group) => silent.push(group),
            }
        }
        silent.sort_by(|a: &v1::SilentGroup, b| a.group.cmp(&b.group));
        sessions.sort_by(|a: &v1::SessionInfo, b| a.id.cmp(&b.id));
        truncated |= sessions.len() > limit as usize || !silent.is_empty();
        sessions.truncate(limit as usize);
        Ok(v1::ListSessionsResponse { sessions, truncated, silent })
    }

    async fn sessions_of(
        &self,
        tenant: &TenantId,
        group: GroupRecord,
        limit: u32,
        deadline: Deadline,
    ) -> Result<v1::ListSessionsResponse, v1::SilentGroup> {
        let silent = |reason: String| {
            debug!(group = %group.id, %reason, "did not list its sessions");
            v1::SilentGroup { group: group.id.to_string(), reason }
        };
        let Some(target) = self.placer.view.target(&group.owner()) else {
            // It has left since, and its sessions with it.
            return Ok(v1::ListSessionsResponse::default());
        };
        let deadline = deadline.at_most(PATIENCE, &self.placer.clock);
        let request = Some(v1::ListSessionsRequest { limit });
        let message = v1::WorkerListSessionsRequest { route: route(tenant, &target), request };
        let asked = async {
            let listed = self.client(&target)?.list_sessions(self.wire(message, deadline)).await;
            listed.map(Response::into_inner).map_err(|status| fault(&status))
        };
        match deadline.bound(&self.placer.clock, asked).await {
            Some(answer) => answer.map_err(|fault| silent(silence(fault))),
            None => Err(silent(LATE.to_owned())),
        }
    }
}
