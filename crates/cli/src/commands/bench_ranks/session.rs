//! Steps of one session, and what they take.

use std::sync::Arc;

use hawser_common::clock::Clock;
use hawser_common::{Position, SlotId};
use hawser_worker::ranks::TableChange;
use hawser_worker::scheduler::{EntryKind, PlanEntry, SequenceId, StepPlan};

use super::Figures;
use super::way::Way;

/// Tokens that are decoded in one round.
pub(super) const DECODED: usize = 24;
/// Rows of a step of prefill: what a worker gives a long prompt at a time.
const CHUNK: usize = 256;

/// The session that is decoded, and the one that is prefilled from nothing.
const LONG: SequenceId = SequenceId(1);
const COLD: SequenceId = SequenceId(2);

/// How long everything is.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    vocab: usize,
    pub(super) depths: Vec<usize>,
    pub(super) prefill: Vec<usize>,
    /// Tokens of the long session.
    pub(super) longest: usize,
    cold: usize,
}

impl Sizes {
    pub(super) fn new(vocab: usize, depths: &[usize], prefill: &[usize]) -> Self {
        let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let (depths, prefill) = (depths.to_vec(), prefill.to_vec());
        Self { vocab, longest: most(&depths), cold: most(&prefill), depths, prefill }
    }

    /// Of the pool, the dead slot included.
    pub(super) fn slots(&self) -> usize {
        1 + self.usable()
    }

    fn usable(&self) -> usize {
        self.longest + DECODED + self.cold
    }

    /// The `index`-th slot: scattered, as those of a pool that has been in use are.
    fn slot(&self, index: usize) -> SlotId {
        let usable = self.usable() as u64;
        let mut stride = (usable / 3) | 1;
        while gcd(stride, usable) > 1 {
            stride += 2;
        }
        SlotId(1 + u32::try_from(index as u64 * stride % usable).unwrap_or(u32::MAX))
    }

    fn token(&self, index: usize) -> u32 {
        let mixed = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        u32::try_from(mixed % self.vocab as u64).unwrap_or(0)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What ranks have sent and spent so far.
struct Counts {
    traffic: [u64; 3],
    across: f64,
    computing: Vec<f64>,
}

/// A way's session.
pub(super) struct Session {
    sizes: Sizes,
}

impl Session {
    /// Runs the long session's tokens.
    pub(super) fn fill(way: &mut Way, sizes: &Sizes) -> anyhow::Result<Self> {
        let session = Self { sizes: sizes.clone() };
        session.run(way, LONG, (0, 0..sizes.longest), Vec::new())?;
        Ok(session)
    }

    /// Decodes after `depth` tokens of the long session, which stays as it is.
    pub(super) fn decode(&self, way: &mut Way, depth: usize, clock: &Clock) -> anyhow::Result<Figures> {
        let row = |index| (position(index), self.sizes.slot(index));
        let rows = (0..depth).map(row).collect();
        // The table first, and a first step that is not counted.
        let set = vec![TableChange::Set { sequence: LONG, rows }];
        let spare = self.sizes.longest;
        let step = |at: usize| (spare + at, depth + at..depth + at + 1);
        self.run(way, LONG, step(0), set)?;
        let before = counts(way)?;
        let began = clock.now();
        for at in 1..DECODED {
            self.run(way, LONG, step(at), Vec::new())?;
        }
        let seconds = clock.now().since(began).as_secs_f64();
        figures(way, depth, before, (seconds, DECODED - 1, DECODED - 1))
    }

    /// Runs a prompt from nothing.
    pub(super) fn prefill(&self, way: &mut Way, tokens: usize, clock: &Clock) -> anyhow::Result<Figures> {
        let before = counts(way)?;
        let began = clock.now();
        let set = vec![TableChange::Set { sequence: COLD, rows: Vec::new() }];
        self.run(way, COLD, (self.sizes.longest + DECODED, 0..tokens), set)?;
        let seconds = clock.now().since(began).as_secs_f64();
        figures(way, tokens, before, (seconds, 1, tokens))
    }

    /// Runs the positions `range` of a sequence in steps; the first of them takes the `first`-th slot. The last one's
    /// logits are asked for.
    fn run(
        &self,
        way: &mut Way,
        sequence: SequenceId,
        (first, range): (usize, std::ops::Range<usize>),
        mut tables: Vec<TableChange>,
    ) -> anyhow::Result<()> {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + CHUNK);
            let slot = |at: usize| self.sizes.slot(first + at - range.start);
            let entry = PlanEntry {
                sequence,
                rows: 0..end - start,
                kind: EntryKind::Next,
                sample: end == range.end,
                observe: None,
                remember: None,
                prune: false,
            };
            let plan = StepPlan {
                tables: std::mem::take(&mut tables),
                tokens: (start..end).map(|at| self.sizes.token(at)).collect(),
                positions: (start..end).map(position).collect(),
                slots: (start..end).map(slot).collect(),
                entries: vec![entry],
                ..StepPlan::default()
            };
            way.leader.step(&Arc::new(plan))?;
            start = end;
        }
        Ok(())
    }
}

fn position(index: usize) -> Position {
    Position(u32::try_from(index).unwrap_or(u32::MAX))
}

/// A beat asks every rank for its figures; what the beat itself sends is not counted.
fn counts(way: &mut Way) -> anyhow::Result<Counts> {
    way.leader.beat()?;
    let traffic = way.leader.traffic();
    let sum = |of: fn(&hawser_device::collective::Traffic) -> u64| traffic.iter().map(of).sum();
    Ok(Counts {
        traffic: [
            sum(|traffic| traffic.calls),
            sum(|traffic| traffic.messages),
            sum(|traffic| traffic.bytes),
        ],
        across: way.leader.timers().iter().map(|timer| timer.spent().as_secs_f64()).sum(),
        computing: way.leader.figures().iter().map(|rank| rank.computing_us as f64 / 1e6).collect(),
    })
}

/// From the counts before, over `seconds`, `steps` and `tokens`.
fn figures(
    way: &mut Way,
    length: usize,
    before: Counts,
    (seconds, steps, tokens): (f64, usize, usize),
) -> anyhow::Result<Figures> {
    let traffic = way.leader.traffic();
    let across: f64 = way.leader.timers().iter().map(|timer| timer.spent().as_secs_f64()).sum();
    let sum = |of: fn(&hawser_device::collective::Traffic) -> u64| traffic.iter().map(of).sum::<u64>();
    let now = [sum(|traffic| traffic.calls), sum(|traffic| traffic.messages), sum(|traffic| traffic.bytes)];
    let [calls, messages, bytes] =
        std::array::from_fn(|which| (now[which] - before.traffic[which]) as f64 / steps as f64);
    let after = counts(way)?.computing;
    let computed = after.iter().zip(&before.computing).map(|(after, before)| (after - before) / steps as f64);
    Ok(Figures {
        tokens: length,
        tokens_per_second: tokens as f64 / seconds,
        share_across_ranks: (across - before.across) / seconds,
        calls,
        messages,
        bytes,
        computing_seconds: computed.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_another_and_none_is_dead() {
        for (longest, cold) in [(0, 1), (7, 128), (100, 0), (4096, 512)] {
            let sizes = Sizes::new(100, &[longest], &[cold]);
            let mut slots: Vec<_> = (0..sizes.usable()).map(|index| sizes.slot(index).0).collect();
            slots.sort_unstable();
            let all: Vec<_> = (1..=u32::try_from(sizes.usable()).unwrap()).collect();
            assert_eq!(slots, all, "{longest} {cold}");
        }
    }
}
