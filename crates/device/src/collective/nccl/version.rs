//! Versions of NCCL, as its library encodes them in one number.

use std::fmt;

/// A release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// The oldest release that starts a group without blocking and takes our whole configuration.
pub(super) const OLDEST: Version = Version { major: 2, minor: 18, patch: 0 };

impl Version {
    /// From the library's number. Up to 2.8 it was major, minor and patch of one, one and two digits.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn from_code(code: u32) -> Self {
        let major_unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / major_unit, minor: code % major_unit / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
