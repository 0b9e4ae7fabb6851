//! Retention: which positions of a session stay live when its history outgrows its budget. Pure.
//!
//! An event goes [`Event::new`] → scores of its candidates (from the ranks, or [`local_scores`]) → [`select`] → evicted
//! positions → [`crate::SlotMap::evict`], and is written to the session's [`PruneLog`]. Promises: sinks, the protected
//! prefix, the forced end of the query span and the recent window are never evicted; equal scores give equal sets
//! whatever computed them; positions never change. Never touches rows, clocks or devices.

mod candidates;
mod local;
mod log;
mod marks;
mod observed;
mod refill;
mod revive;
mod select;
#[cfg(test)]
mod tests;

pub use candidates::{Event, Situation};
pub use local::local_scores;
pub use log::{PruneLog, PruneRecord};
pub use marks::{Marks, Origin};
pub use observed::Observed;
pub use refill::{RefillRun, refill_cost, refill_runs};
pub use revive::{Dead, Exchange, exchange, revival_evidence};
pub use select::{Selection, select};

use hawser_common::retention::{Policy, Retention};
use serde::{Deserialize, Serialize};

/// Where the scores of an event come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Evidence {
    /// Positions and roles alone.
    Local,
    /// One query per layer and head: the session's memory.
    Memory,
    /// Query rows kept from the prompt's end or the last answer.
    Window,
    /// Attention mass gathered in every step.
    Mass,
}

impl Evidence {
    /// What a policy decides by.
    #[must_use]
    pub const fn of(policy: Policy) -> Self {
        match policy {
            Policy::Full | Policy::Streaming | Policy::Random | Policy::RolePrior => Self::Local,
            Policy::SnapKv | Policy::AnswerRows => Self::Window,
            Policy::H2o => Self::Mass,
            Policy::IntentQuery | Policy::IntentMemory | Policy::IntentMemoryPaper => Self::Memory,
        }
    }
}

/// Whether so many live positions call for a prune: more than budget + trigger.
#[must_use]
pub fn is_due(retention: &Retention, budget: u32, live: usize) -> bool {
    retention.prunes() && live > budget as usize + retention.trigger_tokens as usize
}

/// The budget while `used` of `total` slots are held: shrinks linearly from 60 to 90 % where the session allows it.
#[must_use]
pub fn budget(retention: &Retention, used: usize, total: usize) -> u32 {
    let most = retention.budget_tokens;
    let least = retention.adaptive_min_tokens;
    if least == 0 || least >= most || total == 0 {
        return most;
    }
    // In thousandths, so that it is exact.
    let pressure = (used * 1_000 / total).clamp(600, 900) - 600;
    most - u32::try_from(u64::from(most - least) * pressure as u64 / 300).expect("below the budget")
}
