//! Reading the file of keys, at the start and whenever it changes.
//!
//! Its content is compared, not its time: a mounted secret is replaced by switching a link, and times may go backwards.
//! A file that is bad or gone leaves the keys as they were, which is said once for each bad content.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::keys::{InvalidKeys, Keys, MAX_BYTES};
use super::{Auth, AuthOptions};
use crate::quota::Quota;

/// What was read.
#[derive(Debug)]
pub(crate) struct KeysFile {
    path: PathBuf,
    text: String,
}

impl KeysFile {
    /// Reads the keys that `options` name, for the first time.
    pub(crate) fn load(options: &AuthOptions, quota: &Quota) -> Result<(Auth, Option<Self>), InvalidKeys> {
        let Some(path) = options.keys_file.clone() else { return Ok((Auth::open(quota.clone()), None)) };
        let text = read(&path)?;
        let keys = Keys::parse(&text, quota)?;
        info!(path = %path.display(), keys = keys.count(), "API keys are asked for");
        Ok((Auth::with(keys, quota.clone()), Some(Self { path, text })))
    }

    /// Keeps `auth` as the file has it, until `stopping`.
    pub(crate) async fn follow(
        mut self,
        auth: Auth,
        quota: Quota,
        every: Duration,
        stopping: CancellationToken,
    ) {
        // What was complained about last.
        let mut complaint = String::new();
        loop {
            // Cancel-safe: both branches only wait.
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let path = self.path.clone();
            let found = match tokio::task::spawn_blocking(move || read(&path)).await {
                Ok(Ok(text)) if text == self.text => continue,
                Ok(Ok(text)) => Keys::parse(&text, &quota).map(|keys| (keys, text)),
                Ok(Err(failure)) => Err(failure),
                Err(_) => continue,
            };
            match found {
                Ok((keys, text)) => {
                    info!(path = %self.path.display(), keys = keys.count(), "API keys were read again");
                    auth.replace(keys);
                    self.text = text;
                    complaint.clear();
                }
                Err(failure) => {
                    let failure = failure.to_string();
                    if failure != complaint {
                        let path = self.path.display();
                        error!(%path, %failure, "the API keys cannot be read again; the old ones stay");
                        complaint = failure;
                    }
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<String, InvalidKeys> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_BYTES as u64 {
        return Err(InvalidKeys::TooLarge { bytes });
    }
    Ok(std::fs::read_to_string(path)?)
}
