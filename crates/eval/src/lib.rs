//! What a retention policy costs and saves: replays of recorded trajectories, statistics over them, reports.
//!
//! A [`traces::Trace`] is prepared for a model ([`mod@prepare`]), replayed under a policy with the rows that a serving
//! group would compute ([`replay`]), compared with the replay that keeps everything, and reported ([`report`]).
//! Uses the same executor, slot maps and retention code as a worker. Never samples: trajectories are teacher-forced.

pub mod bench;
pub mod needles;
pub mod prepare;
pub mod quality;
pub mod replay;
pub mod report;
pub mod resume;
pub mod run;
pub mod session;
pub mod stats;
pub mod traces;
