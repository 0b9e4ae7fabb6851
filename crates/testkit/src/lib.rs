//! For tests only: a fake etcd, a scripted worker, histories of what happened and their checks.
//!
//! Nothing that is shipped depends on this crate. It stands in for what is outside Hawser, or cannot run in simulated
//! time; what is under test around it is the real code.

pub mod etcd;
pub mod history;
pub mod worker;

pub use etcd::FakeEtcd;
pub use worker::{Script, ScriptedWorker};
