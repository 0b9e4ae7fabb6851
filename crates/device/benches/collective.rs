//! Time of sums across two ranks: `cargo bench -p hawser-device --bench collective [-- <words of case names>]`.
//!
//! 576 values are what a decode step of a small model adds some sixty times, 512 rows of them what a prefill chunk
//! adds, and 49,152 are its logits. The ranks are threads of this process, joined by memory, or by TCP on loopback in
//! plain text or TLS; each needs a core. Rounds are short, so that on a busy machine the best one shows what the code can do. Given are
//! the median and the best round of rank 0, and bytes of values per second and direction in the best one.
#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_device::collective::{Collective, Connection, RankTls, Reduce, TcpRank, ThreadGroup, Values};

const TIMEOUT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 301;
const HIDDEN: usize = 576;
const LOGITS: usize = 49_152;

#[derive(Clone, Copy)]
enum Call {
    Sum(usize),
    Gather(usize),
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, call, repeats) in [
        ("sum of 576", Call::Sum(HIDDEN), 100),
        ("sum of 512x576", Call::Sum(512 * HIDDEN), 3),
        ("gather of 49152", Call::Gather(LOGITS), 10),
    ] {
        let threads = ("threads", threads as fn() -> Vec<Box<dyn Collective>>);
        for (transport, open) in [threads, ("tcp", || tcp(None)), ("tls", || tcp(Some(certificates())))] {
            let name = format!("{transport} 2 {name}");
            if words.iter().all(|word| name.contains(word)) {
                report(&name, call, measure(open(), call, repeats));
            }
        }
    }
}

fn threads() -> Vec<Box<dyn Collective>> {
    let ranks = ThreadGroup::new(2, TIMEOUT).into_iter();
    ranks.map(|rank| Box::new(rank) as Box<dyn Collective>).collect()
}

fn tcp(tls: Option<RankTls>) -> Vec<Box<dyn Collective>> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let spoke = TcpStream::connect(address).expect("the listener is there");
    let (hub, _) = listener.accept().expect("a connection waits");
    let tls = tls.as_ref();
    let (hub, spoke) = std::thread::scope(|scope| {
        let spoke = scope.spawn(move || Connection::dial((spoke, "127.0.0.1"), tls, TIMEOUT));
        let hub = Connection::accept(hub, tls, TIMEOUT).expect("both ends have the same certificates");
        (hub, spoke.join().expect("no rank panics").expect("both ends have the same certificates"))
    });
    let hub = TcpRank::hub(vec![hub], TIMEOUT).expect("two ranks are few");
    let spoke = TcpRank::spoke(1, 2, spoke, TIMEOUT).expect("rank 1 is one of two");
    vec![Box::new(hub), Box::new(spoke)]
}

/// One certificate for loopback, which is its own authority.
fn certificates() -> RankTls {
    let names = vec!["127.0.0.1".to_owned()];
    let own = rcgen::generate_simple_self_signed(names).expect("an address is a name");
    let (cert, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    RankTls::from_pem(cert.as_bytes(), cert.as_bytes(), key.as_bytes()).expect("it was just made")
}

/// Time per call in each round, on rank 0.
fn measure(ranks: Vec<Box<dyn Collective>>, call: Call, repeats: usize) -> Vec<Duration> {
    let job = |mut rank: Box<dyn Collective>| {
        let clock = Clock::system();
        let mut times = Vec::with_capacity(ROUNDS);
        // Sums of zeros stay zeros, however often they are made. Not `vec!` of zeros, which would leave it to the
        // first round to touch the memory.
        let len = match call {
            Call::Sum(len) | Call::Gather(len) => len,
        };
        let mut data = vec![-0.0; len];
        let part = vec![-0.0; len / 2];
        for _ in 0..ROUNDS {
            rank.barrier().expect("no rank fails");
            let start = clock.now();
            for _ in 0..repeats {
                match call {
                    Call::Sum(_) => rank.all_reduce(Values::F32(&mut data), Reduce::Sum),
                    Call::Gather(len) => rank.gather(&part, &[len / 2, len / 2], &mut data),
                }
                .expect("no rank fails");
            }
            times.push(clock.now().since(start) / repeats as u32);
        }
        times
    };
    let mut times = std::thread::scope(|scope| {
        let ranks: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || job(rank))).collect();
        let mut times = ranks.into_iter().map(|rank| rank.join().expect("no rank panics"));
        times.next().expect("there is a rank 0")
    });
    times.sort_unstable();
    times
}

fn report(name: &str, call: Call, times: Vec<Duration>) {
    let (best, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
    let sent = 4 * match call {
        Call::Sum(len) => len,
        Call::Gather(len) => len / 2,
    };
    println!(
        "{name:<28} median {:>8.2} us   best {:>8.2} us   {:>6.2} GB/s",
        median * 1e6,
        best * 1e6,
        sent as f64 / best / 1e9
    );
}
