//! Scores that need no attention: streaming, random, role prior.

use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};

use super::marks::{Marks, Origin};

/// Above any position: what stands in front of all that is merely newer.
const FIRST: i64 = 1 << 40;

/// Scores of candidates by their positions and origins. All zero for policies that have other evidence: then the
/// newest win, which is what a session without evidence falls back to.
#[must_use]
pub fn local_scores(retention: &Retention, marks: &Marks, candidates: &[Position]) -> Vec<i64> {
    let score = |position: &Position| match retention.policy {
        Policy::Random => i64::try_from(hash(retention.seed, position.0) >> 16).expect("48 bits"),
        Policy::RolePrior if marks.at(position.0).0 == Origin::Assistant => FIRST + i64::from(position.0),
        Policy::RolePrior | Policy::Streaming => i64::from(position.0),
        Policy::Full
        | Policy::SnapKv
        | Policy::H2o
        | Policy::IntentQuery
        | Policy::IntentMemory
        | Policy::IntentMemoryPaper
        | Policy::AnswerRows => 0,
    };
    candidates.iter().map(score).collect()
}

/// SplitMix64 over seed and position (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn hash(seed: u64, position: u32) -> u64 {
    let mut z = seed.wrapping_add(u64::from(position).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
