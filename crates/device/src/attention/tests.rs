//! The contract of attention over live lists: T1, equal to dense attention with a mask; T2, rows that are not live do
//! not matter; and equal bits whatever the batch, the chunks and the threads.

use std::num::NonZeroUsize;

use hawser_common::SlotId;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::kv::{KvShape, RowType};

mod bits;
mod dead;
mod dense;

pub(super) const LAYER: usize = 1;

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// Positions, dead ones included; the last ones are query rows.
    pub(super) positions: usize,
    /// Query rows: the last positions.
    pub(super) rows: usize,
    /// Of 100 context positions, how many are live.
    pub(super) live_percent: u32,
}

/// One sequence: rows of every position, and which of the context are live.
pub(super) struct Case {
    pub(super) sizes: Sizes,
    pub(super) rng: StdRng,
    pub(super) kv: KvRows,
    /// `[positions][Hkv][D]`
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// `[rows][Hq][D]`
    pub(super) q: Vec<f32>,
    /// Slot of every position; also of dead ones, whose rows are in memory.
    pub(super) slots: Vec<SlotId>,
    pub(super) live: Vec<bool>,
}

impl Case {
    pub(super) fn new(seed: u64, sizes: Sizes, rows: RowType) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let Sizes { kv_heads, group, head_dim, positions, .. } = sizes;
        let mut numbers = |n: usize, scale: f32| -> Vec<f32> {
            (0..n).map(|_| (rng.random::<f32>() - 0.5) * 2.0 * scale).collect()
        };
        let keys = numbers(positions * kv_heads * head_dim, 3.0);
        let values = numbers(positions * kv_heads * head_dim, 2.0);
        let q = numbers(sizes.rows * kv_heads * group * head_dim, 2.0);
        let total = positions + 5;
        let mut slots: Vec<SlotId> = (1..total as u32).map(SlotId).collect();
        slots.shuffle(&mut rng);
        slots.truncate(positions);
        let shape = KvShape { layers: 2, slots: total, kv_heads, head_dim };
        let mut kv = KvRows::new(shape, rows).unwrap();
        kv.write(LAYER, &slots, &keys, &values);
        let context = positions - sizes.rows;
        let live =
            (0..positions).map(|p| p >= context || rng.random_range(0..100) < sizes.live_percent).collect();
        Self { sizes, rng, kv, keys, values, q, slots, live }
    }

    pub(super) fn heads(&self) -> usize {
        self.sizes.kv_heads * self.sizes.group
    }

    /// Live slots of the positions before `end`.
    pub(super) fn live_before(&self, end: usize) -> Vec<SlotId> {
        (0..end).filter(|&p| self.live[p]).map(|p| self.slots[p]).collect()
    }

    /// Attention of all rows, cut into calls of the given numbers of rows.
    pub(super) fn attend(&self, threads: usize, isa: Isa, chunks: &[usize]) -> Vec<f32> {
        assert_eq!(chunks.iter().sum::<usize>(), self.sizes.rows);
        let threads = Threads::new(NonZeroUsize::new(threads).unwrap());
        let row = self.heads() * self.sizes.head_dim;
        let mut out = vec![f32::NAN; self.q.len()];
        let mut scratch = AttendScratch::default();
        let mut first = 0;
        for &rows in chunks {
            let position = self.sizes.positions - self.sizes.rows + first;
            let context = self.live_before(position);
            let spans =
                [Span { rows: 0..rows, context: &context, own: &self.slots[position..position + rows] }];
            let range = first * row..(first + rows) * row;
            let call = self.call(&spans, &self.q[range.clone()], isa);
            attend(&threads, &call, &mut out[range], &mut scratch);
            first += rows;
        }
        out
    }

    pub(super) fn call<'a>(&'a self, spans: &'a [Span<'a>], q: &'a [f32], isa: Isa) -> AttendCall<'a> {
        let heads = QueryHeads::whole(self.heads(), self.sizes.kv_heads);
        AttendCall { kv: &self.kv, layer: LAYER, spans, q, heads, isa }
    }

    /// Cuts the rows at random.
    pub(super) fn chunks(&mut self) -> Vec<usize> {
        let mut left = self.sizes.rows;
        let mut chunks = Vec::new();
        while left > 0 {
            let most = if self.rng.random() { left.min(5) } else { left };
            chunks.push(self.rng.random_range(1..=most));
            left -= chunks[chunks.len() - 1];
        }
        chunks
    }
}

/// The bits of numbers, for exact comparison.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
