//! Reads a file of sessions, one JSON object a line.
//!
//! Owns the file's limits and where an error was. Promises that every error but one of the disk names the line, and
//! that no more memory than a line's limit is used before the line is refused. Never skips a bad line: a measurement
//! over half a file would look like one over the whole.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use hawser_common::{Coded, ErrorCode};

use super::Trace;
use super::check::{TraceFault, check};

/// Largest file, in bytes: all sessions of a file are held in memory.
pub const MAX_FILE_BYTES: u64 = 1 << 30;
/// Longest line, in bytes.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

/// Why a file of sessions could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("could not read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has {bytes} bytes; at most {MAX_FILE_BYTES} are read: split it", path.display())]
    FileTooLong { path: PathBuf, bytes: u64 },
    #[error("{} has no session", path.display())]
    NoSession { path: PathBuf },
    #[error("{}, line {line}: longer than {MAX_LINE_BYTES} bytes", path.display())]
    LineTooLong { path: PathBuf, line: usize },
    #[error("{}, line {line}, column {column}: {reason}", path.display())]
    Malformed { path: PathBuf, line: usize, column: usize, reason: String },
    #[error("{}, line {line}: {fault}", path.display())]
    Invalid { path: PathBuf, line: usize, fault: TraceFault },
}

impl Coded for TraceError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => ErrorCode::NotFound,
            Self::Read { .. } => ErrorCode::Unavailable,
            Self::FileTooLong { .. }
            | Self::NoSession { .. }
            | Self::LineTooLong { .. }
            | Self::Malformed { .. }
            | Self::Invalid { .. } => ErrorCode::Invalid,
        }
    }
}

/// All sessions of a file, in its order. Empty lines are passed over.
///
/// # Errors
/// [`TraceError`] for the first line that is no session, a file beyond the limits, one without sessions, or one that
/// cannot be read.
pub fn read_traces(path: &Path) -> Result<Vec<Trace>, TraceError> {
    let read = |source| TraceError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(TraceError::FileTooLong { path: path.to_owned(), bytes });
    }
    // The limit holds for what is not a plain file as well, or grows while it is read.
    let traces = parse(BufReader::new(file.take(MAX_FILE_BYTES)), path)?;
    if traces.is_empty() {
        return Err(TraceError::NoSession { path: path.to_owned() });
    }
    Ok(traces)
}

fn parse(mut input: impl BufRead, path: &Path) -> Result<Vec<Trace>, TraceError> {
    let mut traces = Vec::new();
    let mut ids = BTreeSet::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let limited = &mut (&mut input).take(MAX_LINE_BYTES + 1);
        let read = limited.read_until(b'\n', &mut text);
        read.map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        if text.is_empty() {
            break;
        }
        if text.len() as u64 > MAX_LINE_BYTES {
            return Err(TraceError::LineTooLong { path: path.to_owned(), line });
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let trace: Trace = serde_json::from_slice(&text).map_err(|error| malformed(&error, path, line))?;
        let repeated =
            (!ids.insert(trace.id.clone())).then(|| TraceFault::RepeatedId { id: trace.id.clone() });
        let fault = check(&trace).err().or(repeated);
        if let Some(fault) = fault {
            return Err(TraceError::Invalid { path: path.to_owned(), line, fault });
        }
        traces.push(trace);
    }
    Ok(traces)
}

/// The parser counts lines from the start of what it was given, which is always one line: its own count is cut off.
fn malformed(error: &serde_json::Error, path: &Path, line: usize) -> TraceError {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    TraceError::Malformed { path: path.to_owned(), line, column: error.column(), reason }
}
