//! One turn: placed, opened, relayed.

use std::sync::Arc;

use hawser_common::telemetry::TraceParent;
use hawser_common::{ErrorCode, GroupId};
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{convert, fault, set_trace_parent, trace_parent, v1};
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Streaming};
use tracing::Instrument as _;

use super::{HawserService, route};
use crate::attempts::Replay;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::metrics::TurnWatch;
use crate::place::{Call, To};
use crate::relay::{Ends, Holds, Relay};
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
        match self.placed(request, &mut watch).instrument(lines).await {
            Ok(((first, upstream), group, ends, holds)) => {
                let handle = session_handle(&first);
                let mut response = Response::new(Relay::new(group, first, upstream, ends, (holds, watch)));
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
    ) -> Result<(Opened, GroupId, Ends, Holds), RouteError> {
        let deadline = Deadline::of(request.metadata(), &self.placer.clock);
        let request = Arc::new(request.into_inner());
        let session = convert::optional_session(&request.session)?.map(Self::key);
        watch.session(session.as_ref().map(|key| &key.session));
        convert::optional_model(&request.model)?;
        let permit = self.admission.enter()?;
        let replay = if session.is_some() && is_delta(&request) { Replay::Delta } else { Replay::Safe };
        let call = Call { session, model: request.model.clone(), to: To::Group, replay, deadline };
        let parent = watch.parent().clone();
        let ask = |target: Target| {
            let (request, parent) = (Arc::clone(&request), parent.clone());
            async move { self.open_turn(&target, &request, deadline, &parent).await }
        };
        let (opened, target, in_flight) = self.placer.place(&call, ask).await?;
        watch.opened(&target.owner);
        let ends = Ends {
            deadline: deadline.left(&self.placer.clock).map(|left| Box::pin(tokio::time::sleep(left))),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
        };
        Ok((opened, target.owner.group, ends, (permit, in_flight)))
    }

    async fn open_turn(
        &self,
        target: &Target,
        request: &v1::GenerateRequest,
        deadline: Deadline,
        parent: &TraceParent,
    ) -> Result<Opened, Fault> {
        let message = v1::WorkerGenerateRequest { route: route(target), request: Some(request.clone()) };
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
