//! Fills the memories of a step's sequences while its layers run.

use std::collections::HashMap;

use hawser_common::SlotId;
use hawser_device::cpu::Isa;
use hawser_device::kv::KvRows;
use hawser_device::score::{MassCall, ScoreScratch, mass};
use hawser_device::threads::Threads;

use super::Executor;
use super::batch::Batch;
use super::memory::{MemoryId, Observe, QueryMemory, Recursion};
use crate::config::ModelConfig;
use crate::layers::Observer;

/// One sequence that is observed.
struct Entry<'a> {
    observe: &'a Observe,
    memory: QueryMemory,
    rows: std::ops::Range<usize>,
    context: &'a [SlotId],
    own: &'a [SlotId],
}

/// The memories of one step, taken out of the executor while it runs.
pub(super) struct Recorder<'a> {
    entries: Vec<Entry<'a>>,
    heads: usize,
    width: usize,
    scratch: &'a mut ScoreScratch,
}

impl<'a> Recorder<'a> {
    pub(super) fn open(
        batch: &Batch<'a>,
        config: &ModelConfig,
        memories: &mut HashMap<MemoryId, QueryMemory>,
        scratch: &'a mut ScoreScratch,
    ) -> Self {
        let observed = batch.sequences.iter().filter_map(|s| s.observe.as_ref().map(|observe| (s, observe)));
        let entries = observed.map(|(sequence, observe)| {
            let new = || QueryMemory::new(config.layers, config.heads, config.head_dim);
            let mut memory = memories.remove(&observe.memory).unwrap_or_else(new);
            memory.open(observe);
            if observe.mass {
                memory.mass.resize(sequence.context.len() + sequence.rows.len(), 0.0);
            }
            let own = &batch.slots[sequence.rows.clone()];
            Entry { observe, memory, rows: sequence.rows.clone(), context: sequence.context, own }
        });
        Self { entries: entries.collect(), heads: config.heads, width: config.query_width(), scratch }
    }

    pub(super) fn close(self, memories: &mut HashMap<MemoryId, QueryMemory>) {
        for mut entry in self.entries {
            entry.memory.close(entry.observe);
            memories.insert(entry.observe.memory, entry.memory);
        }
    }
}

impl Observer for Recorder<'_> {
    fn queries(&mut self, layer: usize, query: &[f32], kv: &KvRows, threads: &Threads) {
        for entry in &mut self.entries {
            entry.memory.record(entry.observe, layer, query);
            if entry.observe.mass {
                let q = &query[entry.rows.start * self.width..entry.rows.end * self.width];
                let (context, own, heads) = (entry.context, entry.own, self.heads);
                let call = MassCall { kv, layer, context, own, q, heads, isa: Isa::best() };
                mass(threads, &call, &mut entry.memory.mass, self.scratch);
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

    /// Follows a change of the live list: these keys of it are left, by index.
    pub fn keep_mass(&mut self, id: MemoryId, kept: &[u32]) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.keep_mass(kept);
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
