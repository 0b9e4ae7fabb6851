use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use half::bf16;

use super::*;

mod faults;
mod script;
mod secured;
mod sums;
mod wire;

use script::{Item, follow};

/// Of groups in which nobody is silent: it never ends a wait, because the watchdog barks first.
const LONG: Duration = Duration::from_secs(600);
/// When a rank that has not ended is taken to hang.
const WATCHDOG: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Single,
    Threads(usize),
    Tcp(usize),
    /// TCP with certificates.
    Tls(usize),
}

const ALL: [Transport; 10] = [
    Transport::Single,
    Transport::Threads(1),
    Transport::Threads(2),
    Transport::Threads(3),
    Transport::Threads(5),
    Transport::Tcp(1),
    Transport::Tcp(2),
    Transport::Tcp(3),
    Transport::Tls(2),
    Transport::Tls(3),
];

/// Those in which ranks can wait for each other.
const JOINED: [Transport; 6] = [
    Transport::Threads(2),
    Transport::Threads(3),
    Transport::Tcp(2),
    Transport::Tcp(3),
    Transport::Tls(2),
    Transport::Tls(3),
];

/// Those that have connections: in plain text, and not.
const SECURED: [bool; 2] = [false, true];

type Rank = Box<dyn Collective>;

impl Transport {
    fn world(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Threads(world) | Self::Tcp(world) | Self::Tls(world) => world,
        }
    }

    fn open(self, timeout: Duration) -> Vec<Rank> {
        match self {
            Self::Single => vec![Box::new(Single::default())],
            Self::Threads(world) => {
                ThreadGroup::new(world, timeout).into_iter().map(|rank| Box::new(rank) as Rank).collect()
            }
            Self::Tcp(world) | Self::Tls(world) => {
                let secured = matches!(self, Self::Tls(_));
                let (hub, spokes): (Vec<_>, Vec<_>) = (1..world).map(|_| connected(secured)).unzip();
                let hub = TcpRank::hub(hub, timeout).unwrap();
                let spokes = spokes.into_iter().enumerate();
                let spokes = spokes.map(|(i, spoke)| TcpRank::spoke(i + 1, world, spoke, timeout).unwrap());
                [hub].into_iter().chain(spokes).map(|rank| Box::new(rank) as Rank).collect()
            }
        }
    }
}

/// Two ends of one connection: the one that was dialled, and the one that dialled.
fn connected(secured: bool) -> (Connection, Connection) {
    let tls = secured.then(secured::own);
    let (dialled, dials) = sockets();
    std::thread::scope(|scope| {
        let spoke = scope.spawn(move || Connection::dial((dials, "127.0.0.1"), tls, WATCHDOG));
        (Connection::accept(dialled, tls, WATCHDOG).unwrap(), spoke.join().unwrap().unwrap())
    })
}

/// As [`connected`], before anything was said.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dials = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, dials)
}

/// Runs `job` for each rank on a thread of its own. Fails if one does not end.
fn run<C: Send + 'static, R: Send + 'static>(
    ranks: Vec<C>,
    job: impl Fn(C) -> R + Send + Sync + 'static,
) -> Vec<std::thread::Result<R>> {
    let job = Arc::new(job);
    let (ended, ends) = sync_channel(ranks.len());
    let mut results: Vec<_> = ranks.iter().map(|_| None).collect();
    for (index, rank) in ranks.into_iter().enumerate() {
        let (job, ended) = (Arc::clone(&job), ended.clone());
        std::thread::spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| job(rank)));
            ended.send((index, result)).unwrap();
        });
    }
    for _ in 0..results.len() {
        let (index, result) = ends.recv_timeout(WATCHDOG).expect("every rank ends");
        results[index] = Some(result);
    }
    results.into_iter().map(|result| result.expect("each rank ends once")).collect()
}

/// As [`run`], where no rank panics.
fn run_all<C: Send + 'static, R: Send + 'static>(
    ranks: Vec<C>,
    job: impl Fn(C) -> R + Send + Sync + 'static,
) -> Vec<R> {
    run(ranks, job)
        .into_iter()
        .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect()
}
