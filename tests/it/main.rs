//! End-to-end tests: a whole cluster in this process, and real processes that talk gRPC.

mod arrows;
mod cluster;
mod faults;
mod process;
mod processes;
mod turns;
