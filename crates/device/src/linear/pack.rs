//! Weights rearranged for the kernels: tiles of as many rows as a vector has lanes, so that one vector load takes
//! the same columns of all rows of a tile, and a product never adds across lanes.
//!
//! A tile of a quantised matrix is `[block][scale][lane]` half precision scales, padded to a cache line, then
//! `[block][group][lane][4]` quants, bytes as in the file. A tile of floats is `[column][lane]`. Rows that only fill
//! up the last pair of tiles are zero. Owns the layout; never changes a value.

use half::{bf16, f16};

use super::format::{BLOCK, Format, LinearError, RawMatrix};
use super::kernels::Kernel;
use crate::cpu::Isa;
use crate::memory::HugeVec;

/// Sections of a tile start on cache lines.
const LINE: usize = 64;
/// Tiles that are computed together: matrices have whole pairs. The outputs of a pair fill cache lines, so threads
/// that take pairs never write to the same line of an output row.
pub(super) const PAIR: usize = 2;

/// Sizes of a tile in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileLayout {
    /// Rows of the matrix in a tile.
    pub(super) lanes: usize,
    /// Blocks along a row.
    pub(super) blocks: usize,
    /// The section of scales.
    pub(super) scale_bytes: usize,
    pub(super) tile_bytes: usize,
}

impl TileLayout {
    fn new(format: Format, lanes: usize, cols: usize) -> Option<Self> {
        let blocks = cols / format.block_items();
        let scale_bytes = blocks.checked_mul(format.scales() * lanes * 2)?.checked_next_multiple_of(LINE)?;
        let quant_bytes = blocks.checked_mul(format.groups() * format.group_bytes() * lanes)?;
        let tile_bytes = scale_bytes.checked_add(quant_bytes)?.checked_next_multiple_of(LINE)?;
        Some(Self { lanes, blocks, scale_bytes, tile_bytes })
    }
}

/// A weight matrix `[rows = outputs][cols = inputs]`, ready for [`super::matmul`].
#[derive(Debug)]
pub struct PackedMatrix {
    pub(super) format: Format,
    pub(super) kernel: Kernel,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) layout: TileLayout,
    /// Blocks whose products are added in f32; sums of several such pieces are kept in f64.
    pub(super) piece: usize,
    pub(super) data: HugeVec<u8>,
}

impl PackedMatrix {
    /// Puts `parts` below each other (q, k and v, or gate and up, become one matrix), for the best kernels of this
    /// CPU. All parts have the same format and as many columns.
    ///
    /// # Errors
    /// [`LinearError`]: sizes that contradict each other, or no memory.
    pub fn pack(parts: &[RawMatrix<'_>]) -> Result<Self, LinearError> {
        Self::pack_for(Isa::best(), parts)
    }

    /// As [`PackedMatrix::pack`], for the kernels of `isa`, which must be available.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`].
    pub fn pack_for(isa: Isa, parts: &[RawMatrix<'_>]) -> Result<Self, LinearError> {
        let first = parts.first().ok_or(LinearError::Empty)?;
        let (format, cols) = (first.format, first.taken());
        let mut sources = Vec::new();
        for part in parts {
            if part.taken() != cols {
                return Err(LinearError::PartCols { first: cols, other: part.taken() });
            }
            if part.format != format {
                return Err(LinearError::PartFormats { first: format.name(), other: part.format.name() });
            }
            part.collect_rows(&mut sources)?;
        }
        let rows = sources.len();
        if rows == 0 {
            return Err(LinearError::Empty);
        }
        let kernel = Kernel::of(isa);
        let lanes = kernel.lanes();
        let too_large = || LinearError::TooLarge { rows, cols };
        let layout = TileLayout::new(format, lanes, cols).ok_or_else(too_large)?;
        let tiles = rows.div_ceil(lanes).next_multiple_of(PAIR);
        let bytes = tiles.checked_mul(layout.tile_bytes).ok_or_else(too_large)?;
        let mut data = HugeVec::zeroed(bytes)?;
        for (tile, rows) in data.chunks_exact_mut(layout.tile_bytes).zip(sources.chunks(lanes)) {
            for (lane, row) in rows.iter().enumerate() {
                pack_row(format, &layout, row, lane, tile);
            }
        }
        Ok(Self { format, kernel, rows, cols, layout, piece: layout.blocks, data })
    }

    /// The same matrix, whose products are sums over pieces of `cols` columns: each piece is added up in f32, pieces
    /// are in f64 ([`super::matmul_sums`]). Matrices of fewer columns with the same pieces then add up to the same.
    ///
    /// # Panics
    /// Where the columns are not whole pieces, or pieces not whole blocks: the plan of shards sees to that.
    #[must_use]
    pub fn in_pieces(self, cols: usize) -> Self {
        let whole = cols > 0 && cols.is_multiple_of(self.format.block_items());
        assert!(whole && self.cols.is_multiple_of(cols), "{} columns in pieces of {cols}", self.cols);
        Self { piece: cols / self.format.block_items(), ..self }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Memory in use: what a product with one row reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.layout.lanes).next_multiple_of(PAIR)
    }

    /// Writes the weights of `row` to `out` (`cols` of them), exactly: embedding lookup.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row has as many weights as the matrix has columns");
        let TileLayout { lanes, scale_bytes, tile_bytes, .. } = self.layout;
        let tile = &self.data[row / lanes * tile_bytes..][..tile_bytes];
        let lane = row % lanes;
        let (scales, quants) = tile.split_at(scale_bytes);
        let scale_at = |index: usize| f16_at(scales, (index * lanes + lane) * 2);
        let group_at = |index: usize| -> [u8; 4] { array_at(quants, (index * lanes + lane) * 4) };
        match self.format {
            Format::F32 => fill(out, |col| f32::from_le_bytes(group_at(col))),
            Format::F16 => fill(out, |col| f16_at(quants, (col * lanes + lane) * 2)),
            Format::Bf16 => {
                fill(out, |col| bf16::from_le_bytes(array_at(quants, (col * lanes + lane) * 2)).to_f32());
            }
            Format::Q4_0 => blocks(out, |block, values| {
                let scale = scale_at(block);
                nibbles(|g| group_at(block * 4 + g), values, |q| scale * (f32::from(q) - 8.0));
            }),
            Format::Q4_1 => blocks(out, |block, values| {
                let (scale, least) = (scale_at(block * 2), scale_at(block * 2 + 1));
                nibbles(|g| group_at(block * 4 + g), values, |q| scale * f32::from(q) + least);
            }),
            Format::Q8_0 => blocks(out, |block, values| {
                let scale = scale_at(block);
                for (group, values) in values.chunks_exact_mut(4).enumerate() {
                    let quants = group_at(block * 8 + group).map(u8::cast_signed);
                    values.iter_mut().zip(quants).for_each(|(value, q)| *value = scale * f32::from(q));
                }
            }),
        }
    }
}

/// Copies a row's blocks to its lane of a tile.
fn pack_row(format: Format, layout: &TileLayout, row: &[u8], lane: usize, tile: &mut [u8]) {
    let TileLayout { lanes, scale_bytes, .. } = *layout;
    let (scales, quants) = tile.split_at_mut(scale_bytes);
    let group_bytes = format.group_bytes();
    for (block, bytes) in row.chunks_exact(format.block_bytes()).enumerate() {
        let (head, groups) = bytes.split_at(format.scales() * 2);
        for (index, scale) in head.chunks_exact(2).enumerate() {
            let at = ((block * format.scales() + index) * lanes + lane) * 2;
            scales[at..at + 2].copy_from_slice(scale);
        }
        for (index, group) in groups.chunks_exact(group_bytes).enumerate() {
            let at = ((block * format.groups() + index) * lanes + lane) * group_bytes;
            quants[at..at + group_bytes].copy_from_slice(group);
        }
    }
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    out.iter_mut().enumerate().for_each(|(index, out)| *out = value(index));
}

fn blocks(out: &mut [f32], write: impl Fn(usize, &mut [f32])) {
    out.chunks_exact_mut(BLOCK).enumerate().for_each(|(block, values)| write(block, values));
}

/// A block's 32 weights from its four groups of packed nibbles.
fn nibbles(group: impl Fn(usize) -> [u8; 4], values: &mut [f32], weight: impl Fn(u8) -> f32) {
    let (low, high) = values.split_at_mut(BLOCK / 2);
    for (index, (low, high)) in low.chunks_exact_mut(4).zip(high.chunks_exact_mut(4)).enumerate() {
        for (byte, (low, high)) in group(index).into_iter().zip(low.iter_mut().zip(high)) {
            *low = weight(byte & 15);
            *high = weight(byte >> 4);
        }
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..].first_chunk().copied().expect("the layout keeps every group inside its tile")
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(array_at(bytes, at)).to_f32()
}
