//! One turn: placed, opened, relayed.

use std::sync::Arc;

use hawser_common::ErrorCode;
use hawser_proto::fault::{Fault, Origin};
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::{convert, fault, v1};
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Streaming};

use super::{HawserService, route};
use crate::attempts::Replay;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::place::{Call, To};
use crate::relay::{Ends, Relay};
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
        let deadline = Deadline::of(request.metadata(), &self.placer.clock);
        let request = Arc::new(request.into_inner());
        let session = convert::optional_session(&request.session)?.map(Self::key);
        convert::optional_model(&request.model)?;
        let permit = self.admission.enter()?;
        let replay = if session.is_some() && is_delta(&request) { Replay::Delta } else { Replay::Safe };
        let call = Call { session, model: request.model.clone(), to: To::Group, replay, deadline };
        let ask = |target: Target| {
            let request = Arc::clone(&request);
            async move { self.open_turn(&target, &request, deadline).await }
        };
        let ((first, upstream), target, in_flight) = self.placer.place(&call, ask).await?;
        let handle = session_handle(&first);
        let ends = Ends {
            deadline: deadline.left(&self.placer.clock).map(|left| Box::pin(tokio::time::sleep(left))),
            cut: Box::pin(self.cut.clone().cancelled_owned()),
        };
        let relay = Relay::new(target.owner.group, first, upstream, ends, (permit, in_flight));
        let mut response = Response::new(relay);
        if let Some(handle) = handle {
            response.metadata_mut().insert(SESSION_HEADER, handle);
        }
        Ok(response)
    }

    async fn open_turn(
        &self,
        target: &Target,
        request: &v1::GenerateRequest,
        deadline: Deadline,
    ) -> Result<Opened, Fault> {
        let message = v1::WorkerGenerateRequest { route: route(target), request: Some(request.clone()) };
        let opened = self.client(target)?.generate(self.wire(message, deadline)).await;
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
