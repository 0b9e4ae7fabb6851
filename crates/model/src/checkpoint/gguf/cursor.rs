//! A bounds-checked reader over bytes that nobody vouches for. Never allocates by a number it read.

use crate::checkpoint::error::CheckpointFault;

/// Reads little-endian values from the front of a byte slice.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `length` bytes; `what` names them in the error.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], CheckpointFault> {
        let have = self.left();
        match usize::try_from(length) {
            Ok(length) if length <= have => {
                let taken = &self.bytes[self.at..self.at + length];
                self.at += length;
                Ok(taken)
            }
            _ => Err(CheckpointFault::Truncated { what: what.to_owned(), need: length, have: have as u64 }),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CheckpointFault> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("take returns the length asked for"))
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], CheckpointFault> {
        self.array("the magic number")
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, CheckpointFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, CheckpointFault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of items, each of at least `least_bytes`, that follow in the file: refused where they cannot.
    pub(super) fn count(&mut self, what: &str, least_bytes: usize) -> Result<usize, CheckpointFault> {
        let count = self.u64(what)?;
        let most = (self.left() / least_bytes) as u64;
        match usize::try_from(count) {
            Ok(count_here) if count <= most => Ok(count_here),
            _ => Err(CheckpointFault::Count { what: what.to_owned(), count }),
        }
    }

    /// A string: its length in 8 bytes, then UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, CheckpointFault> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|_| CheckpointFault::NotUtf8 { what: what.to_owned() })
    }

    /// Passes over a string without looking at its bytes.
    pub(super) fn skip_string(&mut self, what: &str) -> Result<(), CheckpointFault> {
        let length = self.u64(what)?;
        self.take(length, what).map(|_| ())
    }
}
