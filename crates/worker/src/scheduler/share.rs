//! The prefix tree's part: which rows are offered to other sessions, and what gives way under pressure.

use hawser_common::SessionKey;
use hawser_common::clock::Tick;
use hawser_kv::{PrefixTree, SlotMap, SlotPool};

use super::{Scheduler, Sequence, StepPlan};

impl Scheduler {
    /// Offers a running sequence's rows as soon as its prompt has them: many agents begin alike at the same time.
    pub(super) fn publish(&mut self, index: usize, now: Tick) {
        let Self { running, tree, pool, .. } = self;
        if self.limits.share_prefixes {
            offer(tree, pool, &running[index], now);
        }
    }

    /// Offers the rows of a sequence that has ended.
    pub(super) fn publish_ended(&mut self, sequence: &Sequence, now: Tick) {
        if self.limits.share_prefixes {
            offer(&mut self.tree, &mut self.pool, sequence, now);
        }
    }

    /// Makes `count` slots free if that is possible without stopping a sequence that the plan runs: rows that only the
    /// tree holds go first, then idle sessions, then sequences admitted after the one at `index`.
    pub(super) fn make_room(&mut self, index: usize, count: usize, plan: &StepPlan) {
        while self.pool.free() < count {
            if self.tree.evict_leaf(count - self.pool.free(), &mut self.pool).is_some() {
                continue;
            }
            if let Some(left) = self.cache.demote(&mut self.pool) {
                left.into_iter().for_each(|left| self.forget(left));
                continue;
            }
            let last = self.running.len() - 1;
            let planned = plan.entries.iter().any(|entry| entry.sequence == self.running[last].id);
            if last <= index || planned {
                return;
            }
            self.preempt(last);
        }
    }

    /// Slots that would be taken from others before the pressure is felt; counted only for a session whose budget
    /// follows it.
    pub(super) fn given_up_first(&self, index: usize) -> usize {
        match self.running[index].keep.retention.adaptive_min_tokens {
            0 => 0,
            _ => self.reclaimable(None),
        }
    }

    /// Slots that are neither free nor held by a running or waiting sequence, by a session that moves, or by `keep`.
    pub(super) fn reclaimable(&self, keep: Option<&SessionKey>) -> usize {
        let mut held = 0;
        if self.needed(keep).any(|map| !map.is_empty()) {
            let mut seen = vec![false; self.pool.total()];
            for slot in self.needed(keep).flat_map(|map| map.live().iter().copied().chain(map.parked())) {
                held += usize::from(!std::mem::replace(&mut seen[slot.index()], true));
            }
        }
        self.pool.usable() - self.pool.free() - held
    }

    /// Whether `count` slots are free or [reclaimable](Self::reclaimable). Those that several hold are looked for only
    /// where they decide.
    pub(super) fn has_slots(&self, count: usize, keep: Option<&SessionKey>) -> bool {
        let free = self.pool.free();
        let held = || self.needed(keep).map(|map| map.live().len() + map.parked().count()).sum();
        free >= count
            || self.pool.usable().saturating_sub(held()) >= count
            || free + self.reclaimable(keep) >= count
    }

    /// Maps whose slots are not given up for others.
    fn needed(&self, keep: Option<&SessionKey>) -> impl Iterator<Item = &SlotMap> {
        let sequences = self.running.iter().chain(&self.waiting).map(|sequence| &sequence.map);
        let kept = keep.and_then(|key| self.cache.find(key)).map(|idle| &idle.map);
        sequences
            .chain(kept)
            .chain(self.cache.pinned_maps())
            .chain(self.arrivals.values().map(|idle| &idle.map))
    }
}

/// Offers a sequence's exact rows: those before its first hole, computed before its first prune.
fn offer(tree: &mut PrefixTree, pool: &mut SlotPool, sequence: &Sequence, now: Tick) {
    let map = &sequence.map;
    let exact = sequence.log.exact().min(map.len());
    let before_hole =
        || map.live_positions().iter().zip(0..).take_while(|(position, at)| position.0 == *at).count();
    let rows = if map.is_whole() { exact } else { exact.min(before_hole()) };
    if rows > 0 {
        let (tokens, slots) = (&sequence.tokens[..rows], &map.live()[..rows]);
        tree.publish(&sequence.namespace, tokens, slots, now, pool);
    }
}
