//! Where the golden files and the demo model are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

/// The three tiny checkpoints, one per architecture.
pub(crate) const TINY: [&str; 3] = ["tiny-llama", "tiny-qwen2", "tiny-qwen3"];

const DEMO_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[allow(clippy::disallowed_methods, reason = "tests have no configuration to read it through")]
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The project's fixtures, or the folder that `HAWSER_FIXTURES` names.
pub(crate) fn folder() -> PathBuf {
    variable("HAWSER_FIXTURES").unwrap_or_else(|| repository().join("tests/fixtures"))
}

/// The demo model, from `models/` or the folder that `HAWSER_MODEL_DIR` names.
pub(crate) fn demo_model() -> Result<PathBuf> {
    let path = variable("HAWSER_MODEL_DIR").unwrap_or_else(|| repository().join("models")).join(DEMO_MODEL);
    ensure!(path.is_file(), "{} is missing: run ./scripts/test, which fetches it", path.display());
    Ok(path)
}

/// Parses a golden file of the fixtures.
pub(crate) fn read<T: DeserializeOwned>(name: &str) -> Result<T> {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
