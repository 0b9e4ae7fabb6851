//! Fills the memories of a step's sequences while its layers run.

use std::collections::HashMap;

use hawser_common::{Position, SlotId};
use hawser_device::cpu::Isa;
use hawser_device::kv::KvRows;
use hawser_device::query_heads::QueryHeads;
use hawser_device::score::{MassCall, ScoreScratch, mass};
use hawser_device::threads::Threads;

use super::Executor;
use super::batch::Batch;
use super::memory::{MemoryId, Observe, QueryMemory, Recursion};
use crate::layers::{Model, Observer};

/// One sequence that is observed.
struct Entry<'a> {
    observe: &'a Observe,
    /// Which of the memories.
    memory: usize,
    rows: std::ops::Range<usize>,
    /// What its last row sees, for the runs whose attention counts; else empty.
    seen: Vec<SlotId>,
    /// The positions of that, and the attention they receive in this step.
    positions: Vec<Position>,
    sums: Vec<i64>,
    /// Shares that were no finite number and were left out of the sums.
    non_finite: u64,
}

/// The memories of one step, taken out of the executor while it runs.
pub(super) struct Recorder<'a> {
    entries: Vec<Entry<'a>>,
    memories: Vec<(MemoryId, QueryMemory)>,
    heads: QueryHeads,
    width: usize,
    scratch: &'a mut ScoreScratch,
}

impl<'a> Recorder<'a> {
    pub(super) fn open(
        batch: &Batch<'a>,
        model: &Model,
        memories: &mut HashMap<MemoryId, QueryMemory>,
        scratch: &'a mut ScoreScratch,
    ) -> Self {
        let (config, heads) = (model.config(), model.shard().heads.readers());
        let mut taken: Vec<(MemoryId, QueryMemory)> = Vec::new();
        let mut entries = Vec::new();
        for sequence in batch.sequences {
            let Some(observe) = &sequence.observe else { continue };
            let place = taken.iter().position(|(id, _)| *id == observe.memory);
            let index = place.unwrap_or_else(|| {
                let new = || QueryMemory::new(config.layers, heads.count(), config.head_dim);
                taken.push((observe.memory, memories.remove(&observe.memory).unwrap_or_else(new)));
                taken.len() - 1
            });
            taken[index].1.open(observe);
            let rows = sequence.rows.clone();
            let (seen, positions) = if observe.mass.is_empty() {
                (Vec::new(), Vec::new())
            } else {
                let own = &batch.positions[rows.clone()];
                ([sequence.context, &batch.slots[rows.clone()]].concat(), [sequence.positions, own].concat())
            };
            let sums = vec![0; seen.len()];
            entries.push(Entry { observe, memory: index, rows, seen, positions, sums, non_finite: 0 });
        }
        Self { entries, memories: taken, heads, width: heads.count() * config.head_dim, scratch }
    }

    pub(super) fn close(mut self, memories: &mut HashMap<MemoryId, QueryMemory>) {
        for entry in &self.entries {
            let memory = &mut self.memories[entry.memory].1;
            memory.close(entry.observe);
            memory.add_mass(entry.positions.iter().copied(), &entry.sums, entry.non_finite);
        }
        memories.extend(self.memories);
    }
}

impl Observer for Recorder<'_> {
    fn queries(&mut self, layer: usize, query: &[f32], kv: &KvRows, threads: &Threads) {
        for entry in &mut self.entries {
            self.memories[entry.memory].1.record(entry.observe, layer, query);
            let before = entry.seen.len().saturating_sub(entry.rows.len());
            for run in &entry.observe.mass {
                let from = before + run.start - entry.rows.start;
                let (context, own) = entry.seen[..from + run.len()].split_at(from);
                let (q, heads) = (&query[run.start * self.width..run.end * self.width], self.heads);
                let call = MassCall { kv, layer, context, own, q, heads, isa: Isa::best() };
                let scored = mass(threads, &call, &mut entry.sums[..from + run.len()], self.scratch);
                entry.non_finite += scored.non_finite;
            }
        }
    }
}

impl Executor {
    /// Begins a request of a session: what it asks is gathered anew.
    pub fn begin_memory(&mut self, id: MemoryId) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.begin();
        }
    }

    /// Ends a request's query span: its mean becomes part of the memory.
    pub fn remember(&mut self, id: MemoryId, recursion: Recursion) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.remember(recursion);
        }
    }

    /// Takes the running request back.
    pub fn take_back_memory(&mut self, id: MemoryId) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.take_back();
        }
    }

    /// Gives `to` a copy of what is remembered of `from`.
    pub fn fork_memory(&mut self, from: MemoryId, to: MemoryId) {
        if let Some(memory) = self.memories.get(&from).cloned() {
            self.memories.insert(to, memory);
        }
    }

    pub fn forget_memory(&mut self, id: MemoryId) {
        self.memories.remove(&id);
    }

    /// What is remembered of a session.
    #[must_use]
    pub fn memory(&self, id: MemoryId) -> Option<&QueryMemory> {
        self.memories.get(&id)
    }
}
