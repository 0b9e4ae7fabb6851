//! End-to-end tests: a whole cluster in this process, and real processes that talk gRPC.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod arrows;
mod cluster;
mod collector;
mod etcd;
mod faults;
mod inspect;
mod moving;
mod network;
mod partition;
mod process;
mod processes;
mod ranks;
mod retention;
mod telemetry;
mod turns;
