//! A hop on loopback between two processes, which holds connections at a chosen point of an HTTP/2 stream.
//!
//! It holds by not forwarding: what it was sent meanwhile is lost where an end goes, as it is with a process that is
//! killed. Whichever end closes, the other one is closed too. Connections that no point was chosen for pass unchanged.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use hawser_common::tasks::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where a connection is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Point {
    /// The client's bytes, after so many.
    Bytes(usize),
    /// The client's bytes, from the server's answer of this number on, which it gets.
    AfterAnswer(usize),
    /// The server's bytes, from its answer of this number on.
    BeforeAnswer(usize),
    /// Nowhere.
    Passes,
}

#[derive(Debug, Default)]
struct State {
    points: VecDeque<Point>,
    held: usize,
    /// Most bytes that a client had sent when the server gave its second answer.
    asked: usize,
}

/// What hop and test know of each other.
#[derive(Clone, Debug)]
struct Gate(Arc<watch::Sender<State>>);

/// In front of one server.
pub(crate) struct Hop {
    gate: Gate,
    uri: String,
    server: watch::Sender<Option<SocketAddr>>,
    _tasks: Tasks,
}

impl Hop {
    /// The server is named later: it is told the hop's address when it starts.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let (gate, tasks) = (Gate(Arc::new(watch::Sender::new(State::default()))), Tasks::new());
        let server = watch::Sender::new(None);
        let (mut named, all, each) = (server.subscribe(), gate.clone(), tasks.clone());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(address) = named.wait_for(Option::is_some).await.ok().and_then(|named| *named)
                else {
                    return;
                };
                let mut point = Point::Passes;
                all.0.send_modify(|state| point = state.points.pop_front().unwrap_or(Point::Passes));
                let gate = all.clone();
                each.spawn(async move {
                    if let Ok(server) = TcpStream::connect(address).await {
                        pass(client, server, gate, point).await;
                    }
                });
            }
        });
        Self { gate, uri, server, _tasks: tasks }
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Where connections go to.
    pub(crate) fn leads_to(&self, uri: &str) {
        let address = uri.strip_prefix("http://").unwrap().parse().unwrap();
        self.server.send_replace(Some(address));
    }

    /// The next connections are held, each at its point.
    pub(crate) fn arm(&self, points: &[Point]) {
        self.gate.0.send_modify(|state| state.points = points.iter().copied().collect());
    }

    /// Until so many are held.
    pub(crate) async fn holds(&self, count: usize) {
        let mut state = self.gate.0.subscribe();
        state.wait_for(|state| state.held >= count).await.expect("the hop is there");
    }

    /// Bytes of a client's side of a move up to its end, as seen on connections that passed.
    pub(crate) fn asked(&self) -> usize {
        self.gate.0.borrow().asked
    }
}

impl Gate {
    /// Nothing goes on from here: until the other end has gone.
    async fn hold(&self, from: &mut OwnedReadHalf) {
        self.0.send_modify(|state| state.held += 1);
        let mut lost = vec![0; 4_096];
        while matches!(from.read(&mut lost).await, Ok(count) if count > 0) {}
    }
}

async fn pass(client: TcpStream, server: TcpStream, gate: Gate, point: Point) {
    let _small = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (asked, stop) = (watch::Sender::new(0), watch::Sender::new(false));
    // Cancel-safe: whichever ends first closes both.
    tokio::select! {
        () = asks(from_client, to_server, &gate, (point, &asked, stop.subscribe())) => {}
        () = answers(from_server, to_client, &gate, (point, &asked, &stop)) => {}
    }
}

type Asking<'a> = (Point, &'a watch::Sender<usize>, watch::Receiver<bool>);

async fn asks(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    gate: &Gate,
    (point, asked, mut stop): Asking<'_>,
) {
    let most = if let Point::Bytes(most) = point { most } else { usize::MAX };
    let mut bytes = vec![0; 16_384];
    loop {
        let left = (most - *asked.borrow()).min(bytes.len());
        if left == 0 || *stop.borrow() {
            return gate.hold(&mut from).await;
        }
        // Cancel-safe: a read that is dropped has taken nothing.
        let count = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => continue,
            count = from.read(&mut bytes[..left]) => count.unwrap_or(0),
        };
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        asked.send_modify(|asked| *asked += count);
    }
}

type Answering<'a> = (Point, &'a watch::Sender<usize>, &'a watch::Sender<bool>);

/// Frame by frame (RFC 9113, section 4.1): a message of a slow stream is one DATA frame.
async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    gate: &Gate,
    (point, asked, stop): Answering<'_>,
) {
    const HEAD: usize = 9;
    let (mut frame, mut answers) = (Vec::new(), 0);
    loop {
        frame.resize(HEAD, 0);
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let len = frame[..3].iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
        let is_answer = frame[3] == 0 && len > 0;
        frame.resize(HEAD + len, 0);
        if from.read_exact(&mut frame[HEAD..]).await.is_err() {
            return;
        }
        answers += usize::from(is_answer);
        if is_answer && answers == 2 {
            let asked = *asked.borrow();
            gate.0.send_modify(|state| state.asked = state.asked.max(asked));
        }
        if is_answer && point == Point::BeforeAnswer(answers) {
            return gate.hold(&mut from).await;
        }
        if is_answer && point == Point::AfterAnswer(answers) {
            // First, so that nothing that follows the answer passes.
            stop.send_replace(true);
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}
