//! A naive prefix tree: every row under the whole list of tokens that leads to it. Slow, and simple enough to trust.

use std::collections::BTreeMap;

use hawser_common::SlotId;
use hawser_common::clock::Tick;
use hawser_kv::SlotPool;

/// A namespace and all tokens up to the row's own.
pub(crate) type Prefix = (usize, Vec<u32>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) slot: SlotId,
    pub(crate) used: Tick,
    /// Whether a walk ended here once: what follows is evicted apart from what leads here.
    pub(crate) cut: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) rows: BTreeMap<Prefix, Row>,
}

impl Model {
    pub(crate) fn matched(&self, namespace: usize, tokens: &[u32]) -> usize {
        (0..tokens.len()).take_while(|&i| self.rows.contains_key(&(namespace, tokens[..=i].to_vec()))).count()
    }

    /// Marks the rows of `tokens` as used and returns their slots.
    pub(crate) fn walk(&mut self, namespace: usize, tokens: &[u32], now: Tick) -> Vec<SlotId> {
        let matched = self.matched(namespace, tokens);
        let mut slots = Vec::new();
        for end in 1..=matched {
            let row = self.rows.get_mut(&(namespace, tokens[..end].to_vec())).unwrap();
            row.used = now;
            row.cut |= end == matched;
            slots.push(row.slot);
        }
        slots
    }

    pub(crate) fn publish(&mut self, namespace: usize, tokens: &[u32], slots: &[SlotId], now: Tick) -> usize {
        let held = self.walk(namespace, tokens, now).len();
        let last = (namespace, tokens[..held].to_vec());
        if (1..tokens.len()).contains(&held) && !self.has_more(&last) {
            // It goes on in the same node.
            self.rows.get_mut(&last).unwrap().cut = false;
        }
        for end in held + 1..=tokens.len() {
            let row = Row { slot: slots[end - 1], used: now, cut: false };
            self.rows.insert((namespace, tokens[..end].to_vec()), row);
        }
        tokens.len() - held
    }

    pub(crate) fn remove(&mut self, prefix: &Prefix) {
        self.rows.remove(prefix).unwrap();
    }

    /// Whether a row follows.
    pub(crate) fn has_more(&self, prefix: &Prefix) -> bool {
        self.below(prefix).count() > 1
    }

    /// A row and all that follow it.
    fn below<'a>(&'a self, prefix: &'a Prefix) -> impl Iterator<Item = (&'a Prefix, &'a Row)> {
        let all = self.rows.range(prefix.clone()..);
        all.take_while(|(other, _)| other.0 == prefix.0 && other.1.starts_with(&prefix.1))
    }

    /// The rows that are evicted together with this one, which is the last of them.
    pub(crate) fn together(&self, last: &Prefix) -> Vec<Prefix> {
        let mut rows = vec![last.clone()];
        for end in (1..last.1.len()).rev() {
            let above = (last.0, last.1[..end].to_vec());
            if self.rows[&above].cut {
                break;
            }
            rows.push(above);
        }
        rows
    }

    /// Rows that others do not follow directly in one node.
    fn ends(&self) -> impl Iterator<Item = &Prefix> {
        self.rows.iter().filter(|(prefix, row)| row.cut || !self.has_more(prefix)).map(|(prefix, _)| prefix)
    }

    pub(crate) fn nodes(&self) -> usize {
        self.ends().count()
    }

    pub(crate) fn leaves(&self) -> Vec<Prefix> {
        self.rows.keys().filter(|prefix| !self.has_more(prefix)).cloned().collect()
    }

    /// Of the rows that would be evicted together with a leaf's last one, those after the last row in use.
    pub(crate) fn idle_end(&self, last: &Prefix, pool: &SlotPool) -> Vec<Prefix> {
        let is_idle = |prefix: &Prefix| pool.refs(self.rows[prefix].slot) == 1;
        self.together(last).into_iter().take_while(is_idle).collect()
    }

    /// Rows that nobody but the tree holds, nor any that follows them.
    pub(crate) fn reclaimable(&self, pool: &SlotPool) -> usize {
        let is_idle = |prefix: &&Prefix| self.below(prefix).all(|(_, row)| pool.refs(row.slot) == 1);
        self.rows.keys().filter(is_idle).count()
    }
}
