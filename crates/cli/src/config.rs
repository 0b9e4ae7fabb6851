//! The configuration of the `hawser` command. One file may serve all subcommands; each uses the keys it needs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, bail};
use hawser_client::{Client, ClientError};
use hawser_common::config;
use hawser_common::tls::{ClientTls, InvalidTls};
use hawser_common::{Coded, ErrorCode, Secret};
use hawser_placement::EtcdOptions;
use hawser_router::RouterOptions;
use hawser_telemetry::TelemetryOptions;
use hawser_worker::WorkerOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::args::Global;
use crate::{console, models};

/// Most groups of `hawser up`.
const MAX_GROUPS: usize = 64;
/// Where a router listens if nothing else is said; `Config::server` names the same place.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// Where placement is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// In the memory of the one router, which serves it to the workers that join.
    Embedded,
    /// In etcd: for several routers, and for owners that outlive a router.
    Etcd,
}

/// Every key, described in docs/config.md.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// URI of the router: where chat, generate and status connect, and which cluster a worker joins.
    pub server: String,
    /// The API key that is sent there. Never printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// How to talk to it where its URI begins with https.
    pub tls: ClientTls,
    /// Worker groups of `hawser up`.
    pub groups: usize,
    /// Seconds that running turns have to finish after a stop signal.
    pub grace_s: u64,
    /// Longest in seconds that a worker waits for the store to be there when it starts; not set: as long as it takes.
    pub join_wait_s: Option<u64>,
    /// Where placement is kept: the routers and the workers of a cluster say the same.
    pub store: StoreKind,
    pub etcd: EtcdOptions,
    pub router: RouterOptions,
    pub worker: WorkerOptions,
    pub telemetry: TelemetryOptions,
}

/// A key out of its bounds.
#[derive(Debug, Error)]
pub enum InvalidConfig {
    #[error("wrong configuration: groups is {found}; allowed is 1 to {MAX_GROUPS}")]
    Groups { found: usize },
    #[error("wrong configuration: tls.{0}")]
    Tls(#[from] InvalidTls),
    #[error("wrong configuration: worker.{0}")]
    Worker(#[from] hawser_worker::InvalidOptions),
    #[error("wrong configuration: router.{0}")]
    Router(#[from] hawser_router::InvalidOptions),
    #[error("wrong configuration: telemetry.{0}")]
    Telemetry(#[from] hawser_telemetry::InvalidOptions),
    #[error("wrong configuration: {0}")]
    Etcd(#[from] hawser_placement::InvalidEtcdOptions),
}

impl Coded for InvalidConfig {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: format!("http://{LISTEN}"),
            api_key: None,
            tls: ClientTls::default(),
            groups: 1,
            grace_s: 30,
            join_wait_s: None,
            store: StoreKind::Embedded,
            etcd: EtcdOptions::default(),
            router: RouterOptions { listen: LISTEN, ..RouterOptions::default() },
            worker: WorkerOptions::default(),
            telemetry: TelemetryOptions::default(),
        }
    }
}

/// Flags of a subcommand as configuration keys; unset ones override nothing.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Map<String, Value>);

impl Overrides {
    /// Sets `key` (dots separate tables) where `value` is given.
    pub fn set(&mut self, key: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        let mut path: Vec<&str> = key.split('.').collect();
        let last = path.pop().unwrap_or_default();
        let mut table = &mut self.0;
        for part in path {
            let entry = table.entry(part).or_insert_with(|| Value::Object(Map::new()));
            if !entry.is_object() {
                *entry = Value::Object(Map::new());
            }
            match entry {
                Value::Object(inner) => table = inner,
                _ => return,
            }
        }
        table.insert(last.to_owned(), value.into());
    }

    /// Keeps placement in the etcd of `endpoints`, if any are given.
    pub fn set_etcd(&mut self, endpoints: &[String]) {
        if !endpoints.is_empty() {
            self.set("store", Some("etcd"));
            self.set("etcd.endpoints", Some(endpoints.to_vec()));
        }
    }

    /// Takes `KEY=VALUE`, where the value is TOML or else a plain text.
    fn assign(&mut self, text: &str) -> anyhow::Result<()> {
        let Some((key, value)) = text.split_once('=') else {
            bail!("--set {text:?} has no value; write it as KEY=VALUE, such as worker.threads=2");
        };
        let parsed = toml::from_str::<Map<String, Value>>(&format!("value = {value}"));
        let value = parsed.ok().and_then(|mut map| map.remove("value")).unwrap_or_else(|| Value::from(value));
        self.set(key.trim(), Some(value));
        Ok(())
    }
}

impl Config {
    /// Defaults, file, environment, flags, in this order.
    pub fn load(global: &Global, flags: Overrides) -> anyhow::Result<Self> {
        Self::from_sources(global.config.as_deref(), &global.set, flags)
    }

    fn from_sources(file: Option<&Path>, set: &[String], mut flags: Overrides) -> anyhow::Result<Self> {
        for text in set {
            flags.assign(text)?;
        }
        config::load(&Self::default(), file, &flags.0).context("wrong configuration")
    }

    /// Whether everything that serves would start with it. A model that is not named is the demo model.
    ///
    /// # Errors
    /// [`InvalidConfig`] names the first key out of its bounds.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !(1..=MAX_GROUPS).contains(&self.groups) {
            return Err(InvalidConfig::Groups { found: self.groups });
        }
        self.tls.validate()?;
        let mut worker = self.worker.clone();
        if worker.model.as_os_str().is_empty() {
            worker.model = models::DEMO_NAME.into();
        }
        worker.validate()?;
        self.telemetry.validate()?;
        self.etcd.validate()?;
        Ok(self.router.validate()?)
    }

    /// A client of the router at `server`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(&self) -> Result<Client, ClientError> {
        Client::builder(&self.server).api_key(self.api_key.clone()).tls(self.tls.clone()).connect().await
    }

    /// Prints what differs from the defaults.
    pub fn print(&self) {
        let (mine, defaults) = (flat(self), flat(&Self::default()));
        let changed: Vec<_> = mine.iter().filter(|(key, value)| defaults.get(*key) != Some(value)).collect();
        if changed.is_empty() {
            console::line(console::dim("configuration: all defaults (`hawser config` shows them)"));
            return;
        }
        console::line(console::dim("configuration (the rest at its defaults; `hawser config` shows them):"));
        for (key, value) in changed {
            console::line(console::dim(format!("  {key} = {value}")));
        }
    }
}

/// Keys with dots and their values.
fn flat(config: &Config) -> Map<String, Value> {
    let mut out = Map::new();
    if let Ok(Value::Object(root)) = serde_json::to_value(config) {
        flatten(&mut out, "", root);
    }
    out
}

fn flatten(out: &mut Map<String, Value>, prefix: &str, table: Map<String, Value>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(inner) => flatten(out, &key, inner),
            value => {
                out.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(set: &[&str], flags: Overrides) -> anyhow::Result<Config> {
        let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
        Config::from_sources(None, &set, flags)
    }

    #[test]
    fn flags_reach_nested_keys_and_unset_ones_do_nothing() {
        let mut flags = Overrides::default();
        flags.set("worker.threads", Some(3));
        flags.set("worker.group", None::<String>);
        flags.set("groups", Some(2));
        let config = load(&["worker.step_tokens=64", "server=http://elsewhere:1"], flags).unwrap();
        assert_eq!((config.groups, config.worker.threads, config.worker.step_tokens), (2, 3, 64));
        assert_eq!(config.worker.group, WorkerOptions::default().group);
        assert_eq!(config.server, "http://elsewhere:1");
    }

    #[test]
    fn a_file_is_read_and_flags_win_over_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hawser.toml");
        std::fs::write(&file, "groups = 3\n[worker]\nthreads = 7\n").unwrap();
        let mut flags = Overrides::default();
        flags.set("worker.threads", Some(1));
        let config = Config::from_sources(Some(&file), &[], flags).unwrap();
        assert_eq!((config.groups, config.worker.threads), (3, 1));
        let missing = Config::from_sources(Some(&dir.path().join("no.toml")), &[], Overrides::default());
        assert!(format!("{:#}", missing.unwrap_err()).contains("does not exist"));
    }

    #[test]
    fn an_api_key_is_taken_and_not_printed() {
        let config = load(&["api_key=hush"], Overrides::default()).unwrap();
        assert_eq!(config.api_key.as_ref().map(Secret::expose), Some("hush"));
        let shown = format!("{config:?} {} {:?}", toml::to_string(&config).unwrap(), flat(&config));
        assert!(!shown.contains("hush") && shown.contains("<set>"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (set, name) in [
            ("worker.thread=2", "did you mean worker.threads?"),
            ("worker.threads=x", "worker.threads is \"x\""),
        ] {
            let error = format!("{:#}", load(&[set], Overrides::default()).unwrap_err());
            assert!(error.contains(name), "{set}: {error}");
        }
        for (set, name) in [
            ("groups=0", "groups is 0"),
            ("worker.group='a b'", "worker.group: "),
            ("worker.step_tokens=0", "worker.step_tokens is 0"),
            ("worker.retention.pool_positions=4", "worker.retention.pool_positions is 4"),
            ("router.max_in_flight=0", "router.max_in_flight is 0"),
            ("router.quota.weight=0", "router.quota.weight is 0"),
            ("router.tls.key_file='k'", "router.tls: key_file needs cert_file"),
            ("worker.tls.cert_file='c'", "worker.tls: cert_file needs key_file"),
            ("tls.cert_file='c'", "tls.cert_file needs key_file"),
            ("etcd.endpoints=['nowhere']", "etcd endpoint \"nowhere\""),
        ] {
            let error = load(&[set], Overrides::default()).unwrap().validate().unwrap_err().to_string();
            assert!(error.starts_with("wrong configuration: ") && error.contains(name), "{set}: {error}");
        }
        Config::default().validate().unwrap();
        assert!(load(&["worker"], Overrides::default()).is_err());
    }

    /// A row of docs/config.md.
    struct Row<'a> {
        key: &'a str,
        default: &'a str,
        unit: &'a str,
    }

    fn rows(text: &str) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        let mut above = "";
        for line in text.lines() {
            if let Some(cells) = line.strip_prefix("| `") {
                assert!(above.starts_with('|'), "a row outside of a table: {line}");
                let mut cells = cells.split('|').map(str::trim);
                let mut cell = || cells.next().unwrap_or_default();
                rows.push(Row { key: cell().trim_end_matches('`'), default: cell(), unit: cell() });
            }
            above = line;
        }
        rows
    }

    /// The reference in docs/config.md and the structs cannot drift apart.
    #[test]
    fn every_key_is_documented_once_with_its_default_and_its_unit() {
        let mut keys = flat(&Config::default());
        // What is never printed where it is not set.
        keys.extend(["api_key", "etcd.password"].map(|secret| (secret.to_owned(), Value::Null)));
        for Row { key, default, unit } in rows(include_str!("../../../docs/config.md")) {
            let expected = match keys.remove(key) {
                None => panic!("docs/config.md has {key} twice, or there is no such key"),
                Some(Value::Null) => "not set".to_owned(),
                Some(value) => format!("`{value}`"),
            };
            assert_eq!(default, expected, "the default of {key}");
            let units = [("_ms", "ms"), ("_us", "µs"), ("_ns", "ns"), ("_s", "seconds"), ("_mib", "MiB")];
            let of_name = units.into_iter().find(|(end, _)| key.ends_with(end) && !key.ends_with("_per_s"));
            let of_name = of_name.or_else(|| key.ends_with("_file").then_some(("", "path")));
            assert!(of_name.is_none_or(|(_, of_name)| unit == of_name), "the unit of {key} is {unit}");
        }
        assert!(keys.is_empty(), "docs/config.md lacks {:?}", keys.keys());
    }
}
