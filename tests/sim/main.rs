//! Clusters in simulated time, over a simulated network: real routers, real registrations, the real store over a fake
//! etcd, scripted workers, and the SDK.
//!
//! Every simulation runs in a process of its own and depends on its seed alone. A seed that fails is run again with
//! `HAWSER_SIM_SEED=7 cargo test -p hawser-tests --test sim -- random`.

#![allow(clippy::panic, clippy::print_stdout, reason = "tests fail loudly and tell what they saw")]

mod alone;
mod client;
mod cluster;
mod faults;
mod net;
mod outages;
mod placing;
mod random;
