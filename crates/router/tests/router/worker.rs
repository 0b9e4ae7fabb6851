//! A worker whose turns are made up, but whose registration, claims and connections are real.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{self, StreamExt as _};
use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord, Owner};
use hawser_common::tasks::Tasks;
use hawser_common::tls::ServerTls;
use hawser_common::{Coded, Epoch, ErrorCode, GroupId, Keepalive, SessionId, SessionKey};
use hawser_placement::{Registration, RegistrationHandle, Store};
use hawser_proto::fault::Origin;
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::v1::worker_server::{Worker, WorkerServer};
use hawser_proto::{Fault, convert, status, transport, v1};
use tokio::sync::{Notify, watch};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub(crate) const TTL: Duration = Duration::from_secs(60);

/// What a fake worker does with the next turns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// Refuse before anything happens.
    pub(crate) refuse: Option<ErrorCode>,
    /// Do not answer at all.
    pub(crate) stall: bool,
    /// Tokens of an answer, one a chunk.
    pub(crate) chunks: usize,
    /// Text comes for so many tokens at a time, as with a stop string that is held back.
    pub(crate) lag: usize,
    /// Time between two tokens.
    pub(crate) pace: Duration,
    pub(crate) then: Then,
    /// The next turn breaks after so many tokens, unless another group began it.
    pub(crate) breaks: Option<(usize, Then)>,
    /// A worker of an earlier version: begins anew whatever it is asked.
    pub(crate) is_old: bool,
}

/// How a turn ends after its chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Finish,
    /// Go on for ever without a frame.
    Hang,
    /// Say nothing until the worker is told to go on, then finish.
    Pause,
    /// End the stream without a result.
    Stop,
    Fail(ErrorCode),
}

impl Default for Script {
    fn default() -> Self {
        Self {
            refuse: None,
            stall: false,
            chunks: 3,
            lag: 1,
            pace: Duration::ZERO,
            then: Then::Finish,
            breaks: None,
            is_old: false,
        }
    }
}

/// How a worker listens.
#[derive(Default)]
pub(crate) struct Listening {
    pub(crate) tls: ServerTls,
    pub(crate) keepalive: Keepalive,
    /// What it registers, from where it listens.
    pub(crate) advertise: Option<Box<dyn Fn(SocketAddr) -> String + Send + Sync>>,
}

/// What the outside can see of a fake worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) started: usize,
    pub(crate) ended: usize,
    /// Turns that another group had begun.
    pub(crate) continued: usize,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Clone)]
pub(crate) struct FakeWorker {
    pub(crate) registration: RegistrationHandle,
    model: String,
    script: Arc<Mutex<Script>>,
    sessions: Arc<Mutex<HashMap<SessionKey, u32>>>,
    pub(crate) seen: watch::Sender<Seen>,
    /// Ends the pauses.
    pub(crate) go_on: Arc<Notify>,
    runtime: Arc<Mutex<Option<tokio::runtime::Runtime>>>,
}

fn fault(code: ErrorCode, owner: Option<Owner>) -> Status {
    let message = format!("the fake worker says {}", code.name());
    status(&Fault { code, message, owner, retry_after: None, origin: Origin::Answered })
}

impl FakeWorker {
    /// A worker with a runtime of its own, so that it can be killed with all its connections.
    pub(crate) async fn start(id: &str, model: &str, store: Arc<dyn Store>, tasks: &Tasks) -> Self {
        Self::secured(id, model, store, tasks, &Listening::default()).await
    }

    /// A worker that listens as it is told.
    pub(crate) async fn secured(
        id: &str,
        model: &str,
        store: Arc<dyn Store>,
        tasks: &Tasks,
        listening: &Listening,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let incoming = {
            let _inside = runtime.enter();
            TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap()
        };
        let record = GroupRecord {
            id: GroupId::parse(id).unwrap(),
            model: model.to_owned(),
            address: match &listening.advertise {
                Some(advertise) => advertise(incoming.local_addr().unwrap()),
                None => format!("http://{}", incoming.local_addr().unwrap()),
            },
            tp: 1,
            epoch: Epoch(0),
            capacity: Capacity { slots_total: 1000, slots_free: 1000, ..Capacity::default() },
            draining: false,
        };
        let registration = Registration::start(store, Clock::system(), tasks, record, TTL).await.unwrap();
        let worker = Self {
            registration,
            model: model.to_owned(),
            script: Arc::default(),
            sessions: Arc::default(),
            seen: watch::Sender::new(Seen::default()),
            go_on: Arc::default(),
            runtime: Arc::default(),
        };
        let mut server = transport::server(&listening.tls, listening.keepalive).unwrap();
        let server = server.add_service(WorkerServer::new(worker.clone()));
        runtime.handle().spawn(server.serve_with_incoming(incoming));
        *worker.runtime.lock().unwrap() = Some(runtime);
        worker
    }

    pub(crate) fn id(&self) -> String {
        self.registration.group().to_string()
    }

    pub(crate) fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// Dies with every connection. The lease stays until the registration is stopped.
    pub(crate) fn kill(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }

    /// Waits until `done`.
    pub(crate) async fn until(&self, done: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.subscribe();
        let limit = Duration::from_secs(20);
        *tokio::time::timeout(limit, seen.wait_for(done)).await.expect("the worker never saw it").unwrap()
    }

    /// The session that a route and an id name.
    fn key(route: Option<&v1::Route>, session: &str) -> Result<SessionKey, Status> {
        let (tenant, _) = convert::route(route).map_err(|error| status(&error))?;
        Ok(SessionKey { tenant, session: SessionId::parse(session).unwrap() })
    }

    /// What a worker does before a session's first turn, or any other.
    async fn own(&self, route: Option<&v1::Route>, session: &str) -> Result<(), Status> {
        let (_, epoch) = convert::route(route).map_err(|error| status(&error))?;
        if epoch != self.registration.epoch() {
            let group = self.registration.group().clone();
            return Err(fault(
                ErrorCode::StaleOwner,
                Some(Owner { group, epoch: self.registration.epoch() }),
            ));
        }
        if session.is_empty() {
            return Ok(());
        }
        match self.registration.claim(Self::key(route, session)?).await {
            Ok(_) => Ok(()),
            Err(error) => Err(fault(error.code(), error.owner().cloned())),
        }
    }

    fn serves(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() || model == self.model { Ok(()) } else { Err(fault(ErrorCode::NotFound, None)) }
    }

    fn info(&self, key: &SessionKey) -> v1::SessionInfo {
        let turns = self.sessions.lock().unwrap().get(key).copied().unwrap_or(0);
        v1::SessionInfo { id: key.session.to_string(), group: self.id(), turns, ..Default::default() }
    }
}

/// Counts a turn's end, however it ends.
struct Turn(watch::Sender<Seen>);

impl Turn {
    fn start(seen: &watch::Sender<Seen>, timeout: Option<Duration>) -> Self {
        seen.send_modify(|seen| {
            seen.started += 1;
            seen.timeout = timeout;
        });
        Self(seen.clone())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.ended += 1);
    }
}

/// The n-th token of every answer, whoever generates it.
pub(crate) fn token(n: usize) -> u32 {
    100 + u32::try_from(n).unwrap()
}

/// Text of the tokens up to `n`.
pub(crate) fn text(n: usize) -> String {
    (0..n).map(|i| format!("t{i} ")).collect()
}

/// Of so many tokens, those whose text is not held back.
fn certain(tokens: usize, lag: usize) -> usize {
    tokens - tokens % lag
}

/// The chunk of token `n`: text for the last few tokens at once, or all that is left with the very last.
fn chunk(n: usize, lag: usize, last: bool) -> v1::Chunk {
    let until = if last { n + 1 } else { certain(n + 1, lag) };
    let text = text(until)[text(certain(n, lag)).len()..].to_owned();
    v1::Chunk { text, token_ids: vec![token(n)], ..Default::default() }
}

/// Checks what another group has delivered, and says where to go on.
fn begun(point: &v1::ContinueFrom, lag: usize, total: usize) -> usize {
    let count = point.token_ids.len();
    let expected: Vec<_> = (0..count).map(token).collect();
    assert_eq!(point.token_ids, expected, "tokens in order, each once");
    let with_text = if count == total { count } else { certain(count, lag) };
    assert_eq!(point.text_bytes, text(with_text).len() as u64);
    count
}

fn frame(frame: Frame) -> Result<v1::GenerateResponse, Status> {
    Ok(v1::GenerateResponse { frame: Some(frame) })
}

#[tonic::async_trait]
impl Worker for FakeWorker {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<v1::WorkerGenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let turn = Turn::start(&self.seen, hawser_proto::deadline(request.metadata()));
        let mut script = self.script.lock().unwrap().clone();
        if !script.stall && script.refuse.is_none() {
            self.script.lock().unwrap().breaks = None;
        }
        let message = request.into_inner();
        let request = message.request.unwrap();
        if script.stall {
            std::future::pending::<()>().await;
        }
        if let Some(code) = script.refuse {
            return Err(fault(code, None));
        }
        self.serves(&request.model)?;
        self.own(message.route.as_ref(), &request.session).await?;
        let parsed = convert::turn_request(request.clone()).map_err(|error| status(&error))?;
        let key = match request.session.as_str() {
            "" => None,
            session => Some(Self::key(message.route.as_ref(), session)?),
        };
        if let Some(key) = &key
            && parsed.extent == hawser_common::request::Extent::Delta
            && !self.sessions.lock().unwrap().contains_key(key)
        {
            self.registration.release(key.clone()).await;
            return Err(fault(ErrorCode::SessionLost, None));
        }
        let point = message.continue_from.filter(|_| !script.is_old);
        let from = point.as_ref().map_or(0, |point| begun(point, script.lag, script.chunks));
        if point.is_some() {
            self.seen.send_modify(|seen| seen.continued += 1);
        }
        let mut until = script.chunks;
        if let (Some((after, then)), None) = (script.breaks, &point) {
            (until, script.then) = (after, then);
        }
        let placed = v1::Placed {
            session: request.session.clone(),
            group: self.id(),
            epoch: self.registration.epoch().0,
            model: request.model.clone(),
            continued_tokens: u32::try_from(from).unwrap(),
        };
        let mut frames = vec![frame(Frame::Placed(placed))];
        for n in from..until {
            frames.push(frame(Frame::Chunk(chunk(n, script.lag, n + 1 == script.chunks))));
        }
        let rest = match script.then {
            Then::Finish => {
                let mut sessions = self.sessions.lock().unwrap();
                let turn = key.map_or(1, |key| {
                    let turns = sessions.entry(key).or_default();
                    *turns += 1;
                    *turns
                });
                frames.push(frame(Frame::Finished(v1::Finished { turn, ..Default::default() })));
                stream::empty().boxed()
            }
            Then::Hang => stream::pending().boxed(),
            Then::Pause => {
                let go_on = Arc::clone(&self.go_on);
                let end = async move {
                    go_on.notified().await;
                    frame(Frame::Finished(v1::Finished { turn: 1, ..Default::default() }))
                };
                stream::once(end).boxed()
            }
            Then::Stop => stream::empty().boxed(),
            Then::Fail(code) => stream::iter([Err(fault(code, None))]).boxed(),
        };
        let frames = stream::iter(frames).chain(rest).then(move |frame| {
            let _held = &turn;
            async move {
                if !script.pace.is_zero() {
                    tokio::time::sleep(script.pace).await;
                }
                frame
            }
        });
        Ok(Response::new(frames.boxed()))
    }

    async fn open_session(
        &self,
        request: Request<v1::WorkerOpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        if let Some(code) = self.script.lock().unwrap().refuse {
            return Err(fault(code, None));
        }
        let message = request.into_inner();
        let request = message.request.unwrap();
        self.serves(&request.model)?;
        self.own(message.route.as_ref(), &request.session).await?;
        let key = Self::key(message.route.as_ref(), &request.session)?;
        self.sessions.lock().unwrap().entry(key.clone()).or_default();
        Ok(Response::new(v1::OpenSessionResponse { session: Some(self.info(&key)) }))
    }

    async fn fork_session(
        &self,
        request: Request<v1::WorkerForkSessionRequest>,
    ) -> Result<Response<v1::ForkSessionResponse>, Status> {
        let message = request.into_inner();
        let fork = message.request.unwrap().fork;
        self.own(message.route.as_ref(), &fork).await?;
        let key = Self::key(message.route.as_ref(), &fork)?;
        self.sessions.lock().unwrap().entry(key.clone()).or_default();
        Ok(Response::new(v1::ForkSessionResponse { session: Some(self.info(&key)) }))
    }

    async fn close_session(
        &self,
        request: Request<v1::WorkerCloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let message = request.into_inner();
        let key = Self::key(message.route.as_ref(), &message.request.unwrap().session)?;
        self.sessions.lock().unwrap().remove(&key);
        self.registration.release(key).await;
        Ok(Response::new(v1::CloseSessionResponse { slots_freed: 7 }))
    }

    async fn describe_session(
        &self,
        request: Request<v1::WorkerDescribeSessionRequest>,
    ) -> Result<Response<v1::DescribeSessionResponse>, Status> {
        let message = request.into_inner();
        let key = Self::key(message.route.as_ref(), &message.request.unwrap().session)?;
        Ok(Response::new(v1::DescribeSessionResponse { session: Some(self.info(&key)) }))
    }

    async fn inspect_session(
        &self,
        request: Request<v1::WorkerInspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        let message = request.into_inner();
        let key = Self::key(message.route.as_ref(), &message.request.unwrap().session)?;
        let session = Some(self.info(&key));
        Ok(Response::new(v1::InspectSessionResponse { session, ..Default::default() }))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::WorkerListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let (tenant, _) = convert::route(request.get_ref().route.as_ref()).map_err(|error| status(&error))?;
        let keys: Vec<_> = self.sessions.lock().unwrap().keys().cloned().collect();
        let sessions = keys.iter().filter(|key| key.tenant == tenant).map(|key| self.info(key)).collect();
        Ok(Response::new(v1::ListSessionsResponse { sessions, ..Default::default() }))
    }

    async fn describe_model(
        &self,
        _request: Request<v1::DescribeModelRequest>,
    ) -> Result<Response<v1::DescribeModelResponse>, Status> {
        let model = v1::ModelInfo { architecture: "fake".into(), context_tokens: 99, ..Default::default() };
        Ok(Response::new(v1::DescribeModelResponse { model: Some(model) }))
    }

    async fn describe_ranks(
        &self,
        _request: Request<v1::DescribeRanksRequest>,
    ) -> Result<Response<v1::DescribeRanksResponse>, Status> {
        let state = v1::GroupState { step: 7, ..Default::default() };
        Ok(Response::new(v1::DescribeRanksResponse { state: Some(state) }))
    }

    async fn tokenize(
        &self,
        _request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        Ok(Response::new(v1::TokenizeResponse { ids: vec![1, 2], text: "x".into() }))
    }
}
