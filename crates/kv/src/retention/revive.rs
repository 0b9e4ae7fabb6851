//! Which dead positions come back, and what goes for them: an event after the prompt's last row.
//!
//! Dead positions are scored in blocks, together with the live candidates, by what the request attends to. A block
//! comes back if a position of it is worth more than (1 + δ) times what goes in its place. So a session's reads stay
//! as they are, and what came back last does not go again for a little more: δ is the hysteresis.

use std::cmp::Reverse;

use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};

use super::Evidence;
use super::candidates::Event;
use super::local::local_scores;
use super::marks::Marks;
use super::select::weighted;

/// Dead positions that come back together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Ascending.
    pub positions: Vec<Position>,
    /// Of one of them.
    pub score: i64,
}

/// What an event changes; both ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    pub revived: Vec<Position>,
    pub evicted: Vec<Position>,
}

/// What scores the dead of a policy: its own evidence, or where it has none the end of the prompt.
#[must_use]
pub const fn revival_evidence(policy: Policy) -> Evidence {
    match Evidence::of(policy) {
        Evidence::Memory => Evidence::Memory,
        Evidence::Window | Evidence::Mass | Evidence::Local => Evidence::Window,
    }
}

/// Decides an event. `scores[i]` is that of `event.candidates[i]`, by the same evidence as those of the dead. At most an
/// eighth of the budget comes back.
///
/// # Panics
/// If there is not one score per candidate, a bug.
#[must_use]
pub fn exchange(
    retention: &Retention,
    marks: &Marks,
    (event, budget): (&Event, u32),
    scores: &[i64],
    dead: &[Dead],
) -> Exchange {
    let candidates = &event.candidates;
    assert_eq!(scores.len(), candidates.len(), "one score per candidate");
    let mut going = eviction_order(retention, marks, candidates, scores).into_iter();
    let mut room = (budget as usize).saturating_sub(event.forced + candidates.len());
    let mut left = budget as usize / 8;
    let margin = 1.0 + f64::from(retention.revive_margin);
    let all = scores.len() + dead.iter().map(|block| block.positions.len()).sum::<usize>();
    let sum = scores.iter().map(|&score| score as f64).sum::<f64>()
        + dead.iter().map(|block| block.score as f64 * block.positions.len() as f64).sum::<f64>();
    let mean = sum / all.max(1) as f64;
    let mut order: Vec<&Dead> = dead.iter().filter(|block| block.positions.len() <= left).collect();
    order.sort_unstable_by_key(|block| Reverse((block.score, block.positions.first().copied())));
    let mut exchange = Exchange::default();
    for block in order {
        let count = block.positions.len();
        if count > left {
            break;
        }
        let free = room.min(count);
        let victims: Vec<usize> = going.by_ref().take(count - free).collect();
        let theirs: f64 = victims.iter().map(|&index| scores[index] as f64).sum();
        let worth = (theirs + mean * free as f64) / count as f64;
        if victims.len() + free < count || block.score as f64 <= margin * worth {
            break;
        }
        (room, left) = (room - free, left - count);
        exchange.revived.extend(&block.positions);
        exchange.evicted.extend(victims.iter().map(|&index| candidates[index]));
    }
    exchange.revived.sort_unstable();
    exchange.evicted.sort_unstable();
    exchange
}

/// Indexes of candidates, the one that the policy values least first.
fn eviction_order(
    retention: &Retention,
    marks: &Marks,
    candidates: &[Position],
    scores: &[i64],
) -> Vec<usize> {
    let values = match Evidence::of(retention.policy) {
        Evidence::Local => local_scores(retention, marks, candidates),
        Evidence::Memory | Evidence::Window | Evidence::Mass => {
            weighted(retention, marks, candidates, scores)
        }
    };
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_unstable_by_key(|&index| (values[index], candidates[index]));
    order
}
