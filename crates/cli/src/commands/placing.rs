//! The placement store that the configuration names, for each command that serves.
//!
//! A worker waits for its store to be there, since nothing says in which order the parts of a cluster start. What would be
//! the same with the next try, such as a key that is not known, ends it at once.

use std::sync::Arc;
use std::time::Duration;

use hawser_client::{Client, ClientError};
use hawser_common::clock::{Clock, Tick};
use hawser_common::hint::without_hint;
use hawser_common::tasks::Tasks;
use hawser_common::tls::ClientTls;
use hawser_common::{Coded, ErrorCode, Keepalive};
use hawser_placement::{
    EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, InvalidEtcdOptions, Store, StoreError,
};
use hawser_proto::{Dial, TlsError};
use hawser_worker::{InvalidStore, RemoteStore};
use thiserror::Error;

use crate::config::{Config, StoreKind};
use crate::console::line;

/// Wait before the second try to join; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(5);
/// Between two lines that say the same.
const REPEAT: Duration = Duration::from_secs(60);

/// A store, and the same one where it lives in this process, to be served to others.
pub struct Placement {
    pub store: Arc<dyn Store>,
    pub embedded: Option<Arc<EmbeddedStore>>,
}

/// The store of a process with a router. One in etcd connects when it is first used.
pub fn of_router(
    config: &Config,
    clock: &Clock,
    tasks: &Tasks,
    embedded: EmbeddedOptions,
) -> anyhow::Result<Placement> {
    match config.store {
        StoreKind::Etcd => Ok(Placement { store: Arc::new(in_etcd(&config.etcd)?), embedded: None }),
        StoreKind::Embedded => {
            let embedded = EmbeddedStore::start(clock.clone(), tasks, embedded);
            Ok(Placement { store: Arc::<EmbeddedStore>::clone(&embedded), embedded: Some(embedded) })
        }
    }
}

/// An etcd that cannot be talked to as it is configured.
#[derive(Debug, Error)]
pub enum InvalidEtcd {
    #[error(transparent)]
    Options(#[from] InvalidEtcdOptions),
    #[error("etcd.{0}")]
    Certificates(#[from] TlsError),
}

impl Coded for InvalidEtcd {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Options(error) => error.code(),
            Self::Certificates(error) => error.code(),
        }
    }
}

/// The store in etcd, which connects when it is first used. Its certificates are tried here, like all others: etcd's
/// client finds out what is in the files as it connects, and that looks like an etcd which is away.
///
/// # Errors
/// [`InvalidEtcd`].
pub fn in_etcd(options: &EtcdOptions) -> Result<EtcdStore, InvalidEtcd> {
    let store = EtcdStore::new(options)?;
    let EtcdOptions { ca_file, cert_file, key_file, .. } = options.clone();
    Dial::new(&ClientTls { ca_file, cert_file, key_file }, Keepalive::default())?;
    Ok(store)
}

/// Why a worker did not join.
#[derive(Debug, Error)]
pub enum JoinError {
    #[error("cannot join a router: {}; start one with `hawser router`, or name it with --router", without_hint(&.0.to_string()))]
    Router(ClientError),
    /// Of the key or the certificates, which another router would not like better.
    #[error("cannot join the router: {0}")]
    Refused(ClientError),
    #[error("cannot join the router: {0}")]
    Store(#[from] InvalidStore),
    #[error("cannot join the router at {uri}: {source}")]
    Served { uri: String, source: StoreError },
    #[error(transparent)]
    Options(#[from] InvalidEtcd),
    #[error("cannot reach etcd at {endpoints}; name it with --etcd: {source}")]
    Etcd { endpoints: String, source: StoreError },
}

impl Coded for JoinError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Router(error) | Self::Refused(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Served { source, .. } | Self::Etcd { source, .. } => source.code(),
            Self::Options(error) => error.code(),
        }
    }
}

impl From<ClientError> for JoinError {
    fn from(error: ClientError) -> Self {
        match error.code() {
            ErrorCode::Unavailable | ErrorCode::Deadline => Self::Router(error),
            _ => Self::Refused(error),
        }
    }
}

impl JoinError {
    /// Whether the store may be there later.
    fn passes(&self) -> bool {
        matches!(self.code(), ErrorCode::Unavailable | ErrorCode::Deadline)
    }
}

/// When a worker tries to join again, and whether it says so. Pure; time and chance are arguments.
#[derive(Debug)]
struct Tries {
    began: Tick,
    /// `None`: as long as it takes.
    limit: Option<Duration>,
    count: u32,
    told: Option<(Tick, String)>,
}

impl Tries {
    fn new(limit: Option<Duration>, began: Tick) -> Self {
        Self { began, limit, count: 0, told: None }
    }

    /// How long to wait after a try that failed, less up to half of it by `chance`; `None`: no longer.
    fn after(&mut self, now: Tick, chance: f64) -> Option<Duration> {
        let left = self.limit.map(|limit| limit.saturating_sub(now.since(self.began)));
        let wait = (FIRST_WAIT * 2u32.saturating_pow(self.count.min(10))).min(LAST_WAIT);
        self.count = self.count.saturating_add(1);
        let wait = wait.mul_f64(1.0 - chance / 2.0);
        match left {
            Some(Duration::ZERO) => None,
            Some(left) => Some(wait.min(left)),
            None => Some(wait),
        }
    }

    /// Whether people have yet to hear `reason`, or to hear it again.
    fn is_news(&mut self, reason: &str, now: Tick) -> bool {
        let known = self.told.as_ref().is_some_and(|(at, told)| told == reason && now.since(*at) < REPEAT);
        if !known {
            self.told = Some((now, reason.to_owned()));
        }
        !known
    }
}

/// The store that a worker joins, and the router that keeps it, if one does. Waits for it before a model is loaded, and
/// finds a wrong address or key by then.
///
/// # Errors
/// [`JoinError`].
pub async fn of_worker(
    config: &Config,
    clock: &Clock,
) -> Result<(Arc<dyn Store>, Option<Client>), JoinError> {
    let mut tries = Tries::new(config.join_wait_s.map(Duration::from_secs), clock.now());
    loop {
        let error = match join(config).await {
            Ok(joined) => return Ok(joined),
            Err(error) if !error.passes() => return Err(error),
            Err(error) => error,
        };
        let Some(wait) = tries.after(clock.now(), rand::random()) else { return Err(error) };
        if tries.is_news(&error.to_string(), clock.now()) {
            let store = match config.store {
                StoreKind::Etcd => format!("etcd at {}", config.etcd.endpoints.join(", ")),
                StoreKind::Embedded => format!("the router at {}", config.server),
            };
            line(format!("waiting for {store}: {error}"));
        }
        tokio::time::sleep(wait).await;
    }
}

/// One try. The store is asked for a sign of life.
async fn join(config: &Config) -> Result<(Arc<dyn Store>, Option<Client>), JoinError> {
    match config.store {
        StoreKind::Etcd => {
            let store = in_etcd(&config.etcd)?;
            let endpoints = || config.etcd.endpoints.join(", ");
            drop(store.watch().await.map_err(|source| JoinError::Etcd { endpoints: endpoints(), source })?);
            Ok((Arc::new(store), None))
        }
        StoreKind::Embedded => {
            let router = config.connect().await?;
            let store = RemoteStore::secured(router.uri(), &config.tls, config.api_key.as_ref())?;
            let uri = || router.uri().to_owned();
            drop(store.watch().await.map_err(|source| JoinError::Served { uri: uri(), source })?);
            Ok((Arc::new(store), Some(router)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(Duration::from_secs(seconds))
    }

    #[test]
    fn tries_become_rarer_and_end_with_the_limit_if_there_is_one() {
        let mut patient = Tries::new(None, at(0));
        let waits: Vec<_> = (0..8).map(|_| patient.after(at(100_000), 0.0).unwrap()).collect();
        assert_eq!(waits[..3], [200, 400, 800].map(Duration::from_millis));
        assert_eq!(waits[7], LAST_WAIT);
        assert_eq!(patient.after(at(100_000), 1.0), Some(LAST_WAIT / 2));
        let mut bounded = Tries::new(Some(Duration::from_secs(3)), at(10));
        assert_eq!(bounded.after(at(10), 0.0), Some(FIRST_WAIT));
        bounded.count = 9;
        assert_eq!(bounded.after(at(12), 0.0), Some(Duration::from_secs(1)), "no longer than the limit");
        assert_eq!(bounded.after(at(13), 0.0), None);
        assert_eq!(Tries::new(Some(Duration::ZERO), at(5)).after(at(5), 0.5), None, "fails at once");
    }

    #[test]
    fn the_same_reason_is_told_once_a_minute() {
        let mut tries = Tries::new(None, at(0));
        assert!(tries.is_news("nobody answers", at(0)));
        assert!(!tries.is_news("nobody answers", at(59)));
        assert!(tries.is_news("nobody answers", at(60)));
        assert!(tries.is_news("it is not ready", at(61)));
    }

    #[test]
    fn only_what_may_pass_is_waited_for() {
        let served = |source| JoinError::Served { uri: String::new(), source };
        assert!(served(StoreError::Unreachable { reason: String::new() }).passes());
        assert!(!served(StoreError::Denied { reason: String::new() }).passes());
        assert!(!served(StoreError::Invalid { reason: String::new() }).passes());
        let connect = ClientError::Connect { uri: String::new(), cause: String::new() };
        assert!(JoinError::from(connect).passes());
        assert!(!JoinError::from(ClientError::Address { uri: String::new() }).passes());
        let untrusted = ClientError::Secured { uri: String::new(), cause: String::new() };
        assert!(!JoinError::from(untrusted).passes());
    }
}
