//! The test kit's own tests: the fake etcd beside a real one, and histories that the checks must refuse.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail loudly and tell what they saw"
)]

mod checks;
mod fake_etcd;
