//! One turn: placed, opened, relayed, and placed again where its group is lost.

use std::sync::Arc;

use hawser_common::telemetry::TraceParent;
use hawser_common::{ErrorCode, SessionKey, TenantId};
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{convert, fault, set_trace_parent, trace_parent, v1};
use prost::Message as _;
use tonic::{Request, Response, Streaming};
use tracing::Instrument as _;

use super::sessions_of::{Beginning, Begun};
use super::{HawserService, route};
use crate::admission::Permit;
use crate::attempts::Replay;
use crate::continuation::Kept;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::fleet::InFlight;
use crate::metrics::TurnWatch;
use crate::place::{Call, To};
use crate::prefix::Prefix;
use crate::relay::{Ends, Part, Relay, Reopen, Resume};
use crate::view::Target;

type Opened = (v1::GenerateResponse, Streaming<v1::GenerateResponse>);

/// What every group is told that a turn is offered to.
struct Asked {
    request: Arc<v1::GenerateRequest>,
    tenant: TenantId,
    deadline: Deadline,
    parent: TraceParent,
}

/// A turn that a group has taken.
struct Running {
    permit: Permit,
    session: Option<SessionKey>,
    part: Part,
    resume: Option<Resume>,
    ends: Ends,
}

impl HawserService {
    /// Answers once the worker's first frame is there, so that until then the turn can go to another group.
    pub(super) async fn turn(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Relay>, RouteError> {
        let parent = trace_parent(request.metadata());
        let mut watch = TurnWatch::start(&self.telemetry, &self.metrics, &parent, &self.placer.clock);
        let lines = watch.lines();
        // Boxed, since it holds the request: it would be the largest part of every call.
        let running = Box::pin(self.begun(request, &mut watch)).instrument(lines).await;
        let Running { permit, session, part, resume, ends } = match running {
            Ok(running) => running,
            Err(error) => {
                watch.ended(Some(&error), 0);
                return Err(error);
            }
        };
        let mut response = Response::new(Relay::new(part, resume, ends, (permit, watch)));
        if let Some(session) = &session {
            self.announce(response.metadata_mut(), session);
        }
        Ok(response)
    }

    async fn begun(
        &self,
        request: Request<v1::GenerateRequest>,
        watch: &mut TurnWatch,
    ) -> Result<Running, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = Deadline::of(request.metadata(), &self.placer.clock);
        let mut request = request.into_inner();
        let session = match request.session.as_str() {
            "" => None,
            text => Some(self.session(&caller, text)?),
        };
        watch.session(session.as_ref().map(|key| &key.session));
        convert::optional_model(&request.model)?;
        let permit = self.admission.enter(&caller, deadline).await?;
        let delta = is_delta(&request);
        let replay = if session.is_some() && delta { Replay::Delta } else { Replay::Safe };
        let prefix = Prefix::of(caller.tenant.as_str(), &request);
        let kept = self.kept(&mut request, delta);
        let (tenant, parent) = (caller.tenant.clone(), watch.parent().clone());
        let asked = Asked { request: Arc::new(request), tenant, deadline, parent };
        let model = asked.request.model.clone();
        let beginning = Beginning { caller: &caller, session, model: &model, prefix, replay, deadline };
        let ask = |session: Option<&SessionKey>, target: Target| {
            self.open_turn(&asked, named(session), target, None)
        };
        let Begun { answer, session, target, in_flight } = self.begin(beginning, ask).await?;
        watch.opened(&target.owner);
        let part = self.part(answer, session.as_ref(), target, in_flight);
        let ends = Ends {
            deadline: deadline.left(&self.placer.clock).map(|left| Box::pin(tokio::time::sleep(left))),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
        };
        let call = Call { session: session.clone(), model, prefix, to: To::Group, replay, deadline };
        let resume = kept.map(|kept| self.resume(call, asked, kept));
        Ok(Running { permit, session, part, resume, ends })
    }

    /// Room to keep the request for as long as the turn runs, where it may go on elsewhere.
    fn kept(&self, request: &mut v1::GenerateRequest, delta: bool) -> Option<Kept> {
        if delta || request.no_continuation {
            return None;
        }
        let kept = self.continuations.keep(request.encoded_len())?;
        // Another group must draw the same numbers.
        request.sampling.get_or_insert_default().seed.get_or_insert_with(rand::random);
        Some(kept)
    }

    /// How the turn goes on after its group was lost: the owner is waited for while its lease may live, since only then
    /// another group can have the session.
    fn resume(&self, call: Call, asked: Asked, kept: Kept) -> Resume {
        let (service, call, asked) = (self.clone(), Arc::new(call), Arc::new(asked));
        let reopen: Reopen = Box::new(move |point, lost| {
            let (service, call, asked) = (service.clone(), Arc::clone(&call), Arc::clone(&asked));
            Box::pin(async move {
                service.placer.view.shun(&lost);
                let session = call.session.as_ref();
                let ask =
                    |target: Target| service.open_turn(&asked, named(session), target, Some(point.clone()));
                let (opened, target, in_flight) = service.placer.place(&call, ask).await?;
                Ok(service.part(opened, session, target, in_flight))
            })
        });
        Resume { left: self.continuations.most, kept, reopen }
    }

    /// The turn at a group, whose first frame names the session as the client does.
    fn part(
        &self,
        (mut first, upstream): Opened,
        session: Option<&SessionKey>,
        target: Target,
        in_flight: InFlight,
    ) -> Part {
        if let (Some(Frame::Placed(placed)), Some(session)) = (&mut first.frame, session) {
            placed.session = self.handles.name(session);
        }
        Part { group: target.owner.group, first: Some(first), upstream, _in_flight: in_flight }
    }

    /// Offers the turn to a group, from its beginning or from a point on.
    async fn open_turn(
        &self,
        asked: &Asked,
        session: String,
        target: Target,
        continue_from: Option<v1::ContinueFrom>,
    ) -> Result<Opened, Fault> {
        let request = Some(v1::GenerateRequest { session, ..v1::GenerateRequest::clone(&asked.request) });
        let route = route(&asked.tenant, &target);
        let message = v1::WorkerGenerateRequest { route, request, continue_from };
        let mut message = self.wire(message, asked.deadline);
        set_trace_parent(message.metadata_mut(), &asked.parent);
        let opened = self.client(&target)?.generate(message).await;
        let mut stream = opened.map_err(|status| fault(&status))?.into_inner();
        match stream.message().await {
            Ok(Some(frame)) => Ok((frame, stream)),
            Ok(None) => Err(Fault {
                code: ErrorCode::Unavailable,
                message: "its stream ended without a frame".to_owned(),
                owner: None,
                retry_after: None,
                origin: Origin::Transport,
            }),
            Err(status) => Err(fault(&status)),
        }
    }
}

/// The session as workers know it; empty for none.
fn named(session: Option<&SessionKey>) -> String {
    session.map_or_else(String::new, |key| key.session.to_string())
}

fn is_delta(request: &v1::GenerateRequest) -> bool {
    let extent = match &request.input {
        Some(Input::Conversation(conversation)) => conversation.extent(),
        Some(Input::Tokens(tokens)) => tokens.extent(),
        None => v1::Extent::Unspecified,
    };
    extent == v1::Extent::Delta
}
