//! A router over the embedded store, with workers that are real gRPC servers and fake everything else.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod admitting;
mod cluster;
mod continuing;
mod failing;
mod keys;
mod naming;
mod placing;
#[path = "../../../worker/src/remote_store.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the worker's client of the served store, tested against its server"
)]
mod remote_store;
mod secured;
mod serving;
mod silence;
mod storing;
mod worker;
