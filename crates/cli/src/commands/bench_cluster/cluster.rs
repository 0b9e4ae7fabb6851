//! The benchmark's cluster: store, routers and simulated groups in this process, over loopback sockets and real gRPC.
//!
//! Owns a runtime for the store, one for each router and one for all groups, so that the CPU time of each part can be
//! read off its threads. Never holds sessions: that is the load's.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::{join_all, try_join_all};
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_placement::{EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, Store};
use hawser_router::{Router, RouterHandle, RouterOptions};
use hawser_worker::{EngineKind, RemoteStore, Worker, WorkerHandle, WorkerOptions};
use tokio::runtime::Runtime;

use super::history::History;
use super::plan::Plan;
use super::watched::{Calls, Watched};

/// Names of the threads; the kernel keeps 15 bytes of them.
pub const ROUTER_THREADS: &str = "bench-router";
pub const GROUP_THREADS: &str = "bench-group";
pub const STORE_THREADS: &str = "bench-store";

/// Longest wait for groups to be known to routers.
const READY: Duration = Duration::from_secs(60);
/// How long running turns have when a group leaves.
pub const GRACE: Duration = Duration::from_secs(30);
/// Threads on which groups render prompts; those of a hundred groups together.
const BLOCKING_THREADS: usize = 8;
/// Groups that start at the same time.
const STARTING: usize = 16;

/// Where the placement store is.
#[derive(Clone, Debug)]
enum Source {
    /// Served by a router that takes no turns.
    Served(String),
    Etcd(EtcdOptions),
}

impl Source {
    fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match self {
            Self::Served(uri) => Arc::new(RemoteStore::new(uri)?),
            Self::Etcd(options) => Arc::new(EtcdStore::new(options)?),
        })
    }
}

/// Starts groups, and knows what they have in common.
#[derive(Clone, Debug)]
pub struct Groups {
    options: WorkerOptions,
    source: Source,
    pub calls: Arc<Calls>,
    pub history: Arc<History>,
    clock: Clock,
    claims_singly: bool,
}

impl Groups {
    /// Starts the group of this number.
    pub async fn start(&self, number: usize) -> anyhow::Result<WorkerHandle> {
        let (calls, history) = (Arc::clone(&self.calls), Arc::clone(&self.history));
        let (inner, clock) = (self.source.open()?, self.clock.clone());
        let watched = Watched { inner, calls, history, clock, claims_singly: self.claims_singly };
        let options = WorkerOptions { group: format!("group-{number:04}"), ..self.options.clone() };
        let started = Box::pin(Worker::start(options, Arc::new(watched), self.clock.clone())).await;
        started.with_context(|| format!("cannot start group {number}"))
    }
}

/// Everything that runs.
pub struct Cluster {
    pub routers: Vec<RouterHandle>,
    pub workers: Vec<WorkerHandle>,
    pub groups: Groups,
    pub clock: Clock,
    pub group_runtime: Runtime,
    router_runtimes: Vec<Runtime>,
    host: Option<(RouterHandle, Tasks)>,
    store_runtime: Runtime,
}

/// A runtime whose threads have a name.
pub fn runtime(name: &str, threads: usize) -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name(name)
        .enable_all()
        .build()
        .context("cannot start the runtime's threads")
}

fn anywhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

impl Cluster {
    /// Starts what `plan` asks for, over etcd where endpoints are given. Blocks until every router knows every group.
    pub fn start(plan: &Plan, etcd: &[String], clock: &Clock) -> anyhow::Result<Self> {
        let store_runtime = runtime(STORE_THREADS, 1)?;
        let (source, host) = if etcd.is_empty() {
            let (router, tasks) = host(&store_runtime, clock)?;
            (Source::Served(format!("http://{}", router.addr())), Some((router, tasks)))
        } else {
            let prefix =
                format!("/hawser-bench-{}-{}/v1", std::process::id(), hawser_common::clock::unix_seconds());
            (Source::Etcd(EtcdOptions { endpoints: etcd.to_vec(), prefix, ..EtcdOptions::default() }), None)
        };
        let groups = Groups {
            options: worker_options(plan),
            source,
            calls: Arc::default(),
            history: Arc::default(),
            clock: clock.clone(),
            claims_singly: plan.claims_singly,
        };
        let mut cluster = Self {
            routers: Vec::new(),
            workers: Vec::new(),
            groups,
            clock: clock.clone(),
            group_runtime: runtime(GROUP_THREADS, 2)?,
            router_runtimes: Vec::new(),
            host,
            store_runtime,
        };
        for _ in 0..plan.routers {
            cluster.add_router(plan)?;
        }
        Ok(cluster)
    }

    /// Starts one more router and gives it.
    pub fn add_router(&mut self, plan: &Plan) -> anyhow::Result<&RouterHandle> {
        let runtime = runtime(ROUTER_THREADS, plan.router_threads)?;
        let options = RouterOptions {
            listen: anywhere(),
            strategy: plan.strategy,
            max_in_flight: (2 * plan.streams).max(4_096),
            ..RouterOptions::default()
        };
        let guard = runtime.enter();
        let store = self.groups.source.open()?;
        let router =
            Router::start(&options, store, None, self.clock.clone()).context("cannot start a router")?;
        drop(guard);
        self.router_runtimes.push(runtime);
        self.routers.push(router);
        self.routers.last().context("a router was just added")
    }

    /// Starts the groups. Blocks until every router knows all of them.
    pub fn start_groups(&mut self, count: usize) -> anyhow::Result<()> {
        let numbers: Vec<usize> = (0..count).collect();
        for numbers in numbers.chunks(STARTING) {
            let starts = numbers.iter().map(|&number| self.groups.start(number));
            let started = self.group_runtime.block_on(try_join_all(starts))?;
            self.workers.extend(started);
        }
        for router in &self.routers {
            if !self.group_runtime.block_on(router.wait_for_groups(count, READY)) {
                bail!("a router does not know {count} groups after {READY:?}");
            }
        }
        Ok(())
    }

    /// A store of this cluster, whose calls are not counted.
    pub fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        let _guard = self.store_runtime.enter();
        self.groups.source.open()
    }

    /// Stops everything: groups first, so that nobody is missed.
    pub fn stop(self, grace: Duration) {
        let Self { routers, workers, group_runtime, router_runtimes, host, store_runtime, .. } = self;
        group_runtime.block_on(join_all(workers.into_iter().map(|worker| worker.shutdown(grace))));
        for (router, runtime) in routers.into_iter().zip(router_runtimes) {
            runtime.block_on(router.shutdown(Duration::from_secs(2)));
            runtime.shutdown_background();
        }
        if let Some((router, tasks)) = host {
            store_runtime.block_on(router.shutdown(Duration::from_secs(2)));
            store_runtime.block_on(tasks.shutdown(Duration::from_secs(2)));
        }
        group_runtime.shutdown_background();
        store_runtime.shutdown_background();
    }
}

/// A router that nobody sends turns to: it serves the store.
fn host(runtime: &Runtime, clock: &Clock) -> anyhow::Result<(RouterHandle, Tasks)> {
    let _guard = runtime.enter();
    let tasks = Tasks::new();
    let store = EmbeddedStore::start(clock.clone(), &tasks, EmbeddedOptions::served());
    let options = RouterOptions { listen: anywhere(), ..RouterOptions::default() };
    let own: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&store);
    let router =
        Router::start(&options, own, Some(store), clock.clone()).context("cannot serve the store")?;
    Ok((router, tasks))
}

fn worker_options(plan: &Plan) -> WorkerOptions {
    WorkerOptions {
        engine: EngineKind::Simulated,
        simulated: plan.simulated.clone(),
        kv_slots: plan.slots,
        max_running: plan.streams.clamp(32, 4_096),
        max_waiting: plan.streams.clamp(256, 65_536),
        max_sessions: (plan.sessions + plan.streams).max(10_000),
        step_tokens: 2_048,
        mixed_tokens: 512,
        threads: 1,
        ..WorkerOptions::default()
    }
}
