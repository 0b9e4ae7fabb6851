//! Shared helpers of the test binaries.

use std::path::PathBuf;

/// Root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The demo model's file.
///
/// # Panics
/// If it is not there: tests on the real model fail rather than pass unseen.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    clippy::panic,
    reason = "tests read their own environment and fail loudly"
)]
pub fn demo_model() -> PathBuf {
    let folder = std::env::var("HAWSER_MODEL_DIR").map_or_else(|_| root().join("models"), PathBuf::from);
    let file = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !file.is_file() {
        panic!("the demo model {} is missing: run ./scripts/test, which fetches it", file.display());
    }
    file
}
