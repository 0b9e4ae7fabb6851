//! Checkpoints from the Hugging Face hub.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::download::{self, DownloadError};
use crate::console::line;

/// Files of a checkpoint besides its weights; only `config.json` must be there.
const SIDE_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "model.safetensors.index.json",
];
/// Most file names that an error lists.
const LISTED: usize = 12;

/// Why a checkpoint could not be fetched.
#[derive(Debug, Error)]
pub enum HubError {
    #[error("{text:?} is not ORG/REPO or ORG/REPO:FILE")]
    Name { text: String },
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error("the hub's list of files of {repo} is not understood: {cause}")]
    Index { repo: String, cause: String },
    #[error("{repo} has several .gguf files; name one: hawser pull hf:{repo}:FILE (there are: {files})")]
    Several { repo: String, files: String },
    #[error("{repo} has neither a .gguf file nor config.json with safetensors")]
    Nothing { repo: String },
    #[error("cannot make the folder {path}: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
}

/// What to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    repo: String,
    file: Option<String>,
}

impl Source {
    /// Parses `ORG/REPO` or `ORG/REPO:FILE`.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = || HubError::Name { text: text.to_owned() };
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let plain = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty() && part.chars().all(allowed) && !part.starts_with('.')
        };
        let (organisation, name) = repo.split_once('/').ok_or_else(wrong)?;
        let whole = plain(organisation) && plain(name) && file.is_none_or(|file| file.split('/').all(plain));
        if whole { Ok(Self { repo: repo.to_owned(), file: file.map(str::to_owned) }) } else { Err(wrong()) }
    }
}

#[derive(Deserialize)]
struct Index {
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// What to download of a repository.
#[derive(Debug, PartialEq, Eq)]
enum Selection {
    /// One file is the model.
    Single(String),
    /// A folder of files is.
    Folder(Vec<String>),
}

/// Fetches a model into `dir`; gives the path to hand to `--model`.
pub fn fetch(hub: &str, source: &Source, dir: &Path) -> Result<PathBuf, HubError> {
    let hub = hub.trim_end_matches('/');
    let repo = &source.repo;
    let selection = match &source.file {
        Some(file) => Selection::Single(file.clone()),
        None => select(repo, &list(hub, repo)?)?,
    };
    let url = |file: &str| format!("{hub}/{repo}/resolve/main/{file}");
    match selection {
        Selection::Single(file) => {
            let target = dir.join(file.rsplit('/').next().unwrap_or(&file));
            download::file(&url(&file), &target)?;
            Ok(target)
        }
        Selection::Folder(files) => {
            let target = dir.join(repo.rsplit('/').next().unwrap_or(repo));
            std::fs::create_dir_all(&target)
                .map_err(|source| HubError::Folder { path: target.clone(), source })?;
            for file in files {
                line(format!("{repo}: {file}"));
                download::file(&url(&file), &target.join(&file))?;
            }
            Ok(target)
        }
    }
}

fn list(hub: &str, repo: &str) -> Result<Vec<String>, HubError> {
    let text = download::text(&format!("{hub}/api/models/{repo}"))?;
    let index: Index = serde_json::from_str(&text)
        .map_err(|error| HubError::Index { repo: repo.to_owned(), cause: error.to_string() })?;
    Ok(index.siblings.into_iter().map(|sibling| sibling.rfilename).collect())
}

/// A checkpoint of safetensors where there is one, else the only `.gguf` file.
fn select(repo: &str, files: &[String]) -> Result<Selection, HubError> {
    let at_root = |suffix: &str| -> Vec<String> {
        files.iter().filter(|name| name.ends_with(suffix) && !name.contains('/')).cloned().collect()
    };
    let weights = at_root(".safetensors");
    if !weights.is_empty() && files.iter().any(|name| name == "config.json") {
        let side = SIDE_FILES.iter().filter(|&&name| files.iter().any(|file| file == name));
        return Ok(Selection::Folder(side.map(|&name| name.to_owned()).chain(weights).collect()));
    }
    let repo = repo.to_owned();
    match at_root(".gguf").as_slice() {
        [] => Err(HubError::Nothing { repo }),
        [only] => Ok(Selection::Single(only.clone())),
        several => {
            let shown: Vec<&str> = several.iter().take(LISTED).map(String::as_str).collect();
            Err(HubError::Several { repo, files: shown.join(", ") })
        }
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
