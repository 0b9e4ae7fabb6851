//! What happened in a cluster, in order, and what must never have happened.
//!
//! Clients, workers and the store write into one [`Recorder`]; [`check()`] reads the whole when it is over. The checks
//! are pure and know nothing of how the history came about.

mod check;
mod event;

pub use check::{Rules, Violation, check};
pub use event::{End, Entry, Event, Recorder, TurnId};
