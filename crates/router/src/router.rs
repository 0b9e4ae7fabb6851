//! A router's life: start, serve, stop.
//!
//! Health (`grpc.health.v1`, for the whole server and for `hawser.v1.Hawser`) is SERVING from the first snapshot of
//! the store on, whether or not a group is registered: a router without groups answers, with a refusal that says what
//! is missing, and workers may need it for its store. It is NOT_SERVING again once the router is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::Stream;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_common::telemetry::Telemetry;
use hawser_common::{Coded, ErrorCode};
use hawser_placement::{EmbeddedStore, Store};
use hawser_proto::v1::hawser_server::HawserServer;
use hawser_proto::v1::store_server::StoreServer;
use hawser_proto::{Dial, FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES, Reach, TlsError, status, transport};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Interceptor, Routes};
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{error, info};

use crate::admission::Admission;
use crate::attempts::Limits;
use crate::auth::Auth;
use crate::auth::keys::InvalidKeys;
use crate::auth::reload::KeysFile;
use crate::continuation::Continuations;
use crate::follow::{Follower, follow};
use crate::front::Front;
use crate::handle::{Handles, InvalidSecrets};
use crate::metrics::{self, RouterMetrics};
use crate::options::{InvalidOptions, RouterOptions};
use crate::place::Placer;
use crate::quota::opening::Openings;
use crate::reachable::Reachable;
use crate::service::HawserService;
use crate::store_service::StoreService;
use crate::upstream::{self, Upstream};
use crate::view::View;

/// Windows of the public side: room for a long conversation in one flight.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const MAX_STREAMS: u32 = 10_000;
/// Streams that clients may reset before the router has seen them: agents do abort in masses.
const MAX_RESETS: usize = 1_024;
/// How long streams have to end once they have been cut.
const AFTER_CUT: Duration = Duration::from_millis(500);

/// Why a router did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("router option {0}")]
    Options(#[from] InvalidOptions),
    #[error("cannot listen on {address}: {source}; choose another address with `listen`, or free the port")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("router.auth.keys_file {path:?}: {source}")]
    Keys { path: PathBuf, source: InvalidKeys },
    #[error("router.auth.handle_secret_file: {0}")]
    Secrets(#[from] InvalidSecrets),
    #[error("router.{table}: {source}")]
    Tls { table: &'static str, source: TlsError },
    #[error("server reflection cannot be built: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

impl Coded for StartError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Options(_) | Self::Keys { .. } | Self::Secrets(_) | Self::Tls { .. } => ErrorCode::Invalid,
            Self::Listen { .. } => ErrorCode::Unavailable,
            Self::Reflection(_) => ErrorCode::Internal,
        }
    }
}

/// What a router listens on and how it reaches the leaders.
#[derive(Debug)]
pub struct Network<I> {
    /// What [`RouterHandle::addr`] says.
    pub addr: SocketAddr,
    /// Connections of clients.
    pub incoming: I,
    pub reach: Reach,
}

/// Starts routers.
#[derive(Debug)]
pub struct Router;

impl Router {
    /// Looks at the files that `options` name, as [`Router::start`] would, and starts nothing.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn check(options: &RouterOptions) -> Result<(), StartError> {
        options.validate()?;
        Edge::load(options).map(drop)
    }

    /// Serves on `options.listen` from when this returns. The router follows `store`; `served`, if given, is served to
    /// workers on the same port. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]: nothing is left running.
    pub fn start(
        options: &RouterOptions,
        store: Arc<dyn Store>,
        served: Option<Arc<EmbeddedStore>>,
        clock: Clock,
    ) -> Result<RouterHandle, StartError> {
        Self::start_observed(options, store, served, clock, &Telemetry::off())
    }

    /// The same, under watch.
    ///
    /// # Errors
    /// As [`Router::start`].
    pub fn start_observed(
        options: &RouterOptions,
        store: Arc<dyn Store>,
        served: Option<Arc<EmbeddedStore>>,
        clock: Clock,
        telemetry: &Telemetry,
    ) -> Result<RouterHandle, StartError> {
        options.validate()?;
        let address = options.listen;
        let listen = |source| StartError::Listen { address, source };
        let incoming = TcpIncoming::bind(address).map_err(listen)?.with_nodelay(Some(true));
        let addr = incoming.local_addr().map_err(listen)?;
        let network = Network { addr, incoming, reach: Reach::tcp() };
        Self::serve(options, (store, served), clock, telemetry, network)
    }

    /// The same, over a network of the caller's.
    ///
    /// # Errors
    /// [`StartError`]: nothing is left running.
    pub fn serve<I, IO>(
        options: &RouterOptions,
        (store, served): (Arc<dyn Store>, Option<Arc<EmbeddedStore>>),
        clock: Clock,
        telemetry: &Telemetry,
        network: Network<I>,
    ) -> Result<RouterHandle, StartError>
    where
        I: Stream<Item = std::io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        options.validate()?;
        let Edge { auth, keys, handles, dial, server } = Edge::load(options)?;
        let Network { addr, incoming, reach } = network;
        let seed = options.seed.unwrap_or_else(rand::random);
        let view = Arc::new(View::new(clock.clone(), options.max_sessions, seed));
        view.place_by(options.strategy);
        let reachable = Arc::new(Reachable::new(dial.clone()));
        let (tasks, closing, cut) = (Tasks::new(), CancellationToken::new(), CancellationToken::new());
        let upstream = Arc::new(Upstream::new(dial, reach, options.connect_timeout(), tasks.clone()));
        let metrics = RouterMetrics::new(&telemetry.meter);
        let follower = Follower {
            view: Arc::clone(&view),
            upstream: Arc::clone(&upstream),
            reachable: Arc::clone(&reachable),
            metrics: metrics.clone(),
            relist: options.relist(),
        };
        tasks.spawn(follow(store, follower, tasks.stopping()));
        if let Some(keys) = keys {
            let poll = Duration::from_millis(options.auth.poll_ms);
            tasks.spawn(keys.follow(auth.clone(), options.quota.clone(), poll, tasks.stopping()));
        }
        let (health, health_service) = tonic_health::server::health_reporter();
        tasks.spawn(report_health(health, Arc::clone(&view), closing.clone()));

        let admission = Admission::new(options.max_in_flight, options.queue_wait(), clock.clone());
        metrics::observe(&telemetry.meter, &view, &admission);
        let limits = Limits { groups: options.max_attempts, owner_wait: options.owner_wait() };
        let service = HawserService {
            placer: Placer { view: Arc::clone(&view), reachable, clock, limits, metrics: metrics.clone() },
            metrics,
            telemetry: telemetry.clone(),
            upstream,
            auth: auth.clone(),
            handles: Arc::new(handles),
            openings: Arc::new(Mutex::new(Openings::default())),
            admission: admission.clone(),
            call_timeout: options.call_timeout(),
            continuations: Continuations::new(options.continuations, options.continuation_memory_mib),
            cut: cut.clone(),
        };
        let hawser = HawserServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let mut routes = reflection(Routes::new(health_service))?;
        if let Some(store) = served {
            let stored = StoreServer::new(StoreService::new(store, closing.clone()))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES);
            routes = routes.add_service(InterceptedService::new(stored, Operators(auth)));
        }
        let front = Front { hawser, routes: routes.prepare() };
        let serving = server
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_max_pending_accept_reset_streams(Some(MAX_RESETS))
            .serve_with_incoming_shutdown(front, incoming, closing.clone().cancelled_owned());
        let serving = tasks.spawn(async move {
            if let Err(failure) = serving.await {
                error!(%failure, "the router's server failed");
            }
        });
        info!(%addr, "router listens");
        Ok(RouterHandle { addr, view, admission, tasks, closing, cut, serving })
    }
}

/// What decides who may connect and call, as the options name it.
struct Edge {
    auth: Auth,
    keys: Option<KeysFile>,
    handles: Handles,
    dial: Dial,
    server: Server,
}

impl Edge {
    /// Reads the files.
    fn load(options: &RouterOptions) -> Result<Self, StartError> {
        let path = options.auth.keys_file.clone().unwrap_or_default();
        let named = |source| StartError::Keys { path, source };
        let (auth, keys) = KeysFile::load(&options.auth, &options.quota).map_err(named)?;
        let handles = Handles::load(options.auth.handle_secret_file.as_deref())?;
        let tls = |table| move |source| StartError::Tls { table, source };
        let dial = Dial::new(&options.worker_tls, options.keepalive.at_most(upstream::KEEPALIVE))
            .map_err(tls("worker_tls"))?;
        let server = transport::server(&options.tls, options.keepalive).map_err(tls("tls"))?;
        Ok(Self { auth, keys, handles, dial, server })
    }
}

/// Lets operators through.
#[derive(Clone, Debug)]
struct Operators(Auth);

impl Interceptor for Operators {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.0.operator(request.metadata()).map_err(|error| status(&error))?;
        Ok(request)
    }
}

fn reflection(routes: Routes) -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(routes.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

/// A running router. Dropping it does not stop it: call [`RouterHandle::shutdown`].
#[derive(Debug)]
pub struct RouterHandle {
    addr: SocketAddr,
    view: Arc<View>,
    admission: Admission,
    tasks: Tasks,
    closing: CancellationToken,
    cut: CancellationToken,
    serving: JoinHandle<()>,
}

impl RouterHandle {
    /// Where it listens, with the port that was taken.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.admission.in_flight()
    }

    /// Calls that wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.admission.queued()
    }

    /// Calls in flight at each registered group.
    #[must_use]
    pub fn loads(&self) -> Vec<(hawser_common::GroupId, u32)> {
        self.view.loads()
    }

    /// Sessions whose owner this router knows.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.view.sessions_known()
    }

    /// Waits until the view satisfies what was asked for: that `groups` are registered. `false` after `limit`.
    pub async fn wait_for_groups(&self, groups: usize, limit: Duration) -> bool {
        self.view.wait(limit, |view| view.groups().len() >= groups).await
    }

    /// Takes no new connections, lets streams end for up to `limit`, then ends them with UNAVAILABLE. `false` if
    /// something was still running after that.
    pub async fn shutdown(self, limit: Duration) -> bool {
        self.closing.cancel();
        let Self { tasks, cut, mut serving, .. } = self;
        let ended = tokio::time::timeout(limit, &mut serving).await.is_ok();
        cut.cancel();
        if !ended && tokio::time::timeout(AFTER_CUT, &mut serving).await.is_err() {
            serving.abort();
        }
        tasks.shutdown(AFTER_CUT).await && ended
    }
}

async fn report_health(health: HealthReporter, view: Arc<View>, closing: CancellationToken) {
    const NAMES: [&str; 2] = ["", "hawser.v1.Hawser"];
    for name in NAMES {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
    // Both branches are cancel-safe: waiting changes nothing.
    tokio::select! {
        () = closing.cancelled() => return,
        ready = view.wait(Duration::MAX, View::ready) => if !ready { return },
    }
    for name in NAMES {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    closing.cancelled().await;
    for name in NAMES {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
}
