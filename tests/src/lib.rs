//! Shared helpers of the test binaries.
