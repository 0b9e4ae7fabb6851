//! What can go wrong when device memory is set up. Kernels themselves cannot fail: they assert what only a bug
//! could break.

use hawser_common::{Coded, ErrorCode};
use thiserror::Error;

/// Why memory for weights or KV rows could not be set up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The operating system has no such amount of memory.
    #[error("no memory for {bytes} bytes: lower the pool size or use a smaller model ({reason})")]
    OutOfMemory { bytes: usize, reason: String },
    /// The size does not fit an address.
    #[error("{items} items of {item_bytes} bytes do not fit the address space: lower the pool size")]
    TooLarge { items: usize, item_bytes: usize },
    /// A shape that no kernel can serve.
    #[error("{name} is {value}; it must be at least {least}")]
    Shape { name: &'static str, value: usize, least: usize },
}

impl Coded for DeviceError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::OutOfMemory { .. } => ErrorCode::Exhausted,
            Self::TooLarge { .. } | Self::Shape { .. } => ErrorCode::Invalid,
        }
    }
}
