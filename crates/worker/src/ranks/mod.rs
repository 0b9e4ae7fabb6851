//! The ranks of a group: one plan, carried out by all of them.
//!
//! The leader decides and says so in [`Command`]s; every rank, the leader's own included, carries them out in order on
//! its shard. Promises that ranks which ran the same commands hold the same tables, and that a rank which cannot go on
//! ends the group instead of leaving a command out.

mod awaited;
mod command;
mod door;
mod engine;
mod follower;
mod formation;
mod leader;
mod link;
mod probe;
mod processes;
mod rank;
mod rendezvous;
mod report;
mod sums;
mod tables;
mod threads;
mod traced;

pub use awaited::Awaited;
pub use command::{Command, CommandError, Scoring, Work};
pub use engine::{Engine, EngineFigures};
pub use follower::follow;
pub use formation::{FormError, Formation};
pub use leader::Leader;
pub use link::{BEAT, Channel, Link};
pub use probe::{Probe, Seat, Unprobed};
pub use processes::{FollowError, Follower, Processes};
pub use rank::{Outcome, Rank, RankError};
pub use report::{GroupReport, Health, Phase, RankFigures, RankReport};
pub use sums::Sums;
pub use tables::{Table, TableChange, Tables};
pub use threads::Threads;
pub use traced::{RankWatch, Traced};
