//! Where models are on this machine.

use std::path::{Path, PathBuf};

use hawser_worker::{EngineKind, WorkerOptions};
use thiserror::Error;

/// Short name of the demo model.
pub const DEMO_NAME: &str = "smollm2-135m";
/// Its file.
pub const DEMO_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Size of that file.
pub const DEMO_BYTES: u64 = 98_362_432;

/// Most file names that an error lists.
const LISTED: usize = 8;

/// Why a model was not found.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ModelMissing {
    #[error("the demo model is not in {dir}; fetch it (98 MB) with: hawser pull {DEMO_NAME}")]
    Demo { dir: String },
    #[error(
        "there is no model {name:?}; give a .gguf file, a checkpoint directory, or a name in {dir} ({found}); \
         `hawser pull` fetches models"
    )]
    Unknown { name: String, dir: String, found: String },
}

/// The path of a model: a path that exists, the demo model's short name, or a name in `dir` with or without `.gguf`.
/// An empty name means the demo model.
///
/// # Errors
/// [`ModelMissing`] says what there is and how to get it.
pub fn resolve(name: &Path, dir: &Path) -> Result<PathBuf, ModelMissing> {
    if name.as_os_str().is_empty() || name == Path::new(DEMO_NAME) {
        let path = dir.join(DEMO_FILE);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(ModelMissing::Demo { dir: dir.display().to_string() })
        };
    }
    let with_suffix = dir.join(format!("{}.gguf", name.display()));
    let candidates = [name.to_owned(), dir.join(name), with_suffix];
    candidates.into_iter().find(|path| path.exists()).ok_or_else(|| ModelMissing::Unknown {
        name: name.display().to_string(),
        dir: dir.display().to_string(),
        found: listing(dir),
    })
}

/// The model of a group: as [`resolve`], but none for the simulated engine.
///
/// # Errors
/// As [`resolve`].
pub fn of_worker(worker: &WorkerOptions, dir: &Path) -> Result<PathBuf, ModelMissing> {
    match worker.engine {
        EngineKind::Model => resolve(&worker.model, dir),
        EngineKind::Simulated => Ok(PathBuf::new()),
    }
}

fn listing(dir: &Path) -> String {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.is_empty() {
        return "which is empty".to_owned();
    }
    names.sort();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("there are: {}{rest}", names.join(", "))
}

/// Bytes of a checkpoint: of the file, or of the files in the directory.
pub fn size(path: &Path) -> u64 {
    let bytes =
        |path: &Path| std::fs::metadata(path).map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
    if path.is_file() {
        return bytes(path);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| bytes(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_path_by_name_and_by_short_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let demo = || resolve(Path::new(""), dir);
        assert_eq!(demo(), Err(ModelMissing::Demo { dir: dir.display().to_string() }));
        std::fs::write(dir.join(DEMO_FILE), "GGUF").unwrap();
        std::fs::write(dir.join("other.gguf"), "GGUF!").unwrap();
        assert_eq!(demo(), Ok(dir.join(DEMO_FILE)));
        assert_eq!(resolve(Path::new("smollm2-135m"), dir), demo());
        for name in ["other", "other.gguf", dir.join("other.gguf").to_str().unwrap()] {
            assert_eq!(resolve(Path::new(name), dir), Ok(dir.join("other.gguf")), "{name}");
        }
        let missing = resolve(Path::new("nothing"), dir).unwrap_err().to_string();
        assert!(missing.contains("there are: SmolLM2-135M-Instruct.Q4_1.gguf, other.gguf"), "{missing}");
        assert_eq!(size(dir), 9);
    }
}
