//! A router for tests: keeps one conversation, as a cluster would, and fails as it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use hawser_common::ErrorCode;
use hawser_common::tasks::Tasks;
use hawser_proto::fault::Origin;
use hawser_proto::v1::generate_request::Input;
use hawser_proto::v1::hawser_server::{Hawser, HawserServer};
use hawser_proto::v1::{self, GenerateResponse, generate_response::Frame};
use hawser_proto::{Fault, status};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The turn is answered and committed.
    Answer,
    /// The cluster forgets the session first; a delta is then refused.
    Forget,
    /// Refused with this code; nothing happens.
    Refuse(ErrorCode),
    /// Placed, one token, then an error: rolled back.
    Break,
    /// Placed, one token, then the end, without the last frame: rolled back.
    Truncate,
    /// Committed, but the caller hears an error of the transport in place of the first frame.
    CommitUnheard,
    /// Placed, then nothing for ever.
    Hang,
    /// A token before the placement.
    Disorder,
}

/// What the fake was asked and what it holds.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub script: VecDeque<Act>,
    pub requests: Vec<v1::GenerateRequest>,
    pub deadlines: Vec<Option<Duration>>,
    pub held: Option<Vec<v1::Message>>,
    pub turns: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fake {
    pub seen: Arc<Mutex<Seen>>,
    pub tasks: Tasks,
}

type Frames = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

impl Fake {
    /// Serves on a free loopback port. What the script leaves open is answered.
    pub(crate) async fn start(script: &[Act]) -> (Self, String) {
        let fake = Self::default();
        fake.seen.lock().unwrap().script = script.iter().copied().collect();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(HawserServer::new(fake.clone()));
        fake.tasks.spawn(server.serve_with_incoming(incoming));
        (fake, format!("http://{address}"))
    }

    pub(crate) fn extents(&self) -> Vec<v1::Extent> {
        let seen = self.seen.lock().unwrap();
        seen.requests.iter().map(|request| chat(request).extent()).collect()
    }

    pub(crate) fn contents(&self) -> Vec<String> {
        let held = self.seen.lock().unwrap().held.clone();
        held.unwrap_or_default().into_iter().map(|message| message.content).collect()
    }
}

fn chat(request: &v1::GenerateRequest) -> v1::Conversation {
    match &request.input {
        Some(Input::Conversation(conversation)) => conversation.clone(),
        other => panic!("a session sends conversations, not {other:?}"),
    }
}

pub(crate) fn answered(code: ErrorCode) -> Status {
    let message = format!("{} as told", code.name());
    status(&Fault { code, message, owner: None, retry_after: None, origin: Origin::Answered })
}

fn frame(frame: Frame) -> Result<GenerateResponse, Status> {
    Ok(GenerateResponse { frame: Some(frame) })
}

fn placed() -> Result<GenerateResponse, Status> {
    frame(Frame::Placed(v1::Placed { group: "g1".into(), epoch: 3, ..Default::default() }))
}

fn token(text: &str) -> Result<GenerateResponse, Status> {
    frame(Frame::Chunk(v1::Chunk { text: text.into(), token_ids: vec![7], logprobs: vec![] }))
}

impl Seen {
    /// Adds the request to what is held; `false` where a delta meets nothing.
    fn merge(&self, request: &v1::GenerateRequest) -> Option<Vec<v1::Message>> {
        let chat = chat(request);
        match chat.extent() {
            v1::Extent::Delta => {
                let mut all = self.held.clone()?;
                all.extend(chat.messages);
                Some(all)
            }
            _ => Some(chat.messages),
        }
    }

    fn commit(&mut self, mut all: Vec<v1::Message>) -> String {
        self.turns += 1;
        let text = format!("answer {}", self.turns);
        all.push(v1::Message {
            role: v1::Role::Assistant.into(),
            content: text.clone(),
            ..Default::default()
        });
        self.held = Some(all);
        text
    }
}

#[tonic::async_trait]
impl Hawser for Fake {
    type GenerateStream = Frames;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Frames>, Status> {
        let mut seen = self.seen.lock().unwrap();
        seen.deadlines.push(hawser_proto::deadline(request.metadata()));
        let request = request.into_inner();
        seen.requests.push(request.clone());
        let act = seen.script.pop_front().unwrap_or(Act::Answer);
        if act == Act::Forget {
            seen.held = None;
        }
        if let Act::Refuse(code) = act {
            return Err(answered(code));
        }
        let Some(all) = seen.merge(&request) else { return Err(answered(ErrorCode::SessionLost)) };
        let frames: Frames = match act {
            Act::Answer | Act::Forget | Act::Refuse(_) => {
                let text = seen.commit(all);
                let (head, tail) = text.split_at(3);
                let usage = v1::Usage {
                    prompt_tokens: 9,
                    reused_tokens: 4,
                    prefilled_tokens: 5,
                    generated_tokens: 2,
                    ..Default::default()
                };
                let timings = v1::Timings {
                    queue_us: 1_000,
                    prefill_us: 2_000,
                    decode_us: 10_000,
                    prune_us: 0,
                    refill_us: 0,
                };
                let finished = v1::Finished {
                    reason: v1::FinishReason::Stop.into(),
                    usage: Some(usage),
                    timings: Some(timings),
                    turn: seen.turns,
                    ..Default::default()
                };
                Box::pin(stream::iter([placed(), token(head), token(tail), frame(Frame::Finished(finished))]))
            }
            Act::Break => {
                Box::pin(stream::iter([placed(), token("half"), Err(answered(ErrorCode::Unavailable))]))
            }
            Act::Truncate => Box::pin(stream::iter([placed(), token("half")])),
            Act::CommitUnheard => {
                seen.commit(all);
                Box::pin(stream::iter([Err(Status::unavailable("connection reset"))]))
            }
            Act::Hang => Box::pin(stream::iter([placed()]).chain(stream::pending())),
            Act::Disorder => Box::pin(stream::iter([token("early")])),
        };
        Ok(Response::new(frames))
    }

    async fn close_session(
        &self,
        _: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let freed = self.seen.lock().unwrap().held.take().map_or(0, |held| held.len() as u64);
        Ok(Response::new(v1::CloseSessionResponse { slots_freed: freed }))
    }

    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        Ok(Response::new(v1::ListGroupsResponse { groups: vec![] }))
    }

    async fn describe_group(
        &self,
        _: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn fork_session(
        &self,
        _: Request<v1::ForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        Ok(Response::new(v1::ForkSessionResponse { session: Some(v1::SessionInfo::default()) }))
    }

    async fn open_session(
        &self,
        _: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn describe_session(
        &self,
        _: Request<v1::DescribeSessionRequest>,
    ) -> Result<Response<v1::DescribeSessionResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn inspect_session(
        &self,
        _: Request<v1::InspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn list_sessions(
        &self,
        _: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn list_models(
        &self,
        _: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }

    async fn tokenize(
        &self,
        _: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        Err(answered(ErrorCode::NotFound))
    }
}
