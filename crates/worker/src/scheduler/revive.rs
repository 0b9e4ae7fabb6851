//! Revival: what was evicted comes back when a request attends to it.
//!
//! Rows come from the prefix tree, where another session still shows them (free), from the archive (a copy each), or from
//! the model, which computes them again where the policy allows for that and they are exact (see [`super::refill`]).
//! Decided after the prompt's last row and after that prompt's prune, before the first decode.

use std::collections::BTreeMap;

use hawser_common::retention::Policy;
use hawser_common::{Position, SlotId};
use hawser_kv::retention::{
    Dead, Event, Evidence, Exchange, PruneRecord, Situation, exchange, refill_cost, revival_evidence,
};
use hawser_kv::{BLOCK_POSITIONS, RowMove};

use super::plan::{RankChange, SequenceId};
use super::prune::recursion;
use super::refill::Refill;
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
    /// Nowhere: it is computed again.
    Model,
}

/// Where dead rows of a sequence are that are not in its map.
#[derive(Debug, Default)]
struct Elsewhere {
    /// Of the exact positions, from the first on.
    tree: Vec<SlotId>,
    archive: BTreeMap<Position, SlotId>,
    /// Dead and exact, and in neither; ascending.
    missing: Vec<Position>,
}

impl Elsewhere {
    fn source(&self, position: Position) -> Source {
        let in_tree = self.tree.get(position.index()).map(|&slot| Source::Tree(slot));
        let archived = || self.archive.get(&position).map(|&slot| Source::Archive(slot));
        in_tree.or_else(archived).unwrap_or(Source::Model)
    }
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

    /// Where the rows of a sequence's dead positions are. What is missing is told only where it may be computed.
    fn elsewhere(&self, sequence: &Sequence) -> Elsewhere {
        let exact = sequence.log.exact().min(sequence.map.len());
        let tree = self.tree.rows(&sequence.namespace, &sequence.tokens[..exact]);
        let blocks = sequence.archive.into_iter().flat_map(|id| self.archive.blocks(id));
        let archive = blocks.flat_map(|block| block.rows.iter().copied()).collect();
        let mut found = Elsewhere { tree, archive, missing: Vec::new() };
        if sequence.keep.retention.refill_tokens > 0 {
            let dead = (0..exact).map(position).filter(|&at| is_dead(sequence, at));
            found.missing = dead.filter(|&at| found.source(at) == Source::Model).collect();
        }
        found
    }

    /// Blocks of dead positions whose rows are somewhere, or can be computed again.
    fn revivable(&self, sequence: &Sequence) -> Vec<Revivable> {
        let released = |position: &Position| sequence.released.binary_search(position).is_ok();
        let found = self.elsewhere(sequence);
        let most = sequence.keep.retention.refill_tokens as usize;
        let comes = |position: &Position| {
            let is_computed = found.source(*position) == Source::Model;
            let is_near = || {
                found.missing.binary_search(position).is_ok()
                    && refill_cost(&found.missing, *position) <= most
            };
            !released(position) && (!is_computed || is_near())
        };
        let mut blocks: BTreeMap<u32, Revivable> = BTreeMap::new();
        for block in sequence.archive.into_iter().flat_map(|id| self.archive.blocks(id)) {
            let mut positions: Vec<Position> = block.positions().filter(comes).collect();
            positions.sort_unstable();
            if let Some(first) = positions.first() {
                let number = first.0 / BLOCK_POSITIONS;
                let rows = positions.iter().map(|&position| (position, found.source(position))).collect();
                blocks.insert(number, Revivable { rows, keys: vec![block.digest] });
            }
        }
        let archived: Vec<u32> = blocks.keys().copied().collect();
        for (position, &slot) in (0..).map(Position).zip(&found.tree) {
            let number = position.0 / BLOCK_POSITIONS;
            let is_dead = is_dead(sequence, position);
            if !is_dead || released(&position) || archived.binary_search(&number).is_ok() {
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

    /// Copies, shares or computes the rows of what comes back, and evicts what goes for it. Nothing happens where the pool
    /// has no room for the copies: they are made before the others' slots are free.
    fn bring_back(&mut self, index: usize, revival: &Revival, chosen: &Exchange) -> bool {
        let blocks = revival.blocks.iter();
        let back: Vec<&Revivable> =
            blocks.filter(|block| chosen.revived.binary_search(&block.rows[0].0).is_ok()).collect();
        let mut wanted: Vec<(Position, Source)> =
            back.iter().flat_map(|block| block.rows.iter().copied()).collect();
        let count = |rows: &[(Position, Source)], is_of: fn(&Source) -> bool| {
            rows.iter().filter(|row| is_of(&row.1)).count()
        };
        let copied = count(&wanted, |source| matches!(source, Source::Archive(_)));
        let refilled = count(&wanted, |source| *source == Source::Model);
        self.add_holes(index, &mut wanted);
        let Some(rows) = self.hold(&wanted).filter(|_| !back.is_empty()) else { return false };
        let computed: Vec<(Position, SlotId)> = std::iter::zip(&wanted, &rows)
            .filter(|(wanted, _)| wanted.1 == Source::Model)
            .map(|(_, row)| *row)
            .collect();
        let sequence = &mut self.running[index];
        sequence.map.put_aside(&rows);
        let at = Sequence::positions(sequence.map.len(), 0).start;
        let Exchange { revived, evicted } = chosen.clone();
        sequence.log.push(PruneRecord { at, revived, evicted, freed: 0 });
        let blocks = back.iter().map(|block| block.rows[0].0).collect();
        let exchange = chosen.clone();
        sequence.refill = Some(Refill { rows: computed, next: 0, exchange, blocks, refilled, copied });
        self.finish_refills();
        true
    }

    /// Adds to rows that come back what has to be there for those of them that are computed: every hole before them.
    fn add_holes(&self, index: usize, wanted: &mut Vec<(Position, Source)>) {
        let sequence = &self.running[index];
        let computed = wanted.iter().filter(|row| row.1 == Source::Model);
        let Some(last) = computed.map(|row| row.0).max() else { return };
        let found = self.elsewhere(sequence);
        wanted.sort_unstable_by_key(|row| row.0);
        let holes = (0..last.0).map(Position).filter(|&at| is_dead(sequence, at));
        let unwanted = |at: &Position| wanted.binary_search_by_key(at, |row| row.0).is_err();
        let holes: Vec<(Position, Source)> =
            holes.filter(unwanted).map(|at| (at, found.source(at))).collect();
        wanted.extend(holes);
        wanted.sort_unstable_by_key(|row| row.0);
    }

    /// Gives rows slots: shared ones, or new ones to copy to or to compute. `None`: the pool has no room.
    fn hold(&mut self, wanted: &[(Position, Source)]) -> Option<Vec<(Position, SlotId)>> {
        let is_new = |row: &&(Position, Source)| !matches!(row.1, Source::Tree(_));
        let mut new = self.pool.allocate(wanted.iter().filter(is_new).count()).ok()?.into_iter();
        let mut rows = Vec::with_capacity(wanted.len());
        for &(position, source) in wanted {
            let slot = match source {
                Source::Tree(slot) => {
                    self.pool.retain(slot);
                    slot
                }
                Source::Archive(_) | Source::Model => new.next().expect("one slot per copy"),
            };
            if let Source::Archive(from) = source {
                self.changes.push(RankChange::Move(RowMove::Copy { from, to: slot }));
            }
            rows.push((position, slot));
        }
        Some(rows)
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
        let exact = match sequence.keep.retention.refill_tokens {
            0 => 0,
            _ => sequence.log.exact().min(sequence.map.len()),
        };
        let mut moves = Vec::new();
        self.archive.store(id, &rows, exact, &mut moves);
        self.changes.extend(moves.into_iter().map(RankChange::Move));
    }

    /// Forgets a sequence's archived positions from `len` on.
    pub(super) fn cut_archive(&mut self, id: Option<hawser_kv::ArchiveId>, len: usize) {
        let mut moves = Vec::new();
        id.iter().for_each(|&id| self.archive.truncate(id, len, &mut moves));
        self.changes.extend(moves.into_iter().map(RankChange::Move));
    }
}

fn is_dead(sequence: &Sequence, position: Position) -> bool {
    sequence.map.slot(position).is_some_and(SlotId::is_dead)
}

fn position(index: usize) -> Position {
    Position(index_of(index))
}

fn index_of(length: usize) -> u32 {
    u32::try_from(length).expect("slot ids are 32-bit")
}
