//! The connection to etcd: made with the first call, and again after one that had no answer.
//!
//! Every call has a limit. What fails at once is tried again a few times with growing, jittered waits, because every
//! call of the store can be repeated. A call that was given up makes the connection suspect, so that the next one does
//! not trust it: a member that vanished without a word would otherwise hold calls for minutes. Watches keep theirs.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use futures_util::future::BoxFuture;
use hawser_common::keepalive;

use super::fault::Fault;
use super::options::{EtcdOptions, InvalidEtcdOptions};
use crate::backoff;

/// Tries of one call.
const TRIES: u32 = 4;
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Makes a channel to an etcd, which connects with its first call.
#[cfg(feature = "dial")]
pub type Dial = std::sync::Arc<dyn Fn() -> etcd_client::Channel + Send + Sync>;

pub(super) struct Link {
    endpoints: Vec<String>,
    connect: ConnectOptions,
    limit: Duration,
    current: Mutex<Current>,
    /// In place of the endpoints.
    #[cfg(feature = "dial")]
    dial: Option<Dial>,
}

/// The connection that calls use, and how often it was replaced.
#[derive(Default)]
struct Current {
    client: Option<Client>,
    generation: u64,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Link {
    /// Does not connect yet. Reads the files that the options name.
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, InvalidEtcdOptions> {
        options.validate()?;
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(options.connect_timeout())
            // etcd ends connections that ask for a sign of life more often than every five seconds, or without calls.
            .with_keep_alive(keepalive::INTERVAL, options.request_timeout())
            .with_keep_alive_while_idle(false)
            // A member that has lost its leader says so, instead of holding a watch without news.
            .with_require_leader(true);
        if let (Some(user), Some(password)) = (&options.user, &options.password) {
            connect = connect.with_user(user, password);
        }
        if let Some(tls) = tls(options)? {
            connect = connect.with_tls(tls);
        }
        let (endpoints, limit) = (options.endpoints.clone(), options.request_timeout());
        Ok(Self {
            endpoints,
            connect,
            limit,
            current: Mutex::default(),
            #[cfg(feature = "dial")]
            dial: None,
        })
    }

    /// The same over channels that `dial` makes.
    #[cfg(feature = "dial")]
    pub(super) fn dialled(self, dial: Dial) -> Self {
        Self { dial: Some(dial), ..self }
    }

    async fn connect(&self) -> Result<Client, Error> {
        #[cfg(feature = "dial")]
        if let Some(dial) = &self.dial {
            return Client::from_channel(dial(), Some(self.connect.clone())).await;
        }
        Client::connect(&self.endpoints, Some(self.connect.clone())).await
    }

    /// Longest that a call may take.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Sends until there is an answer or the tries or the time are used up.
    pub(super) async fn call<T, F>(&self, send: F) -> Result<T, Fault>
    where
        F: Fn(Client) -> BoxFuture<'static, Result<T, Error>> + Send + Sync,
    {
        let tries = async {
            let mut failures = 0;
            loop {
                match self.attempt(&send).await {
                    Err(Fault::Unreachable(_) | Fault::TokenGone) if failures + 1 < TRIES => {}
                    answer => return answer,
                }
                tokio::time::sleep(backoff::after(failures, MAX_WAIT)).await;
                failures += 1;
            }
        };
        match tokio::time::timeout(self.limit, tries).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::Unreachable(format!("etcd has not answered within {:?}", self.limit))),
        }
    }

    async fn attempt<T, F>(&self, send: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> BoxFuture<'static, Result<T, Error>> + Send + Sync,
    {
        let (client, generation) = self.client().await?;
        let mut attempt = Attempt { link: self, generation, answered: false };
        let answer = send(client.clone()).await.map_err(Fault::from);
        if answer.as_ref().err() == Some(&Fault::TokenGone) {
            client.refresh_token().await?;
        }
        attempt.answered = true;
        answer
    }

    async fn client(&self) -> Result<(Client, u64), Fault> {
        let generation = {
            let current = self.lock();
            match &current.client {
                Some(client) => return Ok((client.clone(), current.generation)),
                None => current.generation,
            }
        };
        // Two calls may both connect; one of the connections is then used for one call.
        let client = self.connect().await?;
        let mut current = self.lock();
        if current.generation == generation {
            current.client = Some(client.clone());
        }
        Ok((client, generation))
    }

    fn forget(&self, generation: u64) {
        let mut current = self.lock();
        if current.generation == generation {
            current.client = None;
            current.generation += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing under the lock can panic half-way.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on its way. Dropped without an answer, it makes the connection suspect.
struct Attempt<'a> {
    link: &'a Link,
    generation: u64,
    answered: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.forget(self.generation);
        }
    }
}

fn tls(options: &EtcdOptions) -> Result<Option<TlsOptions>, InvalidEtcdOptions> {
    let read = |option, path: &std::path::PathBuf| {
        std::fs::read(path).map_err(|source| InvalidEtcdOptions::File { option, path: path.clone(), source })
    };
    let Some(ca) = &options.ca_file else { return Ok(None) };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("ca_file", ca)?));
    if let (Some(cert), Some(key)) = (&options.cert_file, &options.key_file) {
        tls = tls.identity(Identity::from_pem(read("cert_file", cert)?, read("key_file", key)?));
    }
    Ok(Some(tls))
}
