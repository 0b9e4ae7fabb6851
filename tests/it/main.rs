//! End-to-end tests: a whole cluster in this process, and real processes that talk gRPC.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod arrows;
mod cluster;
mod collector;
mod continuing;
mod etcd;
#[path = "../../crates/router/tests/router/worker.rs"]
#[allow(dead_code, reason = "the router's own tests use the rest")]
mod fake_worker;
mod faults;
mod group;
mod hop;
mod inspect;
mod leaving;
mod lifecycle;
mod move_faults;
mod move_kills;
mod moving;
mod netns;
mod network;
mod news;
mod partition;
mod process;
mod processes;
mod rank_tls;
mod ranks;
mod rebalance;
mod retention;
mod secured;
mod simulated;
mod telemetry;
mod turns;
