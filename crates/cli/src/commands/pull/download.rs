//! One file over HTTP, resumable: into `FILE.part` first, renamed when it is whole.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use thiserror::Error;

const BUFFER: usize = 256 << 10;

/// Why a file could not be fetched.
#[derive(Debug, Error)]
pub enum DownloadError {
    #[error("{url} is not there (404); check the names of organisation, repository and file")]
    NotFound { url: String },
    #[error("{url} needs a login ({status}); this command fetches public files only")]
    Denied { url: String, status: u16 },
    #[error("cannot reach {url}: {cause}; without internet, copy the file into the folder of models by hand")]
    Network { url: String, cause: String },
    #[error("{url} answered with status {status}")]
    Status { url: String, status: u16 },
    #[error("{url} ended after {found} of {expected} bytes; run the command again to go on from there")]
    Short { url: String, found: u64, expected: u64 },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// Fetches `url` to `target`; does nothing where `target` is there. A `.part` file from before is continued.
pub fn file(url: &str, target: &Path) -> Result<(), DownloadError> {
    if target.is_file() {
        return Ok(());
    }
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let have = std::fs::metadata(&part).map_or(0, |meta| meta.len());
    let request = ureq::get(url);
    let request = if have > 0 { request.header("range", format!("bytes={have}-")) } else { request };
    let response = match request.call() {
        // The part is longer than the file: it is of another version.
        Err(ureq::Error::StatusCode(416)) => {
            std::fs::remove_file(&part).map_err(|source| DownloadError::Write { path: part, source })?;
            return file(url, target);
        }
        other => other.map_err(|error| failure(url, error))?,
    };
    let continued = response.status().as_u16() == 206;
    let start = if continued { have } else { 0 };
    let total = response.body().content_length().map(|rest| start + rest);
    let opened =
        OpenOptions::new().create(true).append(continued).write(true).truncate(!continued).open(&part);
    let mut out = opened.map_err(|source| DownloadError::Write { path: part.clone(), source })?;
    let bar = bar(target, total);
    bar.set_position(start);
    let copied = copy(&mut response.into_body().into_reader(), &mut out, &bar);
    bar.finish_and_clear();
    let found = start + copied.map_err(|error| error.at(url, &part))?;
    match total {
        Some(expected) if found != expected => {
            Err(DownloadError::Short { url: url.to_owned(), found, expected })
        }
        _ => finish(&part, target),
    }
}

fn finish(part: &Path, target: &Path) -> Result<(), DownloadError> {
    std::fs::rename(part, target).map_err(|source| DownloadError::Write { path: target.to_owned(), source })
}

/// Which side of a copy failed.
enum CopyError {
    Read(std::io::Error),
    Write(std::io::Error),
}

impl CopyError {
    fn at(self, url: &str, path: &Path) -> DownloadError {
        match self {
            Self::Read(error) => DownloadError::Network { url: url.to_owned(), cause: error.to_string() },
            Self::Write(source) => DownloadError::Write { path: path.to_owned(), source },
        }
    }
}

fn copy(from: &mut impl Read, to: &mut File, bar: &ProgressBar) -> Result<u64, CopyError> {
    let mut buffer = vec![0; BUFFER];
    let mut copied = 0;
    loop {
        let read = from.read(&mut buffer).map_err(CopyError::Read)?;
        if read == 0 {
            return Ok(copied);
        }
        to.write_all(&buffer[..read]).map_err(CopyError::Write)?;
        copied += read as u64;
        bar.inc(read as u64);
    }
}

/// The body of a small text file, such as an index.
pub fn text(url: &str) -> Result<String, DownloadError> {
    let mut response = ureq::get(url).call().map_err(|error| failure(url, error))?;
    response.body_mut().read_to_string().map_err(|error| failure(url, error))
}

fn failure(url: &str, error: ureq::Error) -> DownloadError {
    let url = url.to_owned();
    match error {
        ureq::Error::StatusCode(404) => DownloadError::NotFound { url },
        ureq::Error::StatusCode(status @ (401 | 403)) => DownloadError::Denied { url, status },
        ureq::Error::StatusCode(status) => DownloadError::Status { url, status },
        other => DownloadError::Network { url, cause: other.to_string() },
    }
}

fn bar(target: &Path, total: Option<u64>) -> ProgressBar {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (bar, template) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        }
        None => (ProgressBar::no_length(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(name)
}
