//! The name of a group that is to be made: rank 0 draws it, and the caller carries it to the others.
//!
//! Promises that an id of the wrong length is refused. Never sends it anywhere.

use std::fmt;

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

/// By which ranks find each other. Whoever knows it can join, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId([u8; Self::LEN]);

/// Bytes that cannot be an id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a unique id of NCCL has {} bytes, not {found}", UniqueId::LEN)]
pub struct UniqueIdError {
    pub found: usize,
}

impl Coded for UniqueIdError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

impl UniqueId {
    /// Bytes of an id, by NCCL's interface.
    pub const LEN: usize = 128;

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl From<[u8; Self::LEN]> for UniqueId {
    fn from(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = UniqueIdError;

    fn try_from(bytes: &[u8]) -> Result<Self, UniqueIdError> {
        bytes.try_into().map(Self).map_err(|_| UniqueIdError { found: bytes.len() })
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}
