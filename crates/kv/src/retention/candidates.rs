//! What an event may evict: the live positions without the forced ones.

use std::ops::Range;

use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};

/// Least tokens of a query span that are forced.
const LEAST_SPAN: u32 = 32;

/// A session at the moment of an event.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    pub retention: &'a Retention,
    /// C at this moment.
    pub budget: u32,
    /// A, ascending.
    pub live: &'a [Position],
    /// N.
    pub len: u32,
    /// π: the system message and the tools, as rendered.
    pub protected: u32,
    /// [qs, qe): what the request asks.
    pub span: Range<u32>,
    /// Kept for certain, up to half the budget; ascending, disjoint.
    pub pins: &'a [Range<u32>],
}

/// One prune event before its scores are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// H, ascending.
    pub candidates: Vec<Position>,
    /// C*: how many of them stay.
    pub keep: usize,
    /// |F ∩ A|.
    pub forced: usize,
    /// More is forced than the budget holds: every candidate goes, and the session stays above its budget.
    pub overflow: bool,
}

impl Event {
    /// Parts the live positions into forced ones and candidates.
    #[must_use]
    pub fn new(situation: &Situation<'_>) -> Self {
        let forced = Forced::new(situation);
        let candidates: Vec<Position> =
            situation.live.iter().copied().filter(|position| !forced.contains(position.0)).collect();
        let budget = situation.budget as usize;
        let forced = situation.live.len() - candidates.len();
        Self { keep: budget.saturating_sub(forced), candidates, forced, overflow: forced > budget }
    }
}

/// F: sinks, protected prefix, the end of the query span, the recent window, pins, and the newest position.
struct Forced {
    /// Below this.
    front: u32,
    /// From here on.
    back: u32,
    span: Range<u32>,
    pins: Vec<Range<u32>>,
}

impl Forced {
    fn new(situation: &Situation<'_>) -> Self {
        let Situation { retention, budget, len, .. } = *situation;
        let mut recent = retention.recent_tokens.max(1);
        if retention.policy == Policy::SnapKv {
            recent = recent.max(retention.window_rows);
        }
        let mut span = situation.span.clone();
        if retention.span_cap {
            let cap = LEAST_SPAN.max(budget / 4);
            span.start = span.start.max(span.end.saturating_sub(cap));
        }
        Self {
            front: retention.sink_tokens.max(situation.protected),
            back: len.saturating_sub(recent),
            span,
            pins: within(situation.pins, budget / 2),
        }
    }

    fn contains(&self, position: u32) -> bool {
        position < self.front
            || position >= self.back
            || self.span.contains(&position)
            || self.pins.iter().any(|pin| pin.contains(&position))
    }
}

/// The last of the pins that together have at most `most` positions; the first of those is cut to fit.
fn within(pins: &[Range<u32>], most: u32) -> Vec<Range<u32>> {
    let mut left = most;
    let mut kept = Vec::new();
    for pin in pins.iter().rev() {
        let take = left.min(pin.end - pin.start);
        left -= take;
        if take > 0 {
            kept.push(pin.end - take..pin.end);
        }
    }
    kept
}
