//! Routers, workers and a client, started together.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::chat::{Message, Role};
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_placement::conformance::Mirror;
use hawser_placement::{EmbeddedOptions, EmbeddedStore, Store as _};
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::v1::hawser_client::HawserClient;
use hawser_proto::{Fault, fault, v1};
use hawser_router::{Router, RouterHandle, RouterOptions};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::worker::{FakeWorker, text, token};

pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Cluster {
    pub(crate) store: Arc<EmbeddedStore>,
    // Runs the sweeper and the registrations.
    _tasks: Tasks,
    pub(crate) router: RouterHandle,
    pub(crate) client: HawserClient<Channel>,
    pub(crate) workers: Vec<FakeWorker>,
}

pub(crate) fn options() -> RouterOptions {
    let listen = ([127, 0, 0, 1], 0).into();
    RouterOptions { listen, seed: Some(11), connect_timeout_ms: 500, ..RouterOptions::default() }
}

pub(crate) fn channel(router: &RouterHandle) -> Channel {
    Endpoint::from_shared(format!("http://{}", router.addr())).unwrap().connect_lazy()
}

pub(crate) fn client(router: &RouterHandle) -> HawserClient<Channel> {
    HawserClient::new(channel(router))
}

impl Cluster {
    /// Groups g0, g1, … that all serve the model "m".
    pub(crate) async fn start(groups: usize, options: RouterOptions) -> Self {
        let models = vec!["m"; groups];
        Self::with_models(&models, options).await
    }

    pub(crate) async fn with_models(models: &[&str], options: RouterOptions) -> Self {
        let tasks = Tasks::new();
        let store = EmbeddedStore::start(Clock::system(), &tasks, EmbeddedOptions::default());
        let served = Some(Arc::clone(&store));
        let router = Router::start(&options, Arc::clone(&store) as _, served, Clock::system()).unwrap();
        let mut workers = Vec::new();
        for (i, model) in models.iter().enumerate() {
            let id = format!("g{i}");
            workers.push(FakeWorker::start(&id, model, Arc::clone(&store) as _, &tasks).await);
        }
        assert!(router.wait_for_groups(models.len(), LONG).await);
        let client = client(&router);
        Self { store, _tasks: tasks, router, client, workers }
    }

    pub(crate) fn worker(&self, id: &str) -> &FakeWorker {
        self.workers.iter().find(|worker| worker.id() == id).unwrap()
    }

    /// Claims in the store.
    pub(crate) async fn state(&self) -> Mirror {
        let mut mirror = Mirror::default();
        let mut watch = self.store.watch().await.unwrap();
        mirror.until(&mut watch, |mirror| mirror.snapshots == 1).await;
        mirror
    }

    /// Asserts that every call has left the router's counts.
    pub(crate) async fn assert_idle(&self) {
        let idle = || self.router.in_flight() == 0 && self.router.loads().iter().all(|(_, load)| *load == 0);
        let deadline = tokio::time::timeout(LONG, async {
            while !idle() {
                tokio::task::yield_now().await;
            }
        });
        assert!(
            deadline.await.is_ok(),
            "still counted: {} {:?}",
            self.router.in_flight(),
            self.router.loads()
        );
    }

    pub(crate) async fn turn(&self, session: &str) -> Result<Turn, Fault> {
        turn(&mut self.client.clone(), request(session)).await
    }
}

pub(crate) fn request(session: &str) -> v1::GenerateRequest {
    let messages = vec![(&Message::text(Role::User, "hello")).into()];
    let conversation = v1::Conversation { messages, ..Default::default() };
    v1::GenerateRequest {
        session: session.to_owned(),
        input: Some(v1::generate_request::Input::Conversation(conversation)),
        ..Default::default()
    }
}

pub(crate) fn delta(session: &str) -> v1::GenerateRequest {
    let tokens = v1::TokenInput { ids: vec![1], extent: v1::Extent::Delta.into() };
    let input = Some(v1::generate_request::Input::Tokens(tokens));
    v1::GenerateRequest { session: session.to_owned(), input, ..Default::default() }
}

/// What a client saw of a turn that ended well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) group: String,
    pub(crate) header: Option<String>,
    pub(crate) chunks: usize,
    pub(crate) number: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// Groups that went on with it.
    pub(crate) continued: Vec<String>,
}

impl Turn {
    /// An answer of so many tokens, whole: each once and in order, with all their text.
    pub(crate) fn assert_whole(&self, count: usize) {
        assert_eq!(self.tokens, (0..count).map(token).collect::<Vec<_>>());
        assert_eq!(self.text, text(count));
    }
}

/// Reads a turn to its end.
pub(crate) async fn turn(
    client: &mut HawserClient<Channel>,
    request: v1::GenerateRequest,
) -> Result<Turn, Fault> {
    let response = client.generate(request).await.map_err(|status| fault(&status))?;
    let header = response.metadata().get("hawser-session").map(|value| value.to_str().unwrap().to_owned());
    let mut stream = response.into_inner();
    let group = placed(&mut stream).await;
    rest(&mut stream, Turn { group, header, ..Turn::default() }).await
}

/// Reads the rest of a turn.
pub(crate) async fn rest(
    stream: &mut Streaming<v1::GenerateResponse>,
    mut turn: Turn,
) -> Result<Turn, Fault> {
    loop {
        match stream.message().await.map_err(|status| fault(&status))?.and_then(|response| response.frame) {
            Some(Frame::Chunk(chunk)) => {
                turn.chunks += 1;
                turn.tokens.extend(chunk.token_ids);
                turn.text.push_str(&chunk.text);
            }
            Some(Frame::Finished(finished)) => {
                turn.number = finished.turn;
                turn.continued = finished.continued.into_iter().map(|placed| placed.group).collect();
            }
            Some(Frame::Placed(_)) => panic!("placed twice"),
            None if turn.number == 0 => panic!("a short success"),
            None => return Ok(turn),
        }
    }
}

/// Reads the first frame.
pub(crate) async fn placed(stream: &mut Streaming<v1::GenerateResponse>) -> String {
    match stream.message().await.unwrap().and_then(|response| response.frame) {
        Some(Frame::Placed(placed)) => placed.group,
        other => panic!("the first frame is {other:?}"),
    }
}
