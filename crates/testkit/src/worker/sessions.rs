//! What a scripted worker holds: of each session the turns that were committed to it, checked out by one turn at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_common::SessionKey;
use tokio::sync::OwnedMutexGuard;

use crate::history::TurnId;

/// A session's history.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) turns: Vec<TurnId>,
    /// The term of the registration that it was claimed under.
    pub(super) claimed: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    entries: Mutex<BTreeMap<SessionKey, Arc<tokio::sync::Mutex<Transcript>>>>,
}

impl Sessions {
    /// The session, once its running turn has ended.
    pub(super) async fn checkout(&self, key: &SessionKey) -> OwnedMutexGuard<Transcript> {
        loop {
            let entry = {
                let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(entries.entry(key.clone()).or_default())
            };
            let held = Arc::clone(&entry).lock_owned().await;
            // It may have been forgotten while this turn waited.
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            if entries.get(key).is_some_and(|current| Arc::ptr_eq(current, &entry)) {
                return held;
            }
        }
    }

    /// Forgets a session that is checked out.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
