//! One turn: placed, opened, relayed.

use std::sync::Arc;

use hawser_common::{ErrorCode, SessionKey};
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{convert, fault, set_trace_parent, trace_parent, v1};
use tonic::{Request, Response, Streaming};
use tracing::Instrument as _;

use super::sessions_of::{Beginning, Begun};
use super::{HawserService, route};
use crate::admission::Permit;
use crate::attempts::Replay;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::metrics::TurnWatch;
use crate::relay::{Ends, Relay};
use crate::view::Target;

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
        // Boxed, since it holds the request: it would be the largest part of every call.
        let (permit, mut begun, ends) =
            match Box::pin(self.begun(request, &mut watch)).instrument(lines).await {
                Ok(begun) => begun,
                Err(error) => {
                    watch.ended(Some(&error), 0);
                    return Err(error);
                }
            };
        if let (Some(Frame::Placed(placed)), Some(session)) = (&mut begun.answer.0.frame, &begun.session) {
            placed.session = self.handles.name(session);
        }
        let (first, upstream) = begun.answer;
        let holds = ((permit, begun.in_flight), watch);
        let mut response = Response::new(Relay::new(begun.target.owner.group, first, upstream, ends, holds));
        if let Some(session) = &begun.session {
            self.announce(response.metadata_mut(), session);
        }
        Ok(response)
    }

    async fn begun(
        &self,
        request: Request<v1::GenerateRequest>,
        watch: &mut TurnWatch,
    ) -> Result<(Permit, Begun<Opened>, Ends), RouteError> {
        let caller = self.caller(&request)?;
        let deadline = Deadline::of(request.metadata(), &self.placer.clock);
        let request = Arc::new(request.into_inner());
        let session = match request.session.as_str() {
            "" => None,
            text => Some(self.session(&caller, text)?),
        };
        watch.session(session.as_ref().map(|key| &key.session));
        convert::optional_model(&request.model)?;
        let permit = self.admission.enter(&caller, deadline).await?;
        let replay = if session.is_some() && is_delta(&request) { Replay::Delta } else { Replay::Safe };
        let beginning = Beginning { caller: &caller, session, model: &request.model, replay, deadline };
        let parent = watch.parent().clone();
        let ask = |session: Option<&SessionKey>, target: Target| {
            let session = session.map_or_else(String::new, |key| key.session.to_string());
            let (request, parent) = (Arc::clone(&request), parent.clone());
            let route = route(&caller.tenant, &target);
            async move {
                let request = Some(v1::GenerateRequest { session, ..v1::GenerateRequest::clone(&request) });
                let mut message = self.wire(v1::WorkerGenerateRequest { route, request }, deadline);
                set_trace_parent(message.metadata_mut(), &parent);
                self.open_turn(&target, message).await
            }
        };
        let begun = self.begin(beginning, ask).await?;
        watch.opened(&begun.target.owner);
        let ends = Ends {
            deadline: deadline.left(&self.placer.clock).map(|left| Box::pin(tokio::time::sleep(left))),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
        };
        Ok((permit, begun, ends))
    }

    async fn open_turn(
        &self,
        target: &Target,
        message: Request<v1::WorkerGenerateRequest>,
    ) -> Result<Opened, Fault> {
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
