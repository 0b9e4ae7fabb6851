//! The KV rows of all layers: one key and one value per layer, slot and KV head, gathered by slot.
//!
//! Owns their memory and their format. Layout: `[layer][slot][kv head][key D' | value D']` with D' = `head_dim`
//! rounded up to the widest vector and padded with zeros, so that one slot of one head is one run of cache lines and
//! kernels need no tail. Promises that [`KvRows::write`] never touches slot 0, and that a row reads back as written,
//! rounded to the row type. Never decides which slots are live.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use hawser_common::SlotId;

use crate::error::DeviceError;
use crate::memory::{HugeVec, make_present};
use crate::simd::MAX_LANES;
use crate::threads::Threads;

mod format;
pub(crate) use format::{Bf16, F16, F32, RowFormat};

/// How a number of a KV row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowType {
    F32,
    F16,
    Bf16,
}

impl RowType {
    /// Bytes per number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// What a pool of KV rows holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    /// Slots, the dead slot 0 included.
    pub slots: usize,
    /// KV heads held here: of a shard, its own.
    pub kv_heads: usize,
    /// D, numbers per head.
    pub head_dim: usize,
}

impl KvShape {
    /// D', numbers per head as stored.
    pub(crate) const fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(MAX_LANES)
    }

    /// Numbers from one KV head of a slot to the next: its key and its value.
    pub(crate) const fn head_stride(&self) -> usize {
        2 * self.padded_dim()
    }

    /// Numbers from one slot to the next.
    pub(crate) const fn slot_stride(&self) -> usize {
        self.kv_heads * self.head_stride()
    }

    fn check(&self) -> Result<usize, DeviceError> {
        let limits = [("layers", self.layers, 1), ("slots", self.slots, 2), ("kv_heads", self.kv_heads, 1)];
        let limits = limits.into_iter().chain([("head_dim", self.head_dim, 1)]);
        for (name, value, least) in limits {
            if value < least {
                return Err(DeviceError::Shape { name, value, least });
            }
        }
        let items = self.head_dim.checked_next_multiple_of(MAX_LANES);
        let items = items.and_then(|dim| dim.checked_mul(2)?.checked_mul(self.kv_heads));
        let items = items.and_then(|slot| slot.checked_mul(self.slots)?.checked_mul(self.layers));
        items.ok_or(DeviceError::TooLarge { items: usize::MAX, item_bytes: 1 })
    }
}

/// The rows themselves. Zero until written.
#[derive(Debug)]
pub struct KvRows {
    shape: KvShape,
    items: Items,
}

/// One variant per row type: half floats as their bits.
#[derive(Debug)]
enum Items {
    F32(HugeVec<f32>),
    F16(HugeVec<u16>),
    Bf16(HugeVec<u16>),
}

impl KvRows {
    /// Rows for `shape`, all zero.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if a dimension is zero or there is no slot beside the dead one;
    /// [`DeviceError::TooLarge`] or [`DeviceError::OutOfMemory`] if there is no memory for them.
    pub fn new(shape: KvShape, rows: RowType) -> Result<Self, DeviceError> {
        let len = shape.check()?;
        let items = match rows {
            RowType::F32 => Items::F32(HugeVec::zeroed(len)?),
            RowType::F16 => Items::F16(HugeVec::zeroed(len)?),
            RowType::Bf16 => Items::Bf16(HugeVec::zeroed(len)?),
        };
        Ok(Self { shape, items })
    }

    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    #[must_use]
    pub fn row_type(&self) -> RowType {
        match self.items {
            Items::F32(_) => RowType::F32,
            Items::F16(_) => RowType::F16,
            Items::Bf16(_) => RowType::Bf16,
        }
    }

    /// Memory of all rows in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.layers * self.shape.slots * self.shape.slot_stride() * self.row_type().bytes()
    }

    /// Has the system map the memory of the first `slots` slots of every layer now, in all of `threads`, so that their
    /// first writes do not wait for cleared pages. Of the slots behind them nothing is taken but what shares a page.
    ///
    /// # Errors
    /// The system's, where it does not give the memory: rows work as before.
    pub fn make_present(&mut self, slots: usize, threads: &Threads) -> io::Result<()> {
        let (layer, used) = (self.shape.slots, slots.min(self.shape.slots));
        let bytes = match &mut self.items {
            Items::F32(items) => bytemuck::cast_slice_mut::<f32, u8>(items),
            Items::F16(items) | Items::Bf16(items) => bytemuck::cast_slice_mut::<u16, u8>(items),
        };
        let slot = bytes.len() / (self.shape.layers * layer);
        let layers = Mutex::new(bytes.chunks_mut(layer * slot));
        let failed = Mutex::new(None);
        let next = || layers.lock().unwrap_or_else(PoisonError::into_inner).next();
        threads.run(&|_| {
            while let Some(rows) = next() {
                if let Err(error) = make_present(&mut rows[..used * slot]) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return;
                }
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Stores one key and one value per slot and KV head. `keys`, `values`: `[n][Hkv][D]` for `n` slots.
    ///
    /// # Panics
    /// If a slot is dead or out of range, or a length does not fit the shape: bugs of the caller.
    pub fn write(&mut self, layer: usize, slots: &[SlotId], keys: &[f32], values: &[f32]) {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        assert_eq!(keys.len(), slots.len() * kv_heads * head_dim, "keys of {} slots", slots.len());
        assert_eq!(values.len(), keys.len(), "as many values as keys");
        for (i, &slot) in slots.iter().enumerate() {
            assert!(!slot.is_dead(), "the dead slot is never written");
            for head in 0..kv_heads {
                let from = (i * kv_heads + head) * head_dim;
                self.store(self.key_at(layer, slot, head), &keys[from..from + head_dim]);
                self.store(self.value_at(layer, slot, head), &values[from..from + head_dim]);
            }
        }
    }

    /// Bytes of one slot of one layer and KV head as [`KvRows::read_bits`] gives them: its key and its value.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        2 * self.shape.head_dim * self.row_type().bytes()
    }

    /// The key and the value as they are stored, little-endian and without padding. `out`: [`KvRows::head_bytes`].
    ///
    /// # Panics
    /// If the slot, the layer or the head is out of range, or `out` has another length: bugs of the caller.
    pub fn read_bits(&self, layer: usize, slot: SlotId, kv_head: usize, out: &mut [u8]) {
        let (key, value) = (self.key_at(layer, slot, kv_head), self.value_at(layer, slot, kv_head));
        let dim = self.shape.head_dim;
        let (to_key, to_value) = out.split_at_mut(self.head_bytes() / 2);
        for (at, to) in [(key, to_key), (value, to_value)] {
            match &self.items {
                Items::F32(items) => to.copy_from_slice(bytemuck::cast_slice(&items[at..at + dim])),
                Items::F16(items) | Items::Bf16(items) => {
                    to.copy_from_slice(bytemuck::cast_slice(&items[at..at + dim]));
                }
            }
        }
    }

    /// Stores what [`KvRows::read_bits`] gave, here or in another pool of the same row type.
    ///
    /// # Panics
    /// As [`KvRows::read_bits`], or if the slot is dead.
    pub fn write_bits(&mut self, layer: usize, slot: SlotId, kv_head: usize, bits: &[u8]) {
        assert!(!slot.is_dead(), "the dead slot is never written");
        assert_eq!(bits.len(), self.head_bytes(), "a key and a value");
        let (key, value) = (self.key_at(layer, slot, kv_head), self.value_at(layer, slot, kv_head));
        let (dim, padded) = (self.shape.head_dim, self.shape.padded_dim());
        let (of_key, of_value) = bits.split_at(bits.len() / 2);
        for (at, from) in [(key, of_key), (value, of_value)] {
            match &mut self.items {
                Items::F32(items) => {
                    bytemuck::cast_slice_mut::<f32, u8>(&mut items[at..at + dim]).copy_from_slice(from);
                    items[at + dim..at + padded].fill(0.0);
                }
                Items::F16(items) | Items::Bf16(items) => {
                    bytemuck::cast_slice_mut::<u16, u8>(&mut items[at..at + dim]).copy_from_slice(from);
                    items[at + dim..at + padded].fill(0);
                }
            }
        }
    }

    /// Makes a slot's rows those of another, bit for bit.
    ///
    /// # Panics
    /// If a slot is out of range or `to` is dead: bugs of the caller.
    pub fn copy(&mut self, from: SlotId, to: SlotId) {
        assert!(!to.is_dead(), "the dead slot is never written");
        for layer in 0..self.shape.layers {
            let source = self.slot_at(layer, from)..self.slot_at(layer, from) + self.shape.slot_stride();
            let target = self.slot_at(layer, to);
            match &mut self.items {
                Items::F32(items) => items.copy_within(source, target),
                Items::F16(items) | Items::Bf16(items) => items.copy_within(source, target),
            }
        }
    }

    /// Makes a slot's keys the mean of those of others, rounded to the row type, and its values zero.
    ///
    /// # Panics
    /// If a slot is out of range, `to` is dead, or `of` is empty: bugs of the caller.
    pub fn write_mean(&mut self, of: &[SlotId], to: SlotId) {
        let KvShape { layers, kv_heads, head_dim, .. } = self.shape;
        let (mut sum, mut key) = (vec![0.0; kv_heads * head_dim], vec![0.0; head_dim]);
        let none = vec![0.0; kv_heads * head_dim];
        let share = 1.0 / of.len() as f32;
        assert!(!of.is_empty(), "a mean has terms");
        for layer in 0..layers {
            sum.fill(0.0);
            for &slot in of {
                for (head, sum) in sum.chunks_exact_mut(head_dim).enumerate() {
                    self.key(layer, slot, head, &mut key);
                    sum.iter_mut().zip(&key).for_each(|(sum, key)| *sum += key);
                }
            }
            sum.iter_mut().for_each(|sum| *sum *= share);
            self.write(layer, &[to], &sum, &none);
        }
    }

    /// The key as attention sees it: post-RoPE, rounded to the row type. `out`: `[D]`.
    pub fn key(&self, layer: usize, slot: SlotId, kv_head: usize, out: &mut [f32]) {
        self.load(self.key_at(layer, slot, kv_head), out);
    }

    /// The value as attention sees it. `out`: `[D]`.
    pub fn value(&self, layer: usize, slot: SlotId, kv_head: usize, out: &mut [f32]) {
        self.load(self.value_at(layer, slot, kv_head), out);
    }

    /// Fills a slot with NaN in every layer, the dead slot included. For tests: what is not live must not matter.
    pub fn poison(&mut self, slot: SlotId) {
        for layer in 0..self.shape.layers {
            let slot = self.slot_at(layer, slot)..self.slot_at(layer, slot) + self.shape.slot_stride();
            match &mut self.items {
                Items::F32(items) => items[slot].fill(f32::NAN),
                Items::F16(items) => items[slot].fill(f16::NAN.to_bits()),
                Items::Bf16(items) => items[slot].fill(bf16::NAN.to_bits()),
            }
        }
    }

    /// The rows of one layer, for the kernels: `[slot][kv head][key D' | value D']`.
    pub(crate) fn layer(&self, layer: usize) -> Layer<'_> {
        let len = self.shape.slots * self.shape.slot_stride();
        let range = layer * len..(layer + 1) * len;
        match &self.items {
            Items::F32(items) => Layer::F32(&items[range]),
            Items::F16(items) => Layer::F16(&items[range]),
            Items::Bf16(items) => Layer::Bf16(&items[range]),
        }
    }

    fn slot_at(&self, layer: usize, slot: SlotId) -> usize {
        let KvShape { layers, slots, .. } = self.shape;
        assert!(layer < layers && slot.index() < slots, "layer {layer}, slot {} of {slots}", slot.0);
        (layer * slots + slot.index()) * self.shape.slot_stride()
    }

    fn key_at(&self, layer: usize, slot: SlotId, head: usize) -> usize {
        assert!(head < self.shape.kv_heads, "KV head {head} of {}", self.shape.kv_heads);
        self.slot_at(layer, slot) + head * self.shape.head_stride()
    }

    fn value_at(&self, layer: usize, slot: SlotId, head: usize) -> usize {
        self.key_at(layer, slot, head) + self.shape.padded_dim()
    }

    /// Writes D numbers and the padding, so that what a poisoned slot held there is gone.
    fn store(&mut self, at: usize, row: &[f32]) {
        let used = at..at + row.len();
        let padding = used.end..at + self.shape.padded_dim();
        match &mut self.items {
            Items::F32(items) => {
                items[used].copy_from_slice(row);
                items[padding].fill(0.0);
            }
            Items::F16(items) => {
                bytemuck::cast_slice_mut::<u16, f16>(&mut items[used]).convert_from_f32_slice(row);
                items[padding].fill(0);
            }
            Items::Bf16(items) => {
                bytemuck::cast_slice_mut::<u16, bf16>(&mut items[used]).convert_from_f32_slice(row);
                items[padding].fill(0);
            }
        }
    }

    fn load(&self, at: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.shape.head_dim, "a row has D numbers");
        let used: Range<usize> = at..at + out.len();
        match &self.items {
            Items::F32(items) => out.copy_from_slice(&items[used]),
            Items::F16(items) => bytemuck::cast_slice::<u16, f16>(&items[used]).convert_to_f32_slice(out),
            Items::Bf16(items) => bytemuck::cast_slice::<u16, bf16>(&items[used]).convert_to_f32_slice(out),
        }
    }
}

/// One layer's rows in their format.
#[derive(Clone, Copy)]
pub(crate) enum Layer<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
}

#[cfg(test)]
mod tests;
