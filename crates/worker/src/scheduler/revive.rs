//! Revival: what was evicted comes back when a request attends to it.
//!
//! Rows come from the prefix tree, where another session still shows them (free), or from the archive (a copy each).
//! Decided after the prompt's last row and after that prompt's prune, before the first decode.

use std::collections::BTreeMap;

use hawser_common::retention::Policy;
use hawser_common::{Position, SlotId};
use hawser_kv::retention::{
    Dead, Event, Evidence, Exchange, PruneRecord, Situation, exchange, revival_evidence,
};
use hawser_kv::{BLOCK_POSITIONS, RowMove};

use super::plan::{RankChange, SequenceId};
use super::prune::recursion;
use super::{Scheduler, Sequence};
use crate::ranks::Scoring;

/// Dead positions that could come back, and what is scored for them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Revivable {
    /// Ascending.
    rows: Vec<(Position, Source)>,
    /// The keys that stand for them.
    keys: Vec<SlotId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Held by the prefix tree: the session becomes one more holder.
    Tree(SlotId),
    Archive(SlotId),
}

/// A revival whose scores are on their way.
#[derive(Clone, Debug)]
pub(super) struct Revival {
    blocks: Vec<Revivable>,
    event: Event,
    budget: u32,
}

impl Scheduler {
    /// Prepares the revival that follows a prompt, if there is something that could come back.
    pub(super) fn prepare_revival(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        let Some(budget) = sequence.revives.take().filter(|_| sequence.memory.is_some()) else { return };
        let sequence = &self.running[index];
        let keep = &sequence.keep;
        let blocks = self.revivable(sequence);
        if blocks.is_empty() {
            return;
        }
        let len = Sequence::positions(sequence.map.len(), 0).start;
        let event = Event::new(&Situation {
            retention: &keep.retention,
            budget,
            live: sequence.map.live_positions(),
            len,
            protected: keep.protected,
            span: keep.span.start.min(len)..keep.span.end.min(len),
            pins: &keep.pins,
        });
        self.running[index].revival = Some(Revival { blocks, event, budget });
    }

    /// Blocks of dead positions whose rows are somewhere.
    fn revivable(&self, sequence: &Sequence) -> Vec<Revivable> {
        let released = |position: &Position| sequence.released.binary_search(position).is_ok();
        let is_dead = |position: &Position| sequence.map.slot(*position).is_some_and(SlotId::is_dead);
        let exact = sequence.log.exact().min(sequence.map.len());
        let in_tree = self.tree.rows(&sequence.namespace, &sequence.tokens[..exact]);
        let from_tree = |position: Position| in_tree.get(position.index()).map(|&slot| Source::Tree(slot));
        let mut blocks: BTreeMap<u32, Revivable> = BTreeMap::new();
        for block in sequence.archive.into_iter().flat_map(|id| self.archive.blocks(id)) {
            let source = |&(position, slot): &(Position, SlotId)| {
                (position, from_tree(position).unwrap_or(Source::Archive(slot)))
            };
            let rows: Vec<(Position, Source)> =
                block.rows.iter().map(source).filter(|(position, _)| !released(position)).collect();
            if let Some((first, _)) = rows.first() {
                let number = first.0 / BLOCK_POSITIONS;
                blocks.insert(number, Revivable { rows, keys: vec![block.digest] });
            }
        }
        let archived: Vec<u32> = blocks.keys().copied().collect();
        for (position, &slot) in (0..).map(Position).zip(&in_tree) {
            let number = position.0 / BLOCK_POSITIONS;
            if !is_dead(&position) || released(&position) || archived.binary_search(&number).is_ok() {
                continue;
            }
            let block =
                blocks.entry(number).or_insert_with(|| Revivable { rows: Vec::new(), keys: Vec::new() });
            block.rows.push((position, Source::Tree(slot)));
            block.keys.push(slot);
        }
        blocks.into_values().collect()
    }

    /// What the ranks score for a sequence's revival; `None` where none is due.
    #[must_use]
    pub fn revival(&self, id: SequenceId) -> Option<Scoring> {
        let sequence = self.running.iter().find(|sequence| sequence.id == id)?;
        let (revival, memory) = (sequence.revival.as_ref()?, sequence.memory?);
        let retention = &sequence.keep.retention;
        let evidence = revival_evidence(retention.policy);
        let mut keys: Vec<SlotId> =
            revival.blocks.iter().flat_map(|block| block.keys.iter().copied()).collect();
        let first = index_of(keys.len());
        keys.extend_from_slice(sequence.map.live());
        let mut wanted = revival.event.candidates.iter().peekable();
        let live = sequence.map.live_positions();
        let chosen = (first..).zip(live).filter(|(_, position)| wanted.next_if_eq(position).is_some());
        let candidates = (0..first).chain(chosen.map(|(index, _)| index)).collect();
        let peek = (sequence.map.len() < sequence.prompt).then(|| recursion(retention));
        Some(Scoring {
            memory,
            evidence,
            peek,
            keys,
            candidates,
            positions: Vec::new(),
            keep: revival.event.keep,
            pool: 1,
            causal: evidence == Evidence::Window && retention.policy != Policy::AnswerRows,
            aggregation: retention.aggregation,
        })
    }

    /// Carries a revival out and says what it changed; without scores nothing comes back.
    pub fn settle_revival(&mut self, id: SequenceId, scores: Option<&[i64]>) -> Exchange {
        let none = Exchange::default();
        let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else { return none };
        let sequence = &mut self.running[index];
        let (Some(revival), Some(scores)) = (sequence.revival.take(), scores) else { return none };
        let keep = &sequence.keep;
        let dead_keys: usize = revival.blocks.iter().map(|block| block.keys.len()).sum();
        let (mut of_dead, live) = scores.split_at(dead_keys);
        let mut dead = Vec::with_capacity(revival.blocks.len());
        for block in &revival.blocks {
            let (own, rest) = of_dead.split_at(block.keys.len());
            of_dead = rest;
            let score = own.iter().sum::<i64>() / i64::try_from(own.len()).expect("a block has keys");
            dead.push(Dead { positions: block.rows.iter().map(|row| row.0).collect(), score });
        }
        let event = (&revival.event, revival.budget);
        let chosen = exchange(&keep.retention, &keep.marks, event, live, &dead);
        if self.bring_back(index, &revival, &chosen) { chosen } else { none }
    }

    /// Copies or shares the rows of what comes back, and evicts what goes for it. Nothing happens where the pool has no
    /// room for the copies: they are made before the others' slots are free.
    fn bring_back(&mut self, index: usize, revival: &Revival, chosen: &Exchange) -> bool {
        let blocks = revival.blocks.iter();
        let back: Vec<&Revivable> =
            blocks.filter(|block| chosen.revived.binary_search(&block.rows[0].0).is_ok()).collect();
        let copies = back.iter().flat_map(|block| &block.rows);
        let copies = copies.filter(|row| matches!(row.1, Source::Archive(_))).count();
        let Ok(slots) = self.pool.allocate(copies) else { return false };
        if back.is_empty() {
            return false;
        }
        let sequence = &mut self.running[index];
        let mut slots = slots.into_iter();
        let mut rows = Vec::with_capacity(chosen.revived.len());
        for &(position, source) in back.iter().flat_map(|block| &block.rows) {
            match source {
                Source::Tree(slot) => {
                    self.pool.retain(slot);
                    rows.push((position, slot));
                }
                Source::Archive(from) => {
                    let to = slots.next().expect("one slot per copy");
                    self.changes.push(RankChange::Move(RowMove::Copy { from, to }));
                    rows.push((position, to));
                }
            }
        }
        for block in &back {
            sequence.archive.map(|id| self.archive.take(id, block.rows[0].0));
        }
        sequence.map.revive(&rows);
        sequence.kept.revived += rows.len();
        sequence.kept.copied += copies;
        let at = Sequence::positions(sequence.map.len(), 0).start;
        let revived: Vec<Position> = rows.iter().map(|row| row.0).collect();
        self.evict(index, &chosen.evicted);
        self.running[index].log.push(PruneRecord { at, revived, ..PruneRecord::default() });
        true
    }

    /// Copies of rows that are about to be evicted go to the archive.
    pub(super) fn archive(&mut self, index: usize, evicted: &[Position]) {
        let sequence = &mut self.running[index];
        if !sequence.keep.retention.revive || self.archive.slots() == 0 {
            return;
        }
        let id = *sequence.archive.get_or_insert_with(|| self.archive.open());
        let slot = |&position: &Position| Some((position, sequence.map.slot(position)?));
        let kept = evicted.iter().filter(|position| sequence.released.binary_search(position).is_err());
        let rows: Vec<(Position, SlotId)> = kept.filter_map(slot).collect();
        let mut moves = Vec::new();
        self.archive.store(id, &rows, &mut moves);
        self.changes.extend(moves.into_iter().map(RankChange::Move));
    }

    /// Forgets a sequence's archived positions from `len` on.
    pub(super) fn cut_archive(&mut self, id: Option<hawser_kv::ArchiveId>, len: usize) {
        let mut moves = Vec::new();
        id.iter().for_each(|&id| self.archive.truncate(id, len, &mut moves));
        self.changes.extend(moves.into_iter().map(RankChange::Move));
    }
}

fn index_of(length: usize) -> u32 {
    u32::try_from(length).expect("slot ids are 32-bit")
}
