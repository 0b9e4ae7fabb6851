//! A worker group's life: load, register, serve, drain, leave.

mod follow;
mod left;
mod load;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_common::{Coded, Epoch, ErrorCode, GroupId};
use hawser_model::checkpoint::CheckpointError;
use hawser_placement::{PlacementMetrics, Registration, RegistrationHandle, Store, StoreError, Terms};
use hawser_proto::transport::{self, Dial};
use hawser_proto::{FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES, TlsError, v1};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

pub use follow::{FollowerError, follow_leader, follow_leader_observed};
use left::{give_back_taken, look};
pub use load::{LoadError, LoadReport};
use load::{Loaded, load};
use report::{report_capacity, report_health};

use crate::driver::{self, DriverError, DriverHandle, DriverOptions};
use crate::metrics::WorkerMetrics;
use crate::moving::{HandoverService, Moves, Peers, hand_over_all, keep_balance};
use crate::options::{InvalidOptions, WorkerOptions};
use crate::scheduler::Limits;
use crate::server::{SessionService, Shared, WorkerService};
use crate::session::{Sessions, SessionsOptions};

/// How often idle sessions are looked at.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);

/// Longest that a group which starts looks whether its name is free; it registers with it only later.
const NAME_LIMIT: Duration = Duration::from_secs(5);

/// Why a group did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("worker.listen: cannot listen on {address}: {source}; choose another address, or free the port")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("worker.tls: {0}")]
    Tls(#[from] TlsError),
    #[error("worker.peer_tls: {0}")]
    PeerTls(TlsError),
    #[error("cannot register the group: {0}")]
    Register(#[from] StoreError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("cannot build the server: {0}")]
    Server(String),
}

impl Coded for StartError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Options(error) => error.code(),
            Self::Tls(error) | Self::PeerTls(error) => error.code(),
            Self::Load(error) => error.code(),
            Self::Listen { .. } => ErrorCode::Unavailable,
            Self::Register(error) => error.code(),
            Self::Driver(DriverError::Form(error)) => error.code(),
            Self::Driver(DriverError::Thread(_)) | Self::Server(_) => ErrorCode::Internal,
        }
    }
}

/// Starts worker groups.
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// Looks at everything that `options` name, as [`Worker::start`] would, and starts nothing: certificates, model,
    /// tokenizer, sizes. No weights are read, and whether an address is free is not tried. Says why only token ids would be
    /// served, where a leader would serve no more.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn check(options: &WorkerOptions) -> Result<Option<CheckpointError>, StartError> {
        options.validate()?;
        transport::server(&options.tls, options.keepalive)?;
        Dial::new(&options.peer_tls, options.keepalive).map_err(StartError::PeerTls)?;
        Ok(load::check(options)?)
    }

    /// The same, and whether this machine has what they ask for: addresses that are free to listen at, and NCCL. For who
    /// waits for others before [`Worker::start`].
    ///
    /// # Errors
    /// [`StartError`], as it would come later.
    pub fn check_here(options: &WorkerOptions) -> Result<(), StartError> {
        Self::check(options)?;
        let listen = |source| StartError::Listen { address: options.listen, source };
        std::net::TcpListener::bind(options.listen).map_err(listen)?;
        Ok(load::check_here(options)?)
    }

    /// Loads the model, registers the group in `store` and serves until [`WorkerHandle::shutdown`]. A group whose ranks are
    /// not all there is registered once they are ([`WorkerHandle::is_registered`]).
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running or registered then.
    pub async fn start(
        options: WorkerOptions,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Result<WorkerHandle, StartError> {
        Self::start_observed(options, store, clock, &Telemetry::off()).await
    }

    /// The same, under watch.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub async fn start_observed(
        options: WorkerOptions,
        store: Arc<dyn Store>,
        clock: Clock,
        telemetry: &Telemetry,
    ) -> Result<WorkerHandle, StartError> {
        options.validate()?;
        let server = transport::server(&options.tls, options.keepalive)?;
        let dial = Dial::new(&options.peer_tls, options.keepalive).map_err(StartError::PeerTls)?;
        if options.move_sessions && options.tls.is_on() != options.peer_tls.is_on() {
            tracing::warn!(
                "sessions do not move: worker.tls and worker.peer_tls are not both on or both off"
            );
        }
        // The port first: loading a model only to find it taken would be a waste.
        let listener = TcpListener::bind(options.listen)
            .await
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
            .map_err(|source| StartError::Listen { address: options.listen, source })?;
        warn_of_taken(&options.group, &*store).await;
        let loading = options.clone();
        let (timer, tracer) = (clock.clone(), telemetry.tracer.clone());
        let loaded = tokio::task::spawn_blocking(move || load(&loading, &timer, &tracer))
            .await
            .map_err(|error| StartError::Server(error.to_string()))??;
        Self::serve(options, loaded, store, (clock, telemetry), (listener, server, dial)).await
    }

    async fn serve(
        options: WorkerOptions,
        loaded: Loaded,
        store: Arc<dyn Store>,
        (clock, telemetry): (Clock, &Telemetry),
        ((address, listener), server, dial): ((SocketAddr, TcpListener), Server, Dial),
    ) -> Result<WorkerHandle, StartError> {
        let group = GroupId::parse(&options.group).map_err(InvalidOptions::from)?;
        let tasks = Tasks::new();
        let Loaded { formation, text, end_ids, context, slots, archive_slots, model, shape, report } = loaded;
        let limits = Limits {
            step_tokens: options.step_tokens,
            mixed_tokens: options.mixed_tokens,
            max_running: options.max_running,
            max_waiting: options.max_waiting,
            share_prefixes: options.share_prefixes,
        };
        let queue = options.max_waiting + options.max_running;
        let bounds = DriverOptions { limits, slots, archive_slots, queue };
        let meter = telemetry.meter.of_group(&group);
        let metrics = WorkerMetrics::new(&meter);
        let (timer, counters) = (clock.clone(), metrics.clone());
        // Off the runtime's threads: the pool's memory may take a while.
        let forming =
            tokio::task::spawn_blocking(move || driver::spawn_observed(formation, bounds, timer, counters));
        let (driver, thread) = forming.await.map_err(|error| StartError::Server(error.to_string()))??;
        let record = record(&options, &group, &model, address, &driver);
        let ttl = Duration::from_millis(options.lease_ttl_ms);
        let moves = Moves::new(&options, shape, Peers::new(Arc::clone(&store)), dial);
        let (placing, told) = (PlacementMetrics::new(&meter), Arc::clone(&store));
        let registration = if *driver.is_up().borrow() {
            let terms = Terms { ttl, away_limit: options.join_wait };
            Registration::start_observed(store, clock.clone(), &tasks, record, terms, placing).await?
        } else {
            // Followed below: it comes into the cluster once all of its ranks are there.
            Registration::start_suspended(store, clock.clone(), &tasks, record, ttl, placing)
        };
        let sessions = Sessions::new(sessions_options(&options), clock.clone());
        let shared = Arc::new(Shared {
            group: group.clone(),
            model: model.name.clone(),
            text,
            end_ids,
            context,
            usable_slots: slots - 1,
            stream_buffer: options.stream_buffer,
            retention: options.retention.clone(),
            driver,
            sessions,
            registration: registration.clone(),
            moves,
            clock,
            tasks: tasks.clone(),
            draining: CancellationToken::new(),
            turns: TaskTracker::new(),
            metrics,
            telemetry: telemetry.clone(),
        });
        tasks.spawn(report_capacity(Arc::clone(&shared), tasks.stopping()));
        tasks.spawn(give_back_taken(Arc::clone(&shared), told, tasks.stopping()));
        tasks.spawn(forget_idle(Arc::clone(&shared), tasks.stopping()));
        tasks.spawn(follow_group(Arc::clone(&shared), tasks.stopping()));
        tasks.spawn(keep_balance(Arc::clone(&shared), tasks.stopping()));
        let services =
            (WorkerService::new(Arc::clone(&shared), model), HandoverService::new(Arc::clone(&shared)));
        spawn_server(&tasks, services, &registration, (listener, server))?;
        Ok(WorkerHandle { address, shared, tasks, thread: Some(thread), report })
    }
}

/// Says so where another worker has the group's name: a model may take minutes to load, after which the group would wait.
async fn warn_of_taken(group: &str, store: &dyn Store) {
    let Ok(Some(snapshot)) = tokio::time::timeout(NAME_LIMIT, look(store)).await else { return };
    if let Some(holder) = snapshot.groups.iter().find(|record| record.id.as_str() == group) {
        let taken = StoreError::taken(holder.owner(), &holder.address);
        tracing::warn!("{taken}; this one will wait for it once its model is loaded");
    }
}

fn sessions_options(options: &WorkerOptions) -> SessionsOptions {
    SessionsOptions {
        max_sessions: options.max_sessions,
        max_waiting: options.max_session_turns,
        idle_limit: Duration::from_secs(options.session_idle_s),
    }
}

fn record(
    options: &WorkerOptions,
    group: &GroupId,
    model: &v1::ModelInfo,
    address: SocketAddr,
    driver: &DriverHandle,
) -> GroupRecord {
    let scheme = if options.tls.is_on() { "https" } else { "http" };
    let advertise = if options.advertise.is_empty() {
        format!("{scheme}://{address}")
    } else {
        options.advertise.clone()
    };
    GroupRecord {
        id: group.clone(),
        model: model.name.clone(),
        address: advertise,
        tp: u32::try_from(options.tp.max(options.world)).unwrap_or(u32::MAX),
        epoch: Epoch(0),
        capacity: *driver.capacity().borrow(),
        draining: false,
    }
}

fn spawn_server(
    tasks: &Tasks,
    (service, handover): (WorkerService, HandoverService),
    registration: &RegistrationHandle,
    (listener, mut server): (TcpListener, Server),
) -> Result<(), StartError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    tasks.spawn(report_health(registration.clone(), service.clock(), health, tasks.stopping()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| StartError::Server(error.to_string()))?;
    let service = v1::worker_server::WorkerServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let handover = v1::handover_server::HandoverServer::new(handover)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let server =
        server.add_service(health_service).add_service(reflection).add_service(service).add_service(handover);
    let stopping = tasks.stopping();
    tasks.spawn(async move {
        // Without it a frame waits for the reader to acknowledge the one before: 40 ms for a first token.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let served = server.serve_with_incoming_shutdown(incoming, stopping.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the worker's server ended");
        }
    });
    Ok(())
}

/// Leaves the cluster while a rank is missing: a group is one failure domain, and its sessions go on elsewhere.
async fn follow_group(shared: Arc<Shared>, stopping: CancellationToken) {
    let mut is_up = shared.driver.is_up();
    loop {
        let up = *is_up.borrow_and_update();
        shared.registration.suspend(!up);
        // Cancel-safe: `changed` only waits, and the latest value is read after it.
        tokio::select! {
            () = stopping.cancelled() => return,
            changed = is_up.changed() => if changed.is_err() {
                // The driver has ended without being told to: nothing can be served here.
                shared.registration.suspend(true);
                return;
            },
        }
    }
}

async fn forget_idle(shared: Arc<Shared>, stopping: CancellationToken) {
    let sessions = SessionService::new(Arc::clone(&shared));
    loop {
        // Cancel-safe: both branches only wait.
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(SWEEP_PERIOD) => {}
        }
        for key in shared.sessions.expired() {
            tracing::info!(session = %key.session, "forgot an idle session");
            if let Err(error) = sessions.close(&key).await {
                tracing::warn!(%error, session = %key.session, "could not forget an idle session");
            }
        }
    }
}

/// Takes a group out of the cluster at once.
#[derive(Clone, Debug)]
pub struct Exit {
    registration: RegistrationHandle,
}

impl Exit {
    /// Gives the lease back, and with it every session, whatever runs: their next turns are placed anew at once. `false`
    /// where that was not done within `limit`: the lease then ends by itself.
    pub async fn leave(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.registration.stop()).await.is_ok()
    }
}

/// A running group.
#[derive(Debug)]
pub struct WorkerHandle {
    address: SocketAddr,
    shared: Arc<Shared>,
    tasks: Tasks,
    thread: Option<JoinHandle<()>>,
    report: LoadReport,
}

impl WorkerHandle {
    /// Where the leader listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn group(&self) -> &GroupId {
        &self.shared.group
    }

    /// What was loaded, and how long it took.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// Whether the group is in the cluster.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.shared.registration.valid(self.shared.clock.now())
    }

    /// Ranks in other processes without which the group cannot serve, and which are not there.
    #[must_use]
    pub fn awaited_ranks(&self) -> Vec<usize> {
        self.shared.driver.report().borrow().awaited()
    }

    /// A way out that can be taken while [`WorkerHandle::shutdown`] waits.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit { registration: self.shared.registration.clone() }
    }

    /// What the group has left, as of a few steps ago at most.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        *self.shared.driver.capacity().borrow()
    }

    /// Takes no new turns and hands the idle sessions over to other groups of the model; those that none takes are given
    /// back to the store, so that routers place them anew. Running turns go on, and their sessions follow at their end.
    pub async fn drain(&self) {
        self.shared.draining.cancel();
        self.shared.registration.drain();
        hand_over_all(&self.shared, |summary| !summary.busy).await;
    }

    /// Drains, waits for running turns up to `limit`, leaves the cluster and stops. `false` if turns were cut off.
    pub async fn shutdown(mut self, limit: Duration) -> bool {
        let turns = self.shared.turns.clone();
        let ending = async {
            self.drain().await;
            turns.close();
            turns.wait().await;
            // Turns that had begun when the drain did, and were not counted yet.
            hand_over_all(&self.shared, |_| true).await;
        };
        let finished = tokio::time::timeout(limit, ending).await.is_ok() || turns.is_empty();
        self.shared.registration.stop().await;
        let stopped = self.tasks.shutdown(Duration::from_secs(2)).await;
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            // The driver ends with the last handle; one that a cut-off turn still holds is not waited for.
            if stopped {
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
        }
        finished
    }
}
