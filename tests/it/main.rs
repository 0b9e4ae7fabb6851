//! End-to-end tests: a whole cluster in this process, and real processes that talk gRPC.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod arrows;
mod cluster;
mod faults;
mod inspect;
mod moving;
mod process;
mod processes;
mod ranks;
mod retention;
mod turns;
