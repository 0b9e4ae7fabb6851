use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, pending};
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use hawser_common::Keepalive;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;
use tonic::Status;

use super::*;
use crate::fault::{Origin, fault};
use crate::transport::Dial;

const LIMITS: Limits =
    Limits { connect: Duration::from_secs(2), stream_window: 4 << 10, connection_window: 64 << 10 };
const KEEPALIVE: Keepalive = Keepalive { interval: Duration::from_secs(1), timeout: Duration::from_secs(2) };
const LONG: Duration = Duration::from_secs(30);

type Call = (Request<RecvStream>, SendResponse<Bytes>);
type Server = server::Connection<DuplexStream, Bytes>;

/// What links connect to: each connection's other end comes out of `wires`.
struct Peers {
    wires: mpsc::Receiver<DuplexStream>,
    made: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl Peers {
    fn new() -> (Self, Link) {
        let (sender, wires) = mpsc::channel(8);
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let tasks = Tasks::new();
        let link = link(&tasks, move |_| {
            let (near, far) = duplex(64 << 10);
            count.fetch_add(1, Ordering::Relaxed);
            let sender = sender.clone();
            Box::pin(async move {
                sender.send(far).await.map_err(io::Error::other)?;
                Ok(Box::new(near) as Box<dyn Io>)
            })
        });
        (Self { wires, made, tasks }, link)
    }

    async fn next(&mut self) -> Server {
        server::handshake(self.wires.recv().await.unwrap()).await.unwrap()
    }

    /// Answers every call of every connection with what `answer` makes of it.
    fn serve<F>(mut self, answer: impl Fn(Call) -> F + Clone + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            while let Some(wire) = self.wires.recv().await {
                let (answer, calls) = (answer.clone(), tasks.clone());
                tasks.spawn(async move {
                    let mut server = server::handshake(wire).await.unwrap();
                    while let Some(Ok(call)) = server.accept().await {
                        calls.spawn(answer(call));
                    }
                });
            }
        });
    }
}

fn link(
    tasks: &Tasks,
    reach: impl Fn(tonic::codegen::http::Uri) -> BoxFuture<'static, io::Result<Box<dyn Io>>>
    + Send
    + Sync
    + 'static,
) -> Link {
    let dial = Dial::new(&Default::default(), KEEPALIVE).unwrap();
    Link::new(dial.peer("http://leader:7071", LIMITS, Reach::new(reach)).unwrap(), tasks.clone())
}

fn request(path: &str, body: impl Into<Bytes>) -> Request<Body> {
    let body = http_body_util::Full::new(body.into());
    Request::post(path.to_owned()).body(Body::new(body)).unwrap()
}

async fn whole(answer: Response<Answer>) -> Result<Bytes, h2::Error> {
    Ok(answer.into_body().collect().await?.to_bytes())
}

/// Everything that came, and where to.
async fn echo((request, mut respond): Call) {
    let (head, mut body) = request.into_parts();
    assert_eq!(head.uri.authority().unwrap(), "leader:7071");
    let mut said = head.uri.path().as_bytes().to_vec();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        said.extend_from_slice(&part);
    }
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(said.into(), true).unwrap();
}

fn error(failed: StdError) -> crate::Fault {
    fault(&Status::from_error(failed))
}

#[tokio::test]
async fn calls_that_come_together_share_one_connection_and_arrive_whole() {
    let (peers, link) = Peers::new();
    let made = Arc::clone(&peers.made);
    peers.serve(echo);
    let calls = (0..50usize).map(|call| {
        let mut link = link.clone();
        async move {
            // Far more than the windows hold.
            let body = vec![call as u8; call * 10_000];
            let answer = link.call(request(&format!("/m/{call}"), body.clone())).await.unwrap();
            let said = whole(answer).await.unwrap();
            let path = format!("/m/{call}");
            assert!(said.starts_with(path.as_bytes()) && said[path.len()..] == body, "call {call}");
        }
    });
    join_all(calls).await;
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_failure_to_connect_is_shared_and_the_next_call_tries_again() {
    let (tasks, tried) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&tried);
    let link = link(&tasks, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            // The others come meanwhile.
            tokio::task::yield_now().await;
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens"))
        })
    });
    let failed = join_all((0..5).map(|_| link.clone().call(request("/m", "x")))).await;
    for failed in failed {
        let failed = error(failed.unwrap_err());
        assert_eq!((failed.origin, failed.code), (Origin::Connect, hawser_common::ErrorCode::Unavailable));
        assert!(failed.message.contains("nobody listens"), "{failed}");
    }
    assert_eq!(tried.load(Ordering::Relaxed), 1);
    assert!(link.clone().call(request("/m", "x")).await.is_err());
    assert_eq!(tried.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn connecting_takes_no_longer_than_its_limit_and_does_not_need_who_asked() {
    let (tasks, tried) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&tried);
    let link = link(&tasks, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(pending())
    });
    let impatient = tokio::time::timeout(LIMITS.connect / 2, link.clone().call(request("/m", "x"))).await;
    assert!(impatient.is_err(), "it has given up");
    let failed = error(link.clone().call(request("/m", "x")).await.unwrap_err());
    assert_eq!(failed.origin, Origin::Connect);
    assert!(failed.message.contains("within 2000 ms"), "{failed}");
    assert_eq!(tried.load(Ordering::Relaxed), 1, "the second call waited for the first one's connection");
}

#[tokio::test]
async fn after_a_goodbye_new_calls_have_a_new_connection_and_old_ones_end_well() {
    let (mut peers, link) = Peers::new();
    let tasks = peers.tasks.clone();
    let first = tasks.spawn(link.clone().call(request("/m", "x")));
    let mut server = peers.next().await;
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    server.graceful_shutdown();
    tasks.spawn(async move { poll_fn(|cx| server.poll_closed(cx)).await });
    let first = first.await.unwrap().unwrap();
    // The goodbye takes a ping and its answer before it is final.
    let again = tokio::time::timeout(LONG, async {
        let mut calls = Vec::new();
        loop {
            calls.push(tasks.spawn(link.clone().call(request("/m", "x"))));
            tokio::task::yield_now().await;
            if let Ok(wire) = peers.wires.try_recv() {
                return wire;
            }
        }
    });
    let wire = again.await.expect("calls go on to the connection that ends");
    tasks.spawn(async move {
        let mut server = server::handshake(wire).await.unwrap();
        while let Some(Ok(call)) = server.accept().await {
            echo(call).await;
        }
    });
    let said = whole(link.clone().call(request("/again", "")).await.unwrap()).await.unwrap();
    assert_eq!(said, "/again");
    stream.send_data("old".into(), true).unwrap();
    assert_eq!(whole(first).await.unwrap(), "old");
}

#[tokio::test]
async fn a_connection_that_breaks_fails_its_calls_and_no_later_one() {
    let (mut peers, link) = Peers::new();
    let call = peers.tasks.spawn(link.clone().call(request("/m", "x")));
    let mut server = peers.next().await;
    let taken = server.accept().await.unwrap().unwrap();
    drop(server);
    let failed = error(call.await.unwrap().unwrap_err());
    assert_eq!(
        (failed.origin, failed.code),
        (Origin::Transport, hawser_common::ErrorCode::Unavailable),
        "{failed}"
    );
    drop(taken);
    peers.serve(echo);
    let said = whole(link.clone().call(request("/next", "")).await.unwrap()).await.unwrap();
    assert_eq!(said, "/next");
}

#[tokio::test]
async fn what_nobody_reads_stays_with_the_server() {
    const SIZE: usize = 200 << 10;
    let (peers, link) = Peers::new();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    peers.serve(move |(_, mut respond): Call| {
        let sent = Arc::clone(&count);
        async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            let mut left = SIZE;
            while left > 0 {
                stream.reserve_capacity(left);
                let room = poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap().min(left);
                left -= room;
                sent.fetch_add(room, Ordering::Relaxed);
                stream.send_data(vec![7; room].into(), left == 0).unwrap();
            }
        }
    });
    let answer = link.clone().call(request("/m", "x")).await.unwrap();
    // A second call gets by the first, which is not read, and by then that one has sent all that it may.
    let other = link.clone().call(request("/m", "x")).await.unwrap();
    let window = LIMITS.stream_window as usize;
    tokio::time::timeout(LONG, async {
        while sent.load(Ordering::Relaxed) < 2 * window {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), 2 * window, "no more than the windows of both");
    assert_eq!(whole(answer).await.unwrap().len(), SIZE);
    assert_eq!(whole(other).await.unwrap().len(), SIZE);
}

#[tokio::test]
async fn dropping_a_call_or_its_answer_resets_its_stream_and_no_other() {
    let (peers, link) = Peers::new();
    let (tell, mut told) = mpsc::channel(8);
    peers.serve(move |(request, mut respond): Call| {
        let tell = tell.clone();
        async move {
            match request.uri().path() {
                "/mute" => {
                    tell.send("taken".to_owned()).await.unwrap();
                    let reset = poll_fn(|cx| respond.poll_reset(cx)).await.unwrap();
                    tell.send(format!("mute {}", reset == Reason::CANCEL)).await.unwrap();
                }
                _ => {
                    let mut stream = respond.send_response(Response::new(()), false).unwrap();
                    stream.send_data("x".into(), false).unwrap();
                    let reset = poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
                    tell.send(format!("part {}", reset == Reason::CANCEL)).await.unwrap();
                }
            }
        }
    });
    let mut next = async || tokio::time::timeout(LONG, told.recv()).await.unwrap().unwrap();
    let stays = link.clone().call(request("/stays", "x")).await.unwrap();
    let mut mute = Box::pin(link.clone().call(request("/mute", "x")));
    tokio::select! {
        _ = &mut mute => unreachable!("it is not answered"),
        taken = next() => assert_eq!(taken, "taken"),
    }
    drop(mute);
    assert_eq!(next().await, "mute true");
    let mut part = link.clone().call(request("/part", "x")).await.unwrap().into_body();
    let frame = part.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "x");
    drop(part);
    assert_eq!(next().await, "part true");
    let mut stays = stays.into_body();
    let frame = stays.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "x");
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_sign_of_life_loses_its_connection() {
    let (mut peers, link) = Peers::new();
    let call = peers.tasks.spawn(link.clone().call(request("/m", "x")));
    // It takes the greeting and the call, and then hangs: it is polled no more.
    let mut server = peers.next().await;
    let _taken = server.accept().await.unwrap().unwrap();
    let since = tokio::time::Instant::now();
    let failed = error(call.await.unwrap().unwrap_err());
    assert_eq!(
        (failed.origin, failed.code),
        (Origin::Transport, hawser_common::ErrorCode::Unavailable),
        "{failed}"
    );
    assert!(since.elapsed() <= KEEPALIVE.interval + KEEPALIVE.timeout + Duration::from_millis(10));
    peers.serve(echo);
    assert_eq!(whole(link.clone().call(request("/next", "")).await.unwrap()).await.unwrap(), "/next");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_kept_while_its_peer_answers() {
    let (peers, link) = Peers::new();
    let made = Arc::clone(&peers.made);
    peers.serve(echo);
    for _ in 0..3 {
        tokio::time::sleep(100 * KEEPALIVE.interval).await;
        whole(link.clone().call(request("/m", "")).await.unwrap()).await.unwrap();
    }
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_connection_ends_with_the_last_link_and_its_last_stream() {
    let (mut peers, link) = Peers::new();
    let call = peers.tasks.spawn(link.clone().call(request("/m", "x")));
    let mut server = peers.next().await;
    let (_, mut respond) = server.accept().await.unwrap().unwrap();
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    let closed = peers.tasks.spawn(async move { poll_fn(|cx| server.poll_closed(cx)).await });
    let answer = call.await.unwrap().unwrap();
    drop(link);
    stream.send_data("x".into(), true).unwrap();
    assert_eq!(whole(answer).await.unwrap(), "x", "its stream goes on");
    tokio::time::timeout(LONG, closed).await.expect("the connection stays").unwrap().unwrap();
}

#[tokio::test]
async fn the_connection_ends_with_its_tasks() {
    let (mut peers, link) = Peers::new();
    let call = peers.tasks.spawn(link.clone().call(request("/m", "x")));
    let mut wire = peers.wires.recv().await.unwrap();
    assert!(peers.tasks.shutdown(LONG).await);
    assert!(call.await.unwrap().is_err());
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, wire.read_to_end(&mut rest)).await.expect("the wire stays open").unwrap();
}
