//! The placement store that the configuration names, for each command that serves.

use std::sync::Arc;

use anyhow::Context;
use hawser_client::Client;
use hawser_common::clock::Clock;
use hawser_common::tasks::Tasks;
use hawser_placement::{EmbeddedOptions, EmbeddedStore, EtcdStore, Store};
use hawser_worker::RemoteStore;

use crate::config::{Config, StoreKind};

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
        StoreKind::Etcd => Ok(Placement { store: Arc::new(EtcdStore::new(&config.etcd)?), embedded: None }),
        StoreKind::Embedded => {
            let embedded = EmbeddedStore::start(clock.clone(), tasks, embedded);
            Ok(Placement { store: Arc::<EmbeddedStore>::clone(&embedded), embedded: Some(embedded) })
        }
    }
}

/// The store that a worker joins, and the router that keeps it, if one does. Asked for a sign of life, so that a wrong
/// address is known before a model is loaded.
pub async fn of_worker(config: &Config) -> anyhow::Result<(Arc<dyn Store>, Option<Client>)> {
    match config.store {
        StoreKind::Etcd => {
            let store = EtcdStore::new(&config.etcd)?;
            let endpoints = config.etcd.endpoints.join(", ");
            let advice = || format!("cannot reach etcd at {endpoints}; name it with --etcd");
            drop(store.watch().await.with_context(advice)?);
            Ok((Arc::new(store), None))
        }
        StoreKind::Embedded => {
            let advice = "cannot join a router; start one with `hawser router`, or name it with --router";
            let router = config.connect().await.context(advice)?;
            let store = RemoteStore::secured(router.uri(), &config.tls, config.api_key.as_ref());
            Ok((Arc::new(store.context(advice)?), Some(router)))
        }
    }
}
