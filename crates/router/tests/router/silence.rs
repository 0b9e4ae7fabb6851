//! Connections without a frame: kept alive at every hop, and given up where the other end is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::tls::ClientTls;
use hawser_common::{ErrorCode, Keepalive};
use hawser_placement::{EmbeddedOptions, EmbeddedStore};
use hawser_proto::v1::generate_response::Frame;
use hawser_proto::v1::hawser_client::HawserClient;
use hawser_proto::{Dial, fault, v1};
use hawser_router::{Router, RouterHandle, RouterOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::cluster::{LONG, options, placed, request};
use crate::worker::{FakeWorker, Listening, Script, Then};

/// The bytes of an HTTP/2 ping.
const PING_BYTES: u64 = 17;

/// A wire whose bytes are counted, and which can fall silent without being closed.
#[derive(Clone)]
struct Wire {
    to_server: Arc<AtomicU64>,
    to_client: Arc<AtomicU64>,
    cut: watch::Sender<bool>,
}

impl Wire {
    /// Listens and leads to `server`.
    fn to(server: SocketAddr, tasks: &Tasks) -> (Self, SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let wire =
            Self { to_server: Arc::default(), to_client: Arc::default(), cut: watch::Sender::new(false) };
        let (this, more) = (wire.clone(), tasks.clone());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                more.spawn(this.clone().carry(from_client, to_server, Arc::clone(&this.to_server)));
                more.spawn(this.clone().carry(from_server, to_client, Arc::clone(&this.to_client)));
            }
        });
        (wire, addr)
    }

    async fn carry(
        self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        carried: Arc<AtomicU64>,
    ) {
        let mut buffer = [0; 4_096];
        while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
            if *self.cut.borrow() {
                std::future::pending::<()>().await;
            }
            if to.write_all(&buffer[..bytes]).await.is_err() {
                return;
            }
            carried.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Waits until so many more pings, or their answers, went in each direction.
    async fn pings(&self, count: u64) {
        let now = || [&self.to_server, &self.to_client].map(|carried| carried.load(Ordering::Relaxed));
        let before = now();
        let more = async {
            while now().iter().zip(before).any(|(now, before)| now - before < count * PING_BYTES) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, more).await.expect("the connection is silent");
    }
}

/// A client, a router and a worker, with a wire between each two.
struct Hops {
    to_router: Wire,
    to_worker: Wire,
    client: HawserClient<Channel>,
    worker: FakeWorker,
    _router: RouterHandle,
    _store: Arc<EmbeddedStore>,
}

impl Hops {
    async fn start(keepalive: Keepalive) -> Self {
        let tasks = Tasks::new();
        let store = EmbeddedStore::start(Clock::system(), &tasks, EmbeddedOptions::default());
        let options = RouterOptions { keepalive, ..options() };
        let router = Router::start(&options, Arc::clone(&store) as _, None, Clock::system()).unwrap();
        let (wires, taken) = std::sync::mpsc::sync_channel(1);
        let more = tasks.clone();
        let advertise = move |addr| {
            let (wire, addr) = Wire::to(addr, &more);
            wires.send(wire).unwrap();
            format!("http://{addr}")
        };
        let listening = Listening { keepalive, advertise: Some(Box::new(advertise)), ..Listening::default() };
        let worker = FakeWorker::secured("g0", "m", Arc::clone(&store) as _, &tasks, &listening).await;
        assert!(router.wait_for_groups(1, LONG).await);
        let (to_router, addr) = Wire::to(router.addr(), &tasks);
        let dial = Dial::new(&ClientTls::default(), keepalive).unwrap();
        let client = HawserClient::new(dial.endpoint(&format!("http://{addr}")).unwrap().connect_lazy());
        Self { to_router, to_worker: taken.recv().unwrap(), client, worker, _router: router, _store: store }
    }

    /// A turn that has sent all it had to say for now.
    async fn quiet_turn(&mut self, then: Then) -> Streaming<v1::GenerateResponse> {
        self.worker.script(Script { chunks: 2, then, ..Script::default() });
        let mut stream = self.client.generate(request("s")).await.unwrap().into_inner();
        placed(&mut stream).await;
        for _ in 0..2 {
            assert!(matches!(stream.message().await.unwrap().unwrap().frame, Some(Frame::Chunk(_))));
        }
        stream
    }
}

#[tokio::test]
async fn p14_a_turn_without_a_frame_for_many_keepalive_periods_goes_on() {
    let keepalive = Keepalive { interval: Duration::from_millis(20), timeout: LONG };
    let mut hops = Hops::start(keepalive).await;
    let mut stream = hops.quiet_turn(Then::Pause).await;
    // Both ends of both connections ask, far more often than servers that count pings allow, and nobody objects.
    tokio::join!(hops.to_router.pings(100), hops.to_worker.pings(100));
    assert!(stream.message().now_or_never().is_none(), "nothing was said meanwhile");
    hops.worker.go_on.notify_one();
    assert!(matches!(stream.message().await.unwrap().unwrap().frame, Some(Frame::Finished(_))));
    assert!(stream.message().await.unwrap().is_none());
}

#[tokio::test]
async fn p14_a_wire_that_falls_silent_ends_the_turn_with_an_error() {
    let keepalive = Keepalive { interval: Duration::from_millis(50), timeout: Duration::from_millis(500) };
    for near_client in [false, true] {
        let mut hops = Hops::start(keepalive).await;
        let mut stream = hops.quiet_turn(Then::Hang).await;
        let wire = if near_client { &hops.to_router } else { &hops.to_worker };
        wire.cut.send_replace(true);
        let ended = tokio::time::timeout(LONG, stream.message()).await.expect("a dead wire is noticed");
        assert_eq!(fault(&ended.unwrap_err()).code, ErrorCode::Unavailable, "near the client: {near_client}");
        // The worker hears of it too, and stops.
        hops.worker.until(|seen| seen.ended == 1).await;
    }
}
