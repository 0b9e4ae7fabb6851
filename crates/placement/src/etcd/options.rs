//! How to reach etcd. Checked as a whole before the first connection; a password is never printed.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hawser_common::{Coded, ErrorCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most endpoints of one cluster.
const MAX_ENDPOINTS: usize = 16;
/// Longest prefix in bytes: keys stay short beside the names in them.
const MAX_PREFIX_BYTES: usize = 128;
/// Allowed times, in milliseconds.
const MIN_TIMEOUT_MS: u64 = 50;
const MAX_TIMEOUT_MS: u64 = 60_000;

/// A cluster of etcd and how to talk to it. Times are in milliseconds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdOptions {
    /// URIs of the members: all `http://host:port`, or all `https://host:port`.
    pub endpoints: Vec<String>,
    /// User, where etcd asks for one; with a password.
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "redacted")]
    pub password: Option<String>,
    /// Certificates that the members' own are checked against, in PEM; with `https` endpoints.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate and its key, in PEM, where etcd asks for them.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// What every key begins with. Clusters that share an etcd need one each.
    pub prefix: String,
    /// Longest that connecting to a member may take.
    pub connect_timeout_ms: u64,
    /// Longest that a call may take. A watch that is silent for as long is asked for a sign of life.
    pub request_timeout_ms: u64,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            user: None,
            password: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            prefix: "/hawser/v1".to_owned(),
            connect_timeout_ms: 2_000,
            request_timeout_ms: 5_000,
        }
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// What a printed configuration says of the password.
fn redacted<S: serde::Serializer>(_: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("<set>")
}

/// Options that cannot work.
#[derive(Debug, Error)]
pub enum InvalidEtcdOptions {
    #[error("etcd needs 1 to {MAX_ENDPOINTS} endpoints; {found} are given")]
    Endpoints { found: usize },
    #[error("etcd endpoint {endpoint:?} is no http:// or https:// URI with a host and a port")]
    Endpoint { endpoint: String },
    #[error("etcd endpoints mix http and https; use one of them for all")]
    MixedSchemes,
    #[error(
        "etcd endpoints with https need `ca_file`; for certificates of public authorities name the system's bundle"
    )]
    NoAuthority,
    #[error("etcd option {option} needs https endpoints")]
    NotEncrypted { option: &'static str },
    #[error("etcd option {given} needs {missing} as well")]
    Half { given: &'static str, missing: &'static str },
    #[error(
        "etcd prefix {prefix:?} is wrong: 2 to {MAX_PREFIX_BYTES} letters, digits and . _ - / that begin with one slash, \
         do not end with one and have no two in a row"
    )]
    Prefix { prefix: String },
    #[error("etcd option {option} is {found} ms; allowed are {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}")]
    Timeout { option: &'static str, found: u64 },
    #[error("etcd option {option} names {path:?}, which cannot be read: {source}")]
    File { option: &'static str, path: PathBuf, source: std::io::Error },
}

impl Coded for InvalidEtcdOptions {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl EtcdOptions {
    /// # Errors
    /// [`InvalidEtcdOptions`], the first one found. Files are read where the store is made, not here.
    pub fn validate(&self) -> Result<(), InvalidEtcdOptions> {
        use InvalidEtcdOptions as E;
        if !(1..=MAX_ENDPOINTS).contains(&self.endpoints.len()) {
            return Err(E::Endpoints { found: self.endpoints.len() });
        }
        let wrong = self.endpoints.iter().find(|endpoint| !is_endpoint(endpoint));
        if let Some(endpoint) = wrong {
            return Err(E::Endpoint { endpoint: endpoint.clone() });
        }
        let encrypted = self.endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
        match (encrypted == self.endpoints.len(), encrypted == 0) {
            (false, false) => return Err(E::MixedSchemes),
            (true, _) if self.ca_file.is_none() => return Err(E::NoAuthority),
            (_, true) if self.ca_file.is_some() => return Err(E::NotEncrypted { option: "ca_file" }),
            (_, true) if self.cert_file.is_some() => return Err(E::NotEncrypted { option: "cert_file" }),
            _ => {}
        }
        both(("user", self.user.is_some()), ("password", self.password.is_some()))?;
        both(("cert_file", self.cert_file.is_some()), ("key_file", self.key_file.is_some()))?;
        if !is_prefix(&self.prefix) {
            return Err(E::Prefix { prefix: self.prefix.clone() });
        }
        let times = [
            ("connect_timeout_ms", self.connect_timeout_ms),
            ("request_timeout_ms", self.request_timeout_ms),
        ];
        match times.into_iter().find(|(_, time)| !(MIN_TIMEOUT_MS..=MAX_TIMEOUT_MS).contains(time)) {
            Some((option, found)) => Err(E::Timeout { option, found }),
            None => Ok(()),
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}

fn both(a: (&'static str, bool), b: (&'static str, bool)) -> Result<(), InvalidEtcdOptions> {
    match (a.1, b.1) {
        (true, false) => Err(InvalidEtcdOptions::Half { given: a.0, missing: b.0 }),
        (false, true) => Err(InvalidEtcdOptions::Half { given: b.0, missing: a.0 }),
        (true, true) | (false, false) => Ok(()),
    }
}

/// `http://host:port` or `https://host:port`, nothing after it.
fn is_endpoint(text: &str) -> bool {
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some((host, port)) = authority.and_then(|authority| authority.rsplit_once(':')) else { return false };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_one = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')),
    };
    host_is_one && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_prefix(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    (2..=MAX_PREFIX_BYTES).contains(&text.len())
        && text.starts_with('/')
        && !text.ends_with('/')
        && !text.contains("//")
        && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut EtcdOptions), expected: &str) {
        let mut options = EtcdOptions::default();
        change(&mut options);
        let found = options.validate().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{options:?}: {found}");
    }

    fn https(options: &mut EtcdOptions) {
        options.endpoints = vec!["https://etcd-0.etcd:2379".to_owned(), "https://[::1]:2379".to_owned()];
        options.ca_file = Some("ca.pem".into());
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        check(|_| {}, "");
        check(https, "");
        check(|o| o.endpoints.clear(), "1 to 16 endpoints; 0 are given");
        for wrong in [
            "127.0.0.1:2379",
            "http://",
            "http://h",
            "http://h:0",
            "http://h:2379/",
            "ftp://h:1",
            "http://:1",
        ] {
            check(|o| o.endpoints = vec![wrong.to_owned()], "no http:// or https:// URI");
        }
        check(|o| o.endpoints.push("https://h:1".to_owned()), "mix http and https");
        check(|o| o.endpoints = vec!["https://h:1".to_owned()], "need `ca_file`");
        check(|o| o.ca_file = Some("ca.pem".into()), "ca_file needs https");
        check(|o| o.user = Some("u".to_owned()), "user needs password");
        check(|o| o.password = Some("p".to_owned()), "password needs user");
        check(|o| (https(o), o.key_file = Some("k".into())).1, "key_file needs cert_file");
        for wrong in ["", "/", "hawser", "/a/", "/a//b", "/a b", "/\u{e9}"] {
            check(|o| o.prefix = wrong.to_owned(), "etcd prefix");
        }
        check(|o| o.connect_timeout_ms = 49, "connect_timeout_ms is 49 ms");
        check(|o| o.request_timeout_ms = 60_001, "request_timeout_ms is 60001 ms");
    }

    #[test]
    fn a_password_is_read_and_never_printed() {
        let text = r#"{"endpoints": ["http://h:1"], "user": "u", "password": "secret"}"#;
        let options: EtcdOptions = serde_json::from_str(text).unwrap();
        assert_eq!(options.password.as_deref(), Some("secret"));
        let printed = format!("{options:?} {}", serde_json::to_string(&options).unwrap());
        assert!(!printed.contains("secret"), "{printed}");
        assert!(serde_json::from_str::<EtcdOptions>(r#"{"endpoint": "http://h:1"}"#).is_err());
    }
}
