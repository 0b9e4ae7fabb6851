//! The identity of a checkpoint, cheap enough for every start.
//!
//! SHA-256 over the configuration, over everything in the files that precedes the weights (names, dtypes, shapes,
//! tokenizer), over the files' lengths, and over a sample of each tensor: its first, middle and last 256 bytes. Two
//! checkpoints of the same shape differ in every tensor's sample unless they were edited by hand; a digest of all
//! bytes would cost a second per gigabyte at each start.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::tensors::TensorEntry;

const SAMPLE_BYTES: usize = 256;

/// Identity of a checkpoint's content. Equal digests: the same model, wherever its files lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Collects what a digest covers.
pub(super) struct Digester(Sha256);

impl Digester {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds a run of bytes, with its length, so that runs cannot be shifted into each other.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Adds a sample of a tensor of `file`.
    pub(super) fn add_sample(&mut self, file: &[u8], tensor: &TensorEntry) {
        let data = &file[tensor.bytes.clone()];
        let sample = data.len().min(SAMPLE_BYTES);
        let middle = (data.len() - sample) / 2;
        for from in [0, middle, data.len() - sample] {
            self.add(&data[from..from + sample]);
        }
    }

    pub(super) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}
