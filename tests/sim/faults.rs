//! What goes wrong in a run, drawn from its seed: when, what, for how long.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cluster::{Cluster, router, worker};

/// Something that breaks, and is mended later.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Messages between two hosts are dropped, both ways.
    Cut(String, String),
    /// Messages are dropped in one direction.
    CutOneWay(String, String),
    /// Messages wait, and arrive when it is over.
    Hold(String, String),
    /// A host is down.
    Crash(String),
    /// The etcd is down, and comes back without its data.
    LoseStore,
    /// The etcd stands still.
    PauseStore,
    /// Watches are silent, and history is forgotten meanwhile.
    Compact,
    /// Watches miss deletions.
    MissDeletions,
}

/// A fault with its time.
#[derive(Clone, Debug)]
struct Planned {
    from: Duration,
    to: Duration,
    fault: Fault,
    begun: bool,
    ended: bool,
}

/// Everything that goes wrong in a run.
pub(crate) struct Plan(Vec<Planned>);

impl Plan {
    /// Between two and nine faults in `from..to`, none of which outlasts `to`.
    pub(crate) fn draw(seed: u64, cluster: &Cluster, (from, to): (Duration, Duration)) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed_fa17);
        let (from, to) = (millis(from), millis(to));
        let count = rng.random_range(2..10);
        let planned = (0..count).map(|_| {
            let begin = rng.random_range(from..to);
            let length = rng.random_range(100..12_000);
            let end = (begin + length).min(to);
            let (from, to) = (Duration::from_millis(begin), Duration::from_millis(end));
            Planned { from, to, fault: fault(&mut rng, cluster), begun: false, ended: false }
        });
        Self(planned.collect())
    }

    pub(crate) fn of(fault: Fault, from: Duration, to: Duration) -> Self {
        Self(vec![Planned { from, to, fault, begun: false, ended: false }])
    }

    /// Does what is due.
    pub(crate) fn apply(&mut self, cluster: &mut Cluster) {
        let now = cluster.elapsed();
        for i in 0..self.0.len() {
            let planned = &mut self.0[i];
            if !planned.begun && planned.from <= now {
                planned.begun = true;
                cluster.note(format!("begins: {:?}", planned.fault));
                begin(cluster, &planned.fault);
            }
            if planned.begun && !planned.ended && planned.to <= now {
                planned.ended = true;
                let fault = planned.fault.clone();
                cluster.note(format!("ends: {fault:?}"));
                end(cluster, &fault);
                // What another fault broke as well stays broken.
                for other in self.0.iter().filter(|other| other.begun && !other.ended) {
                    again(cluster, &other.fault);
                }
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.iter().all(|planned| planned.ended)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn fault(rng: &mut StdRng, cluster: &Cluster) -> Fault {
    let a_router = router(rng.random_range(0..cluster.shape.routers));
    let a_worker = worker(rng.random_range(0..cluster.shape.workers));
    let pair = match rng.random_range(0..3) {
        0 => (a_router.clone(), "etcd".to_owned()),
        1 => (a_worker.clone(), "etcd".to_owned()),
        _ => (a_router.clone(), a_worker.clone()),
    };
    match rng.random_range(0..14) {
        0..3 => Fault::Cut(pair.0, pair.1),
        3 => Fault::CutOneWay(pair.0, pair.1),
        4 => Fault::CutOneWay(pair.1, pair.0),
        5..7 => Fault::Hold(pair.0, pair.1),
        7 => Fault::Crash(a_router),
        8..10 => Fault::Crash(a_worker),
        10 => Fault::Crash("etcd".to_owned()),
        11 => Fault::PauseStore,
        12 => Fault::Compact,
        _ if rng.random_range(0..3) == 0 => Fault::LoseStore,
        _ => Fault::MissDeletions,
    }
}

/// Every host but the etcd and the clients.
fn everybody(cluster: &Cluster) -> Vec<String> {
    let (routers, workers) = (0..cluster.shape.routers, 0..cluster.shape.workers);
    routers.map(router).chain(workers.map(worker)).collect()
}

fn begin(cluster: &mut Cluster, fault: &Fault) {
    match fault {
        Fault::LoseStore => {
            crash(cluster, "etcd");
            cluster.etcd.lost();
            cluster.recorder.record(hawser_testkit::history::Event::StoreLost);
        }
        Fault::Crash(host) => crash(cluster, host),
        Fault::Compact => {
            cluster.etcd.hold_watches(true);
        }
        Fault::Cut(..)
        | Fault::CutOneWay(..)
        | Fault::Hold(..)
        | Fault::PauseStore
        | Fault::MissDeletions => again(cluster, fault),
    }
}

fn crash(cluster: &mut Cluster, host: &str) {
    if cluster.sim.is_host_running(host) {
        cluster.sim.crash(host);
    }
}

/// Puts a fault that lasts back in place.
fn again(cluster: &mut Cluster, fault: &Fault) {
    match fault {
        Fault::Cut(a, b) => cluster.sim.partition(a.as_str(), b.as_str()),
        Fault::CutOneWay(a, b) => cluster.sim.partition_oneway(a.as_str(), b.as_str()),
        Fault::Hold(a, b) => cluster.sim.hold(a.as_str(), b.as_str()),
        Fault::Crash(host) => crash(cluster, host),
        Fault::LoseStore => crash(cluster, "etcd"),
        Fault::PauseStore => {
            cluster.etcd.pause(true);
            for host in everybody(cluster) {
                cluster.sim.hold(host.as_str(), "etcd");
            }
        }
        Fault::Compact => cluster.etcd.hold_watches(true),
        Fault::MissDeletions => cluster.etcd.lose_deletions(true),
    }
}

fn mend(cluster: &Cluster, a: &str, b: &str) {
    cluster.sim.release(a, b);
    cluster.sim.repair(a, b);
}

fn end(cluster: &mut Cluster, fault: &Fault) {
    match fault {
        Fault::Cut(a, b) | Fault::CutOneWay(a, b) | Fault::Hold(a, b) => mend(cluster, a, b),
        Fault::Crash(host) => {
            if host == "etcd" {
                cluster.etcd.restarted();
            }
            restart(cluster, host);
        }
        Fault::LoseStore => restart(cluster, "etcd"),
        Fault::PauseStore => {
            for host in everybody(cluster) {
                mend(cluster, &host, "etcd");
            }
            cluster.etcd.pause(false);
        }
        Fault::Compact => {
            cluster.etcd.compact();
            cluster.etcd.hold_watches(false);
        }
        Fault::MissDeletions => cluster.etcd.lose_deletions(false),
    }
}

fn restart(cluster: &mut Cluster, host: &str) {
    if !cluster.sim.is_host_running(host) {
        cluster.sim.bounce(host);
    }
}
