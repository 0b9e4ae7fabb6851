//! A simulated cluster: one host each for the etcd, the routers, the workers and the clients.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hawser_common::GroupId;
use hawser_common::clock::{Clock, Tick};
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_placement::{EtcdOptions, EtcdStore, Store};
use hawser_proto::Reach;
use hawser_router::{Network, Router, RouterOptions};
use hawser_testkit::history::{Entry, Event, Recorder, Rules, check};
use hawser_testkit::{FakeEtcd, Script, ScriptedWorker};
use turmoil::Sim;

use crate::net;

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) routers: usize,
    pub(crate) workers: usize,
    pub(crate) ttl: Duration,
    pub(crate) script: Script,
    /// How finely time passes for the network.
    pub(crate) tick: Duration,
    /// Longest that a message travels; the shortest is a tick.
    pub(crate) latency: Duration,
    /// Simulated time after which a run has failed.
    pub(crate) limit: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            routers: 3,
            workers: 3,
            ttl: Duration::from_secs(5),
            script: Script { tokens: 8, prefill: Duration::from_millis(50), step: Duration::from_millis(50) },
            tick: Duration::from_millis(5),
            latency: Duration::from_millis(15),
            limit: Duration::from_secs(120),
        }
    }
}

impl Shape {
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            tokens: self.script.tokens,
            // Until the next renewal, which is refused.
            after_loss: self.ttl,
            recovery: self.ttl * 5,
        }
    }
}

pub(crate) fn router(i: usize) -> String {
    format!("router-{i}")
}

pub(crate) fn worker(i: usize) -> String {
    format!("worker-{i}")
}

pub(crate) struct Cluster {
    pub(crate) sim: Sim<'static>,
    pub(crate) etcd: FakeEtcd,
    pub(crate) recorder: Recorder,
    pub(crate) shape: Shape,
    elapsed: Arc<AtomicU64>,
}

/// The time that everybody shares: of the host that runs, or, between hosts, as of the last step.
fn shared_time(elapsed: &Arc<AtomicU64>) -> impl Fn() -> Tick + Send + Sync + 'static {
    let elapsed = Arc::clone(elapsed);
    move || {
        let between = || Duration::from_nanos(elapsed.load(Ordering::SeqCst));
        Tick(turmoil::sim_elapsed().unwrap_or_else(between))
    }
}

fn store() -> Arc<dyn Store> {
    let options = EtcdOptions::default();
    Arc::new(EtcdStore::dialled(&options, net::etcd()).expect("the default options are legal"))
}

impl Cluster {
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        let elapsed = Arc::new(AtomicU64::new(0));
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(shape.tick)
            .simulation_duration(shape.limit)
            .min_message_latency(shape.tick.min(shape.latency))
            .max_message_latency(shape.latency)
            .tcp_capacity(4096)
            .enable_random_order()
            .build();
        let (etcd, recorder) = (FakeEtcd::new(shared_time(&elapsed)), Recorder::new(shared_time(&elapsed)));
        let mut cluster = Self { sim, etcd, recorder, shape, elapsed };
        cluster.add_etcd();
        for i in 0..shape.workers {
            cluster.add_worker(i);
        }
        for i in 0..shape.routers {
            cluster.add_router(i, seed);
        }
        cluster
    }

    fn add_etcd(&mut self) {
        let etcd = self.etcd.clone();
        self.sim.host("etcd", move || {
            let etcd = etcd.clone();
            async move {
                etcd.serve(net::listen().await?).await?;
                Ok(())
            }
        });
    }

    fn add_router(&mut self, i: usize, seed: u64) {
        let options = RouterOptions {
            owner_wait_ms: 10_000,
            seed: Some(seed.wrapping_add(i as u64)),
            ..RouterOptions::default()
        };
        self.sim.host(router(i), move || {
            let options = options.clone();
            async move {
                let network = Network {
                    addr: net::addr(),
                    incoming: net::listen().await?,
                    reach: Reach::new(net::reach),
                };
                let _running =
                    Router::serve(&options, (store(), None), Clock::system(), &Telemetry::off(), network)?;
                std::future::pending().await
            }
        });
    }

    fn add_worker(&mut self, i: usize) {
        let (Shape { ttl, script, .. }, recorder) = (self.shape, self.recorder.clone());
        self.sim.host(worker(i), move || {
            let recorder = recorder.clone();
            async move {
                let tasks = Tasks::new();
                let group = GroupId::parse(&worker(i))?;
                let address = format!("http://{}:{}", worker(i), net::PORT);
                let worker = loop {
                    // What starts a worker again when it could not register.
                    let registered = ScriptedWorker::register(
                        (group.clone(), address.clone()),
                        store(),
                        (Clock::system(), &tasks),
                        ttl,
                        (script, recorder.clone()),
                    );
                    if let Ok(worker) = registered.await {
                        break worker;
                    }
                };
                worker.serve(net::listen().await?).await?;
                Ok(())
            }
        });
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// Lets one tick pass; `true` once every client is done.
    ///
    /// # Panics
    /// Where a host fails.
    pub(crate) fn step(&mut self) -> bool {
        let done = self.sim.step().unwrap_or_else(|error| panic!("a host failed: {error}\n{}", self.story()));
        let nanos = u64::try_from(self.sim.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.elapsed.store(nanos, Ordering::SeqCst);
        done
    }

    /// Lets time pass until `time` has passed since the start, or every client is done, which it says.
    pub(crate) fn run_until(&mut self, time: Duration) -> bool {
        while self.elapsed() < time {
            if self.step() {
                return true;
            }
        }
        false
    }

    /// Lets time pass until every client is done.
    pub(crate) fn finish(&mut self) {
        while !self.step() {}
    }

    pub(crate) fn note(&self, what: impl Into<String>) {
        self.recorder.record(Event::Fault { what: what.into() });
    }

    pub(crate) fn history(&self) -> Vec<Entry> {
        self.recorder.history(&self.etcd.trail())
    }

    fn story(&self) -> String {
        self.history().iter().map(|entry| format!("{entry}\n")).collect()
    }

    /// Checks what happened, and gives its fingerprint.
    ///
    /// # Panics
    /// Where a rule is broken.
    pub(crate) fn conclude(&self) -> String {
        let history = self.history();
        let violations = check(self.shape.rules(), &history);
        if !violations.is_empty() {
            let list: String = violations.iter().map(|violation| format!("{violation}\n")).collect();
            panic!("{list}\n{}", self.story());
        }
        let mut hasher = std::hash::DefaultHasher::new();
        self.story().hash(&mut hasher);
        let finished = history
            .iter()
            .filter(|entry| {
                matches!(
                    &entry.event,
                    Event::Ended { end: hawser_testkit::history::End::Finished { .. }, .. }
                )
            })
            .count();
        format!("{:016x}, {} events, {finished} turns finished", hasher.finish(), history.len())
    }
}
