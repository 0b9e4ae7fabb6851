//! Configuration of a command: defaults, then a TOML file, then `HAWSER_…` variables, then flags.
//!
//! Each command has one struct that refuses unknown keys (`#[serde(deny_unknown_fields)]`), is read once, and is
//! validated before the first socket opens.

mod nearest;
mod refusal;

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::{Coded, ErrorCode};

/// Prefix of the variables; `HAWSER_POOL__SLOTS=4096` sets `pool.slots`.
pub const ENV_PREFIX: &str = "HAWSER_";

/// Why a configuration was refused. `place` says where the key was set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("the config file {path} does not exist")]
    NoFile { path: PathBuf },
    #[error("there is no key {key} ({place}); {advice}")]
    UnknownKey { key: String, place: String, advice: String },
    #[error("{key} is {found} ({place}); expected is {expected}")]
    Value { key: String, place: String, found: String, expected: String },
    #[error("{place}: {reason}")]
    Malformed { place: String, reason: String },
}

impl Coded for ConfigError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// Reads a configuration. `flags` is serialised with unset flags skipped, so that they override nothing.
///
/// # Errors
/// [`ConfigError`] names the key, where it was set, and what was expected.
pub fn load<T, F>(defaults: &T, file: Option<&Path>, flags: &F) -> Result<T, ConfigError>
where
    T: Serialize + DeserializeOwned,
    F: Serialize,
{
    let mut figment = Figment::from(Serialized::defaults(defaults));
    if let Some(path) = file {
        if !path.is_file() {
            return Err(ConfigError::NoFile { path: path.to_owned() });
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    let figment = figment
        .merge(Env::prefixed(ENV_PREFIX).ignore(RESERVED).split("__"))
        .merge(Serialized::defaults(flags));
    figment.extract().map_err(|error| refusal::refusal(&figment, &error, &nearest::keys(defaults)))
}

/// Variables with the prefix that are not configuration keys.
const RESERVED: &[&str] = &["log", "log_format", "config", "fixtures", "model_dir", "etcd", "skip_etcd"];
