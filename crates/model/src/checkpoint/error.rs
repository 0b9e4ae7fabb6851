//! Why a checkpoint cannot be opened, and what to do about it.

use std::path::PathBuf;

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

use crate::text::TokenizerError;

/// A checkpoint that cannot be used.
#[derive(Debug, Error)]
#[error("{}: {fault}", path.display())]
pub struct CheckpointError {
    /// The file or directory at fault.
    pub path: PathBuf,
    pub fault: CheckpointFault,
}

/// What is wrong with it. Every variant names the key or tensor where there is one.
#[derive(Debug, Error)]
pub enum CheckpointFault {
    #[error("no such file or directory: check the path, or fetch the demo model with `hawser pull`")]
    NotFound,
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    #[error(
        "neither a .gguf file nor a directory with config.json and *.safetensors, or with one .gguf file"
    )]
    NotACheckpoint,
    #[error("holds {found} .gguf files: name the one to load")]
    SeveralGguf { found: usize },
    #[error("is not a GGUF file (it begins with {found:02x?}): download it again")]
    NotGguf { found: [u8; 4] },
    #[error("is GGUF version {found}; versions 2 and 3, little-endian, are read: convert the model again")]
    Version { found: u32 },
    #[error("ends inside {what}: {need} more bytes are announced and {have} are there; download it again")]
    Truncated { what: String, need: u64, have: u64 },
    #[error("{what} announces {count} items, more than the file can hold: download it again")]
    Count { what: String, count: u64 },
    #[error("{what} is not UTF-8: convert the model again")]
    NotUtf8 { what: String },
    #[error("key {key} appears twice: convert the model again")]
    DuplicateKey { key: String },
    #[error("key {key} is missing: convert the model again, or get a complete copy")]
    MissingKey { key: String },
    #[error("key {key} has the unknown value type {found}: the file is newer than this program, or damaged")]
    ValueType { key: String, found: u32 },
    #[error("key {key} is {found}; expected is {expected}")]
    KeyType { key: String, expected: &'static str, found: &'static str },
    #[error("key {key} is {value}; {expected}")]
    KeyValue { key: String, value: String, expected: String },
    #[error("tensor {tensor} appears twice: convert the model again")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor} is missing: get a complete copy")]
    MissingTensor { tensor: String },
    #[error(
        "tensor {tensor} is no part of a {architecture} model: running without it would give wrong answers"
    )]
    ExtraTensor { tensor: String, architecture: &'static str },
    #[error(
        "tensor {tensor} has the unknown dtype {found}; F32, F16, BF16, Q4_0 to Q8_1 and Q2_K to Q8_K are read"
    )]
    UnknownDtype { tensor: String, found: String },
    #[error("tensor {tensor} has the shape {found:?}; the model's configuration asks for {expected:?}")]
    TensorShape { tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {tensor} has the impossible shape {found:?}: download the file again")]
    ImpossibleShape { tensor: String, found: Vec<u64> },
    #[error(
        "tensor {tensor} begins at {offset}, no multiple of the alignment {alignment}: convert the model again"
    )]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor {tensor} ends at byte {end} of a file of {have} bytes: download it again")]
    OutOfFile { tensor: String, end: u64, have: u64 },
    #[error("tensor {tensor} overlaps tensor {other}: convert the model again")]
    Overlap { tensor: String, other: String },
    #[error("is of the architecture {found}; served are Llama, Qwen2 and Qwen3 (dense)")]
    Architecture { found: String },
    #[error("uses {what}, which is not served: {why}")]
    Unsupported { what: String, why: &'static str },
    #[error("is not valid JSON of the expected form: {reason}")]
    Json { reason: String },
    #[error("is not a valid safetensors file: {reason}")]
    Safetensors { reason: String },
    #[error("has no tokenizer ({missing}): get a complete copy")]
    NoTokenizer { missing: &'static str },
    #[error("{0}")]
    Tokenizer(TokenizerError),
}

impl CheckpointFault {
    /// The error of a file or directory with this fault.
    pub(crate) fn at(self, path: impl Into<PathBuf>) -> CheckpointError {
        CheckpointError { path: path.into(), fault: self }
    }
}

impl From<std::io::Error> for CheckpointFault {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound { Self::NotFound } else { Self::Io(error) }
    }
}

impl Coded for CheckpointError {
    fn code(&self) -> ErrorCode {
        match self.fault {
            CheckpointFault::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Invalid,
        }
    }
}
