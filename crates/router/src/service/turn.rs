//! One turn: placed, opened, relayed, and gone on with elsewhere.

use std::sync::Arc;

use hawser_common::group::Owner;
use hawser_common::telemetry::TraceParent;
use hawser_common::{ErrorCode, TenantId};
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{convert, fault, set_trace_parent, trace_parent, v1};
use prost::Message as _;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Streaming};
use tracing::Instrument as _;

use super::{HawserService, route};
use crate::admission::Permit;
use crate::attempts::Replay;
use crate::continuation::Kept;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::metrics::TurnWatch;
use crate::place::{Call, To};
use crate::prefix::Prefix;
use crate::relay::{Ends, Part, Relay, Reopen, Resume};
use crate::view::Target;

/// Initial metadata that carries the session's handle.
const SESSION_HEADER: &str = "hawser-session";

type Opened = (v1::GenerateResponse, Streaming<v1::GenerateResponse>);

impl HawserService {
    /// Answers once the worker's first frame is there, so that until then the turn can go to another group.
    pub(super) async fn turn(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Relay>, RouteError> {
        let parent = trace_parent(request.metadata());
        let mut watch = TurnWatch::start(&self.telemetry, &self.metrics, &parent, &self.placer.clock);
        let lines = watch.lines();
        match Box::pin(self.placed(request, &mut watch)).instrument(lines).await {
            Ok((part, resume, ends, permit)) => {
                let handle = part.first.as_ref().and_then(session_handle);
                let mut response = Response::new(Relay::new(part, resume, ends, (permit, watch)));
                if let Some(handle) = handle {
                    response.metadata_mut().insert(SESSION_HEADER, handle);
                }
                Ok(response)
            }
            Err(error) => {
                watch.ended(Some(&error), 0);
                Err(error)
            }
        }
    }

    async fn placed(
        &self,
        request: Request<v1::GenerateRequest>,
        watch: &mut TurnWatch,
    ) -> Result<(Part, Option<Resume>, Ends, Permit), RouteError> {
        let deadline = Deadline::of(request.metadata(), &self.placer.clock);
        let mut request = request.into_inner();
        let session = convert::optional_session(&request.session)?.map(Self::key);
        watch.session(session.as_ref().map(|key| &key.session));
        convert::optional_model(&request.model)?;
        let permit = self.admission.enter()?;
        let delta = is_delta(&request);
        let replay = if session.is_some() && delta { Replay::Delta } else { Replay::Safe };
        let prefix = Prefix::of(TenantId::single().as_str(), &request);
        let model = request.model.clone();
        let call = Call { session, model, prefix, to: To::Group, replay, deadline };
        let may_continue = !delta && !request.no_continuation;
        let kept = may_continue.then(|| self.continuations.keep(request.encoded_len())).flatten();
        if kept.is_some() {
            // Another group must draw the same numbers.
            request.sampling.get_or_insert_default().seed.get_or_insert_with(rand::random);
        }
        let request = Arc::new(request);
        let parent = watch.parent().clone();
        let (part, owner) = self.place_turn(&call, &request, None, &parent).await?;
        watch.opened(&owner);
        let resume = kept.map(|kept| self.resume(call, request, kept, parent));
        let ends = Ends {
            deadline: deadline.left(&self.placer.clock).map(|left| Box::pin(tokio::time::sleep(left))),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
        };
        Ok((part, resume, ends, permit))
    }

    /// How the turn goes on after its group was lost: the owner is waited for while its lease may live, since only then
    /// another group can have the session.
    fn resume(
        &self,
        call: Call,
        request: Arc<v1::GenerateRequest>,
        kept: Kept,
        parent: TraceParent,
    ) -> Resume {
        let (service, call) = (self.clone(), Arc::new(call));
        let reopen: Reopen = Box::new(move |point, lost| {
            let (service, call, request) = (service.clone(), Arc::clone(&call), Arc::clone(&request));
            let parent = parent.clone();
            Box::pin(async move {
                service.placer.view.shun(&lost);
                let (part, _) = service.place_turn(&call, &request, Some(point), &parent).await?;
                Ok(part)
            })
        });
        Resume { left: self.continuations.most, kept, reopen }
    }

    async fn place_turn(
        &self,
        call: &Call,
        request: &Arc<v1::GenerateRequest>,
        continue_from: Option<v1::ContinueFrom>,
        parent: &TraceParent,
    ) -> Result<(Part, Owner), RouteError> {
        let ask = |target: Target| {
            let message = v1::WorkerGenerateRequest {
                route: route(&target),
                request: Some(v1::GenerateRequest::clone(request)),
                continue_from: continue_from.clone(),
            };
            async move { self.open_turn(&target, message, call.deadline, parent).await }
        };
        let ((first, upstream), target, in_flight) = self.placer.place(call, ask).await?;
        let group = target.owner.group.clone();
        Ok((Part { group, first: Some(first), upstream, _in_flight: in_flight }, target.owner))
    }

    async fn open_turn(
        &self,
        target: &Target,
        message: v1::WorkerGenerateRequest,
        deadline: Deadline,
        parent: &TraceParent,
    ) -> Result<Opened, Fault> {
        let mut message = self.wire(message, deadline);
        set_trace_parent(message.metadata_mut(), parent);
        let opened = self.client(target)?.generate(message).await;
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

fn is_delta(request: &v1::GenerateRequest) -> bool {
    let extent = match &request.input {
        Some(Input::Conversation(conversation)) => conversation.extent(),
        Some(Input::Tokens(tokens)) => tokens.extent(),
        None => v1::Extent::Unspecified,
    };
    extent == v1::Extent::Delta
}

/// The handle that the worker gave the session, which comes with its first frame.
fn session_handle(first: &v1::GenerateResponse) -> Option<AsciiMetadataValue> {
    match &first.frame {
        Some(Frame::Placed(placed)) if !placed.session.is_empty() => placed.session.parse().ok(),
        _ => None,
    }
}
