//! Who calls: API keys, and the tenant that each stands for.
//!
//! Without a file of keys there is one tenant, which everybody is, and everybody is an operator. With one, a call
//! without a known key is refused before anything else is looked at. Keys are read again when the file changes
//! ([`reload`]); a call is judged by the keys of the moment it arrives, and a stream that runs is not cut when its key
//! goes.

pub(crate) mod keys;
pub(crate) mod reload;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use hawser_common::TenantId;
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;

pub(crate) use keys::Caller;
use keys::Keys;

use crate::error::RouteError;
use crate::quota::Quota;

/// Where keys and secrets come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthOptions {
    /// The file of API keys; not set: no keys are asked for, and there is one tenant.
    pub keys_file: Option<PathBuf>,
    /// How often the file of keys is looked at.
    pub poll_ms: u64,
    /// Secrets of session handles, one a line, each of at least 16 bytes: the first one signs, all of them are
    /// accepted. Not set: a session's handle is its id.
    pub handle_secret_file: Option<PathBuf>,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self { keys_file: None, poll_ms: 2_000, handle_secret_file: None }
    }
}

/// The keys in effect. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    keys: Option<Arc<RwLock<Keys>>>,
    /// Everybody, where there are no keys.
    single: Caller,
}

impl Auth {
    /// Everybody is the one tenant.
    pub(crate) fn open(quota: Quota) -> Self {
        Self { keys: None, single: Caller { tenant: TenantId::single(), operator: true, quota } }
    }

    pub(crate) fn with(keys: Keys, quota: Quota) -> Self {
        Self { keys: Some(Arc::new(RwLock::new(keys))), ..Self::open(quota) }
    }

    /// # Errors
    /// [`RouteError::NoKey`] or [`RouteError::WrongKey`].
    pub(crate) fn caller(&self, metadata: &MetadataMap) -> Result<Caller, RouteError> {
        let Some(keys) = &self.keys else { return Ok(self.single.clone()) };
        let key = hawser_proto::bearer::token(metadata).ok_or(RouteError::NoKey)?;
        // Nothing under the lock can panic half-way.
        let keys = keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.caller(key).cloned().ok_or(RouteError::WrongKey)
    }

    /// As [`Auth::caller`], for what is not a tenant's business.
    ///
    /// # Errors
    /// [`RouteError::NotOperator`] besides.
    pub(crate) fn operator(&self, metadata: &MetadataMap) -> Result<(), RouteError> {
        if self.caller(metadata)?.operator { Ok(()) } else { Err(RouteError::NotOperator) }
    }

    fn replace(&self, new: Keys) {
        if let Some(keys) = &self.keys {
            *keys.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }
}
