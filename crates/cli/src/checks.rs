//! What a configuration names, looked at without starting anything: files, certificates, models and addresses.
//!
//! Promises to look at what is named and at nothing else: a model or a file that is not named is not missed, and no
//! address is connected to or listened at.

use std::path::Path;

use hawser_common::{Coded, ErrorCode};
use hawser_proto::{Dial, DialError, TlsError};
use hawser_router::Router;
use hawser_worker::{EngineKind, Worker};
use thiserror::Error;

use crate::commands::placing::{InvalidEtcd, in_etcd};
use crate::config::Config;
use crate::models::{self, ModelMissing};

/// Something that is named and cannot be used.
#[derive(Debug, Error)]
pub enum Unusable {
    #[error("tls: {0}")]
    Tls(#[from] TlsError),
    #[error("server: {0}")]
    Server(#[from] DialError),
    #[error(transparent)]
    Router(#[from] hawser_router::StartError),
    #[error(transparent)]
    Etcd(#[from] InvalidEtcd),
    #[error("worker.model: {0}")]
    Model(#[from] ModelMissing),
    #[error(transparent)]
    Worker(#[from] hawser_worker::StartError),
}

impl Coded for Unusable {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Tls(error) => error.code(),
            Self::Server(error) => error.code(),
            Self::Router(error) => error.code(),
            Self::Etcd(error) => error.code(),
            Self::Model(_) => ErrorCode::NotFound,
            Self::Worker(error) => error.code(),
        }
    }
}

/// Everything that is named and cannot be used: the first of each part.
pub fn unusable(config: &Config, model_dir: &Path) -> Vec<Unusable> {
    let parts = [
        server(config),
        Router::check(&config.router).map_err(Unusable::from),
        // Even with another store: a command may be told to use etcd by a flag.
        in_etcd(&config.etcd).map(drop).map_err(Unusable::from),
        worker(config, model_dir),
    ];
    parts.into_iter().filter_map(Result::err).collect()
}

/// Where chat, status and workers connect.
fn server(config: &Config) -> Result<(), Unusable> {
    let dial = Dial::new(&config.tls, config.router.keepalive)?;
    let uri = &config.server;
    let whole = if uri.contains("://") { uri.clone() } else { format!("http://{uri}") };
    Ok(dial.endpoint(&whole).map(drop)?)
}

/// The demo model, where none is named, is not missed; where it is there, it is looked at as any other.
fn worker(config: &Config, model_dir: &Path) -> Result<(), Unusable> {
    let mut options = config.worker.clone();
    match models::of_worker(&options, model_dir) {
        Ok(model) => options.model = model,
        Err(ModelMissing::Demo { .. }) if options.model.as_os_str().is_empty() => {
            options.engine = EngineKind::Simulated;
            (options.tp, options.world, options.rank) = (1, 1, 0);
            options.collective = hawser_worker::CollectiveKind::Auto;
        }
        Err(missing) => return Err(missing.into()),
    }
    if let Some(error) = Worker::check(&options)? {
        tracing::warn!(%error, "no usable tokenizer: only token ids would be served");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use hawser_common::tls::{ClientTls, MutualTls, ServerTls};

    use super::*;

    fn told(config: &Config, model_dir: &Path) -> Vec<String> {
        unusable(config, model_dir).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_named_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(told(&Config::default(), folder.path()).is_empty());
        let config = Config { server: "router:7070".into(), ..Config::default() };
        assert!(told(&config, folder.path()).is_empty(), "the scheme may be left out");
    }

    #[test]
    fn every_part_names_its_key_the_path_and_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let some = |name: &str| Some(file(name));
        std::fs::write(file("junk"), "junk").unwrap();
        let check = |config: Config, parts: &[&str]| {
            config.validate().unwrap();
            let told = told(&config, folder.path());
            assert_eq!(told.len(), 1, "{told:?}");
            for part in parts {
                assert!(told[0].contains(part), "{part:?} is not in {told:?}");
            }
        };
        let ok = Config::default;
        let tls = ClientTls { ca_file: some("no-ca"), ..ClientTls::default() };
        check(Config { tls, ..ok() }, &["tls: ca_file", "no-ca", "cannot be read"]);
        check(Config { server: "https://router:1".into(), ..ok() }, &["server: ", "no authority"]);
        let mut config = ok();
        config.router.auth.keys_file = some("no-keys");
        check(config, &["router.auth.keys_file", "no-keys", "cannot be read"]);
        let mut config = ok();
        config.router.auth.handle_secret_file = some("junk");
        check(config, &["router.auth.handle_secret_file", "junk", "16 bytes"]);
        let mut config = ok();
        config.worker.tls =
            ServerTls { cert_file: some("junk"), key_file: some("junk"), client_ca_file: None };
        check(config, &["worker.tls", "cert_file", "junk", "no certificate"]);
        let mut config = ok();
        (config.worker.world, config.worker.rendezvous) = (2, "127.0.0.1:7100".into());
        config.worker.rank_tls =
            MutualTls { ca_file: some("no-ca"), cert_file: some("junk"), key_file: some("junk") };
        check(config, &["worker.rank_tls", "no-ca", "cannot be read"]);
        let mut config = ok();
        config.worker.model = file("junk");
        check(config, &["worker.model", "junk"]);
        let mut config = ok();
        config.worker.model = PathBuf::from("absent");
        check(config, &["worker.model", "absent"]);
        // Whatever the store is: `--etcd` would choose it.
        let mut config = ok();
        config.etcd.endpoints = vec!["https://etcd:2379".into()];
        config.etcd.ca_file = some("no-ca");
        check(config.clone(), &["etcd option ca_file", "no-ca", "cannot be read"]);
        config.etcd.ca_file = some("junk");
        check(config, &["etcd.ca_file", "junk", "no certificate"]);
    }

    #[test]
    fn ranks_and_context_are_compared_with_the_model() {
        let check = |change: fn(&mut hawser_worker::WorkerOptions), says: &str| {
            let mut config = Config::default();
            config.worker.model =
                concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny-llama").into();
            assert!(told(&config, Path::new("absent")).is_empty());
            change(&mut config.worker);
            config.validate().unwrap();
            let told = told(&config, Path::new("absent"));
            assert!(told.len() == 1 && told[0].contains(says), "{says:?} is not in {told:?}");
        };
        check(|worker| worker.tp = 10, "worker.tp: 10 ranks for 9 query heads");
        check(
            |worker| (worker.world, worker.rendezvous) = (10, "leader:1".into()),
            "worker.world: 10 ranks for 9 query heads",
        );
        check(|worker| worker.context_tokens = 1 << 30, "worker.context_tokens is 1073741824");
    }

    #[test]
    fn the_demo_model_is_looked_at_where_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(models::DEMO_FILE), "junk").unwrap();
        let told = told(&Config::default(), folder.path());
        assert!(told.len() == 1 && told[0].contains("not a GGUF file"), "{told:?}");
    }

    #[test]
    fn all_parts_are_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { server: "https://router:1".into(), ..Config::default() };
        config.router.auth.keys_file = Some("no-keys".into());
        config.worker.model = "absent".into();
        assert_eq!(told(&config, folder.path()).len(), 3);
    }
}
