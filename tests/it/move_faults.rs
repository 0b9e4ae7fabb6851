//! Moves that break off at every point, on either side. One side is real, the other is played by the test: it has a real
//! registration and real claims, and goes when it is told to.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use hawser_client::Client;
use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::tasks::Tasks;
use hawser_common::{Coded as _, Epoch, ErrorCode, GroupId, SessionId, SessionKey, TenantId};
use hawser_placement::{Registration, RegistrationHandle, Store};
use hawser_proto::v1;
use hawser_proto::v1::handover_server::{Handover, HandoverServer};
use hawser_worker::WorkerOptions;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use v1::import_session_request::Step as Ask;
use v1::import_session_response::Step as Said;

use crate::cluster::{Cluster, LIMIT, eventually, run, token_request};
use crate::moving::said_by_simulated;
use crate::rebalance::{balanced, begin, go_on, letters};

/// Where the group that a session is to go to leaves off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It takes nothing.
    Refuses,
    /// It says no more after the offer.
    SilentAfterOffer,
    /// It ends in the middle of the rows.
    EndsInTransfer,
    /// It says that a chunk is damaged.
    FindsDamage,
    /// It has everything, and ends when it hears of the release.
    EndsAfterRelease,
    /// It has everything, and says no more when it hears of the release.
    SilentAfterRelease,
}

const FAULTS: [Fault; 6] = [
    Fault::Refuses,
    Fault::SilentAfterOffer,
    Fault::EndsInTransfer,
    Fault::FindsDamage,
    Fault::EndsAfterRelease,
    Fault::SilentAfterRelease,
];

/// A group that sessions may be offered to.
#[derive(Clone)]
struct Target {
    fault: Fault,
    /// Sessions that were offered, the one that is gone at the end last.
    offered: Arc<watch::Sender<Option<String>>>,
    ended: Arc<watch::Sender<u32>>,
}

type Answers = mpsc::Sender<Result<v1::ImportSessionResponse, Status>>;

async fn say(answers: &Answers, step: Said) {
    let _gone = answers.send(Ok(v1::ImportSessionResponse { step: Some(step) })).await;
}

impl Target {
    async fn play(&self, mut asks: Streaming<v1::ImportSessionRequest>, answers: &Answers) {
        while let Ok(Some(ask)) = asks.message().await {
            match ask.step.unwrap() {
                Ask::Offer(offer) => {
                    self.offered.send_replace(Some(offer.session.unwrap().session));
                    match self.fault {
                        Fault::Refuses => {
                            let _gone = answers.send(Err(Status::resource_exhausted("no room"))).await;
                            return;
                        }
                        Fault::SilentAfterOffer => {}
                        _ => say(answers, Said::Accepted(v1::ImportAccepted {})).await,
                    }
                }
                Ask::Chunk(_) if self.fault == Fault::EndsInTransfer => return,
                Ask::Chunk(_) if self.fault == Fault::FindsDamage => {
                    let _gone = answers.send(Err(Status::invalid_argument("damaged"))).await;
                    return;
                }
                Ask::Chunk(_) => {}
                Ask::End(_) => say(answers, Said::Staged(v1::ImportStaged {})).await,
                Ask::Released(_) if self.fault == Fault::EndsAfterRelease => return,
                Ask::Released(_) => {}
            }
        }
    }
}

#[tonic::async_trait]
impl Handover for Target {
    type ImportSessionStream = Pin<Box<dyn Stream<Item = Result<v1::ImportSessionResponse, Status>> + Send>>;

    async fn import_session(
        &self,
        request: Request<Streaming<v1::ImportSessionRequest>>,
    ) -> Result<Response<Self::ImportSessionStream>, Status> {
        let (answers, out) = mpsc::channel(4);
        let target = self.clone();
        Tasks::new().spawn(async move {
            target.play(request.into_inner(), &answers).await;
            drop(answers);
            target.ended.send_modify(|ended| *ended += 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }
}

fn record(group: &str, model: &str, address: &str) -> GroupRecord {
    GroupRecord {
        id: GroupId::parse(group).unwrap(),
        model: model.to_owned(),
        address: address.to_owned(),
        tp: 1,
        epoch: Epoch(0),
        capacity: Capacity { slots_total: 100_000, slots_free: 100_000, ..Capacity::default() },
        draining: false,
    }
}

async fn register(store: Arc<dyn Store>, tasks: &Tasks, record: GroupRecord) -> RegistrationHandle {
    let ttl = Duration::from_secs(60);
    Registration::start(store, Clock::system(), tasks, record, ttl).await.unwrap()
}

/// Makes a target of the simulated model part of the cluster.
async fn join(cluster: &Cluster, tasks: &Tasks, fault: Fault) -> (Target, RegistrationHandle) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (offered, ended) = (Arc::new(watch::Sender::new(None)), Arc::new(watch::Sender::new(0)));
    let target = Target { fault, offered, ended };
    let server = tonic::transport::Server::builder()
        .add_service(HandoverServer::new(target.clone()).max_decoding_message_size(64 << 20));
    let stopping = tasks.stopping();
    tasks.spawn(async move {
        server.serve_with_incoming_shutdown(TcpIncoming::from(listener), stopping.cancelled_owned()).await
    });
    let registration = register(cluster.store(), tasks, record("target", "simulated", &address)).await;
    (target, registration)
}

/// A group whose three sessions are more than its pool should hold.
fn pressed(options: &mut WorkerOptions) {
    balanced(options);
    options.kv_slots = 1_025;
    // A move that hangs ends because a turn comes, not because its time is over.
    options.move_timeout_ms = 600_000;
}

const ROWS: usize = 320;

async fn usable(client: &Client, id: &str, fault: Fault) {
    match go_on(client, id).await {
        // Nothing was released: it is as if nobody had asked.
        Ok(answer) => {
            assert_eq!((answer.group.as_str(), answer.usage().prefilled_tokens), ("g0", 2), "{fault:?}");
        }
        Err(error) => {
            let after = [Fault::EndsAfterRelease, Fault::SilentAfterRelease].contains(&fault);
            assert!(after && error.code() == ErrorCode::SessionLost, "{fault:?}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_target_of_a_move_does_the_session_stays_usable() {
    for fault in FAULTS {
        let cluster = Cluster::start(1, pressed).await;
        for n in 0..3 {
            begin(&cluster.client, &format!("s{n}"), n, ROWS).await;
        }
        let tasks = Tasks::new();
        let (target, registration) = join(&cluster, &tasks, fault).await;
        let mut offered = target.offered.subscribe();
        let offer = tokio::time::timeout(LIMIT, offered.wait_for(Option::is_some)).await;
        let id = offer.expect("a session is offered").unwrap().clone().unwrap();
        if fault == Fault::SilentAfterOffer {
            // The turn does not wait for the move: its time would be ten minutes.
            usable(&cluster.client, &id, fault).await;
        }
        let mut ended = target.ended.subscribe();
        let over = tokio::time::timeout(LIMIT, ended.wait_for(|ended| *ended > 0)).await;
        assert!(over.is_ok(), "{fault:?}: the move goes on");
        // It is gone: nobody places sessions on it.
        registration.stop().await;
        cluster.wait_for_groups(1).await;
        usable(&cluster.client, &id, fault).await;
        let seed: usize = id[1..].parse().unwrap();
        let whole = [letters(seed, ROWS), vec![120; 40]].concat();
        let answer = run(&cluster.client, token_request(&id, &whole, 1)).await.unwrap();
        assert_eq!(answer.group, "g0", "{fault:?}");
        assert!(answer.usage().reused_tokens as usize >= ROWS, "{fault:?}: {:?}", answer.usage());
        assert!(go_on(&cluster.client, &id).await.is_ok(), "{fault:?}");
        for n in 0..3 {
            cluster.client.close_session(&format!("s{n}")).await.unwrap();
        }
        cluster.wait_until_empty().await;
        assert!(tasks.shutdown(Duration::from_secs(5)).await);
        cluster.stop().await;
    }
}

/// A group that gives a session away, step by step.
struct Source {
    registration: RegistrationHandle,
    asks: mpsc::Sender<v1::ImportSessionRequest>,
    answers: Streaming<v1::ImportSessionResponse>,
    rest: Vec<Ask>,
}

fn key() -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse("s").unwrap() }
}

impl Source {
    /// It owns the session, and has said everything up to the end of its rows.
    async fn start(cluster: &Cluster, tasks: &Tasks) -> Self {
        let registration =
            register(cluster.store(), tasks, record("source", "other", "http://127.0.0.1:9")).await;
        registration.claim(key()).await.unwrap();
        let address = format!("http://{}", cluster.workers[0].addr());
        let mut client = v1::handover_client::HandoverClient::connect(address).await.unwrap();
        let (asks, out) = mpsc::channel(8);
        let answers = client.import_session(ReceiverStream::new(out)).await.unwrap().into_inner();
        let mut source = Self { registration, asks, answers, rest: said_by_simulated("s") };
        // Offer, two chunks, end; the word of the release is left.
        for ask in source.rest.drain(..4) {
            source.asks.send(v1::ImportSessionRequest { step: Some(ask) }).await.unwrap();
        }
        for _ in 0..2 {
            source.answers.message().await.unwrap().unwrap();
        }
        source
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_dies_after_the_release_leaves_the_session_to_the_target() {
    let cluster = Cluster::start(1, balanced).await;
    let tasks = Tasks::new();
    let Source { registration, asks, answers, .. } = Source::start(&cluster, &tasks).await;
    assert!(registration.release_now(key()).await);
    // It dies before it says so: no word, no connection, no lease.
    drop((asks, answers));
    registration.stop().await;
    let there = async || cluster.client.describe_session("s").await.is_ok();
    eventually("the target has it", there).await;
    let session = cluster.client.describe_session("s").await.unwrap();
    assert_eq!((session.group.as_str(), session.live_tokens, session.turns), ("g0", 2, 1));
    let answer = go_on(&cluster.client, "s").await.unwrap();
    assert_eq!(answer.usage().prefilled_tokens, 2);
    cluster.client.close_session("s").await.unwrap();
    cluster.wait_until_empty().await;
    assert!(tasks.shutdown(Duration::from_secs(5)).await);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_goes_silent_before_the_release_keeps_the_session_until_its_lease_ends() {
    let cluster = Cluster::start(1, balanced).await;
    let tasks = Tasks::new();
    let Source { registration, asks, answers, .. } = Source::start(&cluster, &tasks).await;
    drop((asks, answers));
    // The target asks the store, which says that the session is the source's.
    cluster.wait_until_empty().await;
    registration.stop().await;
    cluster.wait_for_groups(1).await;
    let answer = begin(&cluster.client, "s", 1, 30).await;
    assert_eq!((answer.group.as_str(), answer.usage().reused_tokens), ("g0", 0), "what was staged is gone");
    cluster.client.close_session("s").await.unwrap();
    cluster.wait_until_empty().await;
    assert!(tasks.shutdown(Duration::from_secs(5)).await);
    cluster.stop().await;
}
