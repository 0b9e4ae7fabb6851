//! One turn over the wire, through a router or past it, with what is measured of it.

use hawser_client::wire::generate_response::Frame;
use hawser_client::wire::worker_client::WorkerClient;
use hawser_client::{Client, ErrorCode, wire};
use hawser_common::clock::{Clock, Tick};
use hawser_common::{Coded, TenantId};
use tonic::Request;
use tonic::transport::Channel;

use super::drive::TURN_LIMIT;

/// A turn that ended well.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    pub group: String,
    pub epoch: u64,
    pub placed: Tick,
    pub first: Option<Tick>,
    pub ended: Tick,
    pub frames: u64,
    pub tokens: Vec<u32>,
    pub end: wire::Finished,
}

/// A turn that did not.
#[derive(Clone, Debug)]
pub struct Failed {
    pub code: ErrorCode,
    pub text: String,
}

impl Failed {
    fn new(error: &impl Coded) -> Self {
        Self { code: error.code(), text: error.to_string() }
    }

    fn status(status: &tonic::Status) -> Self {
        let code = match status.code() {
            tonic::Code::DataLoss => ErrorCode::SessionLost,
            tonic::Code::Unavailable => ErrorCode::Unavailable,
            tonic::Code::FailedPrecondition => ErrorCode::StaleOwner,
            _ => ErrorCode::Internal,
        };
        Self { code, text: status.to_string() }
    }
}

impl Exchange {
    /// Takes a frame; `true` for the last.
    fn take(&mut self, frame: Frame, now: Tick) -> bool {
        self.frames += 1;
        match frame {
            Frame::Placed(placed) => {
                (self.group, self.epoch, self.placed) = (placed.group, placed.epoch, now);
            }
            Frame::Chunk(chunk) => {
                self.first.get_or_insert(now);
                self.tokens.extend(chunk.token_ids);
            }
            Frame::Finished(end) => {
                (self.end, self.ended) = (end, now);
                return true;
            }
        }
        false
    }
}

/// Through a router.
pub async fn routed(
    client: &Client,
    request: wire::GenerateRequest,
    clock: &Clock,
) -> Result<Exchange, Failed> {
    let opened = client.generate(request, Some(TURN_LIMIT)).await;
    let mut frames = opened.map_err(|error| Failed::new(&error))?;
    let mut exchange = Exchange::default();
    while let Some(frame) = frames.next().await.map_err(|error| Failed::new(&error))? {
        if exchange.take(frame, clock.now()) {
            break;
        }
    }
    Ok(exchange)
}

/// To the leader itself, as a router would ask it.
pub async fn direct(
    mut leader: WorkerClient<Channel>,
    epoch: u64,
    request: wire::GenerateRequest,
    clock: &Clock,
) -> Result<Exchange, Failed> {
    let route = Some(wire::Route { tenant: TenantId::single().to_string(), epoch });
    let mut call =
        Request::new(wire::WorkerGenerateRequest { route, request: Some(request), continue_from: None });
    call.set_timeout(TURN_LIMIT);
    let opened = leader.generate(call).await;
    let mut frames = opened.map_err(|status| Failed::status(&status))?.into_inner();
    let mut exchange = Exchange::default();
    while let Some(message) = frames.message().await.map_err(|status| Failed::status(&status))? {
        let Some(frame) = message.frame else { continue };
        if exchange.take(frame, clock.now()) {
            // To its end: a stream that is dropped earlier is cancelled.
            while let Ok(Some(_)) = frames.message().await {}
            return Ok(exchange);
        }
    }
    Err(Failed { code: ErrorCode::Internal, text: "the stream ended without a result".to_owned() })
}
