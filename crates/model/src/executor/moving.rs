//! Rows and memories on their way to another executor of the same model.
//!
//! Both travel as the whole model has them, whatever the ranks: rows `[slot][layer][KV head][key D | value D]` in the
//! bits of their row type, memories over all query heads. Each rank fills in its own heads and the parts are added up
//! as integers, so a group of any size can be left, and a group of any other size entered. Promises that what is written
//! is, bit for bit, what was read. Never chooses slots.

use std::ops::Range;

use hawser_common::SlotId;
use hawser_device::collective::Reduce;
use serde::{Deserialize, Serialize};

use super::Executor;
use super::batch::StepError;
use super::memory::{MemoryId, QueryMemory};

/// A query memory over all query heads of a model, between two requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryState {
    /// M, `[L][Hq][D]`; empty before the first request has ended.
    pub memory: Vec<f32>,
    /// Query rows kept as they were, oldest first: `[R][L][Hq][D]`.
    pub window: Vec<f32>,
    /// Rows that the window holds at most.
    pub window_rows: u32,
    /// Attention that each position has received.
    pub mass: Vec<i64>,
    /// Shares of it that were no finite number.
    pub mass_non_finite: u64,
}

impl MemoryState {
    /// Whether the lengths are those of a model with `numbers` = L · Hq · D numbers per query row, and of a session with
    /// `tokens` tokens.
    #[must_use]
    pub fn fits(&self, numbers: usize, tokens: usize) -> bool {
        let rows = self.window.len() / numbers.max(1);
        let whole = self.memory.is_empty() || self.memory.len() == numbers;
        whole
            && self.window.len() == rows * numbers
            && rows <= self.window_rows as usize
            && self.window_rows <= hawser_common::retention::MAX_WINDOW_ROWS
            && self.mass.len() <= tokens
    }
}

/// Which of all numbers of a query row are a rank's.
struct Part {
    layers: usize,
    /// Hq · D of the model.
    width: usize,
    own: Range<usize>,
}

impl Part {
    /// Runs of a whole row that are the rank's, in order.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let (width, own) = (self.width, self.own.clone());
        (0..self.layers).map(move |layer| layer * width + own.start..layer * width + own.end)
    }

    /// The rank's part of whole rows.
    fn cut(&self, whole: &[f32]) -> Vec<f32> {
        let rows = whole.chunks_exact(self.layers * self.width);
        rows.flat_map(|row| self.runs().flat_map(|run| row[run].to_vec())).collect()
    }

    /// The bits of the rank's part in their place in whole rows, the others' zero.
    fn spread(&self, part: &[f32], words: &mut Vec<i64>) {
        let (own, whole) = (self.layers * self.own.len(), self.layers * self.width);
        for row in part.chunks_exact(own) {
            let at = words.len();
            words.resize(at + whole, 0);
            for (run, part) in self.runs().zip(row.chunks_exact(self.own.len())) {
                let words = &mut words[at + run.start..at + run.end];
                words.iter_mut().zip(part).for_each(|(word, x)| *word = i64::from(x.to_bits()));
            }
        }
    }
}

/// The numbers whose bits the words are.
fn numbers(words: &[i64]) -> Vec<f32> {
    let bits = |word: &i64| f32::from_bits(u32::try_from(*word).unwrap_or(f32::NAN.to_bits()));
    words.iter().map(bits).collect()
}

impl Executor {
    /// Bytes of one slot in all layers and KV heads of the whole model.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.config().layers * self.config().kv_heads * self.kv.head_bytes()
    }

    /// Numbers of one query row in all layers: L · Hq · D.
    #[must_use]
    pub fn query_numbers(&self) -> usize {
        let config = self.config();
        config.layers * config.heads * config.head_dim
    }

    /// The rows of `slots`; on ranks that do not lead, nothing of use.
    ///
    /// # Errors
    /// [`StepError::Group`] where the ranks do not agree or do not answer: the group is over.
    pub fn read_rows(&mut self, slots: &[SlotId]) -> Result<Vec<u8>, StepError> {
        let (head_bytes, slot_bytes) = (self.kv.head_bytes(), self.slot_bytes());
        let (layers, kv_heads) = (self.config().layers, self.config().kv_heads);
        let first = self.first_held();
        let mut bytes = vec![0; slots.len() * slot_bytes];
        for (&slot, bytes) in slots.iter().zip(bytes.chunks_exact_mut(slot_bytes)) {
            for layer in 0..layers {
                for &(held, head) in &first {
                    let at = (layer * kv_heads + head) * head_bytes;
                    self.kv.read_bits(layer, slot, held, &mut bytes[at..at + head_bytes]);
                }
            }
        }
        if self.group.is_alone() {
            return Ok(bytes);
        }
        // Every bit is one rank's, so nothing is carried from one to the next.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            i64::from_le_bytes(word)
        };
        let mut words: Vec<i64> = bytes.chunks_exact(8).map(word).collect();
        self.group.reduce_to_leader(&mut words, Reduce::Sum)?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(slots.len() * slot_bytes);
        Ok(bytes)
    }

    /// Stores rows that [`Executor::read_rows`] gave, here or elsewhere; each rank takes those of its heads.
    ///
    /// # Panics
    /// If the number of bytes is not that of the slots, or a slot is dead or out of range: bugs of the caller.
    pub fn write_rows(&mut self, slots: &[SlotId], bytes: &[u8]) {
        let (head_bytes, slot_bytes) = (self.kv.head_bytes(), self.slot_bytes());
        assert_eq!(bytes.len(), slots.len() * slot_bytes, "as many rows as slots");
        let (layers, kv_heads) = (self.config().layers, self.config().kv_heads);
        let held = self.model.shard().heads.kv.clone();
        for (&slot, bytes) in slots.iter().zip(bytes.chunks_exact(slot_bytes)) {
            for layer in 0..layers {
                for (held, head) in held.clone().enumerate() {
                    let at = (layer * kv_heads + head) * head_bytes;
                    self.kv.write_bits(layer, slot, held, &bytes[at..at + head_bytes]);
                }
            }
        }
    }

    /// KV heads as they are held here, and which of the model's each is: those that no rank before holds.
    fn first_held(&self) -> Vec<(usize, usize)> {
        let heads = &self.model.shard().heads;
        let group = self.config().heads / self.config().kv_heads;
        // A rank before holds the KV head if it has the first of its query heads.
        let is_ours = |(_, head): &(usize, usize)| head * group >= heads.query.start;
        heads.kv.clone().enumerate().filter(is_ours).collect()
    }

    fn part(&self) -> Part {
        let (config, query) = (self.config(), &self.model.shard().heads.query);
        let dim = config.head_dim;
        Part { layers: config.layers, width: config.heads * dim, own: query.start * dim..query.end * dim }
    }

    /// What is remembered of a session between two requests; `None` where nothing is, and on ranks that do not lead
    /// nothing of use.
    ///
    /// # Errors
    /// As [`Executor::read_rows`].
    pub fn read_memory(&mut self, id: MemoryId) -> Result<Option<MemoryState>, StepError> {
        // All ranks observe the same rows: they all remember something, or none does.
        let Some(memory) = self.memories.get(&id) else { return Ok(None) };
        let own = memory.leave();
        if self.group.is_alone() {
            return Ok(Some(own));
        }
        let part = self.part();
        let whole = part.layers * part.width;
        let rows = own.window.len() / (part.layers * part.own.len()).max(1);
        let mut words = Vec::new();
        part.spread(&own.memory, &mut words);
        part.spread(&own.window, &mut words);
        let most = i64::MAX / i64::try_from(self.group.world()).unwrap_or(i64::MAX);
        words.extend(own.mass.iter().map(|&mass| mass.min(most)));
        words.push(i64::try_from(own.mass_non_finite).unwrap_or(i64::MAX).min(most));
        self.group.reduce_to_leader(&mut words, Reduce::Sum)?;
        let mass_non_finite = words.pop().unwrap_or_default().max(0).cast_unsigned();
        let numbers_end = if own.memory.is_empty() { 0 } else { whole };
        let (memory, rest) = words.split_at(numbers_end);
        let (window, mass) = rest.split_at(rows * whole);
        Ok(Some(MemoryState {
            memory: numbers(memory),
            window: numbers(window),
            window_rows: own.window_rows,
            mass: mass.to_vec(),
            mass_non_finite,
        }))
    }

    /// Remembers of a session what [`Executor::read_memory`] gave; each rank takes what is of its heads. Sums over heads
    /// are the leader's alone.
    pub fn write_memory(&mut self, id: MemoryId, state: &MemoryState) {
        let part = self.part();
        let leads = self.group.rank() == 0;
        let own = MemoryState {
            memory: part.cut(&state.memory),
            window: part.cut(&state.window),
            window_rows: state.window_rows,
            mass: if leads { state.mass.clone() } else { vec![0; state.mass.len()] },
            mass_non_finite: if leads { state.mass_non_finite } else { 0 },
        };
        let (config, heads) = (self.model.config(), self.model.shard().heads.query.len());
        let mut memory = QueryMemory::new(config.layers, heads, config.head_dim);
        memory.enter(own);
        self.memories.insert(id, memory);
    }
}
