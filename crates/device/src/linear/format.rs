//! How checkpoints store weights: plain floats, or GGUF blocks of 32 weights along a row.
//!
//! Owns the formats' sizes and the description of a matrix as it lies in a file. Never trusts a size: all products
//! are checked.

use std::ops::Range;

use thiserror::Error;

use hawser_common::{Coded, ErrorCode};

use crate::error::DeviceError;

/// Weights of one block of the quantised formats, and activations of one int8 block.
pub(super) const BLOCK: usize = 32;

/// Encoding of a weight. Quantised blocks are those of GGUF (ggml-common.h): half precision scale `d`, in Q4_1 a half
/// precision minimum `m`, then the quants. In four bits, byte `j` holds weight `j` (low) and weight `j + 16` (high).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Little-endian IEEE single precision.
    F32,
    /// Little-endian IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// `d * (q - 8)`, `q` in 0..16: 18 bytes per block.
    Q4_0,
    /// `d * q + m`, `q` in 0..16: 20 bytes per block.
    Q4_1,
    /// `d * q`, `q` in -128..128: 34 bytes per block.
    Q8_0,
}

impl Format {
    /// Name as in the literature and in GGUF file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Weights that share one block: a row's length is a multiple of this.
    #[must_use]
    pub const fn block_items(self) -> usize {
        if self.is_quantised() { BLOCK } else { 1 }
    }

    /// Bytes of one block in a file.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.scales() * 2 + self.groups() * self.group_bytes()
    }

    /// Bytes of a row of `cols` weights in a file; none if `cols` is not whole blocks or the size overflows.
    #[must_use]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if cols.is_multiple_of(self.block_items()) {
            (cols / self.block_items()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// Whether products use int8 activations.
    pub(super) const fn is_quantised(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q8_0)
    }

    /// Half precision numbers at the start of a block.
    pub(super) const fn scales(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q4_0 | Self::Q8_0 => 1,
            Self::Q4_1 => 2,
        }
    }

    /// Groups of bytes that follow the scales; packing keeps each group together.
    pub(super) const fn groups(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 => 4,
            Self::Q8_0 => 8,
        }
    }

    /// Bytes of a group: one float, or as many quants as one lane of an integer dot product takes.
    pub(super) const fn group_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => 4,
        }
    }
}

/// A matrix as it lies in a checkpoint: `[rows = outputs][cols = inputs]`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct RawMatrix<'a> {
    pub format: Format,
    /// Rows in `data`.
    pub rows: usize,
    pub cols: usize,
    pub data: &'a [u8],
    /// Which rows of `data` to take, in packed order: undoes the q/k row permutation of llama GGUFs, or takes a
    /// shard. All rows in file order if none.
    pub row_order: Option<&'a [u32]>,
    /// Which columns of each row to take; all if none.
    pub columns: Option<Columns>,
}

/// Columns of a matrix that follow each other: a shard of the inputs. They begin and end between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub first: usize,
    pub count: usize,
}

impl<'a> RawMatrix<'a> {
    /// Columns that are taken.
    pub(super) fn taken(&self) -> usize {
        self.columns.map_or(self.cols, |columns| columns.count)
    }

    /// Where the taken columns lie in a row.
    fn column_bytes(&self, row_bytes: usize) -> Result<Range<usize>, LinearError> {
        let Some(Columns { first, count }) = self.columns else { return Ok(0..row_bytes) };
        let bad = LinearError::Columns { first, count, cols: self.cols, block: self.format.block_items() };
        let start = self.format.row_bytes(first);
        let end = first.checked_add(count).filter(|&end| count > 0 && end <= self.cols);
        let end = end.and_then(|end| self.format.row_bytes(end));
        start.zip(end).map(|(start, end)| start..end).ok_or(bad)
    }

    /// Appends the taken bytes of each row, in packed order.
    pub(super) fn collect_rows(&self, rows: &mut Vec<&'a [u8]>) -> Result<(), LinearError> {
        let Self { format, cols, data, .. } = *self;
        let bad_cols = LinearError::Cols { cols, format: format.name(), block: format.block_items() };
        let row_bytes = format.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or(bad_cols)?;
        let expected =
            row_bytes.checked_mul(self.rows).ok_or(LinearError::TooLarge { rows: self.rows, cols })?;
        if data.len() != expected {
            return Err(LinearError::DataSize { rows: self.rows, cols, expected, found: data.len() });
        }
        let taken = self.column_bytes(row_bytes)?;
        let Some(order) = self.row_order else {
            rows.extend(data.chunks_exact(row_bytes).map(|row| &row[taken.clone()]));
            return Ok(());
        };
        for &row in order {
            let start = row as usize;
            if start >= self.rows {
                return Err(LinearError::RowOrder { row, rows: self.rows });
            }
            rows.push(&data[start * row_bytes..][taken.clone()]);
        }
        Ok(())
    }
}

/// Why matrices cannot be packed. All but the last mean that the checkpoint is corrupt or read wrongly.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinearError {
    #[error("a weight matrix has no rows: check the checkpoint's shapes")]
    Empty,
    #[error("{cols} columns are not whole {format} blocks of {block}: check the checkpoint's shapes")]
    Cols { cols: usize, format: &'static str, block: usize },
    #[error("{rows} x {cols} weights do not fit the address space: the checkpoint is corrupt")]
    TooLarge { rows: usize, cols: usize },
    #[error(
        "{rows} x {cols} weights take {expected} bytes, but {found} are there: download the checkpoint again"
    )]
    DataSize { rows: usize, cols: usize, expected: usize, found: usize },
    #[error("row {row} was asked for, but the matrix has {rows}")]
    RowOrder { row: u32, rows: usize },
    #[error(
        "columns {first} and the {count} from there on are no whole blocks of {block} among {cols} columns"
    )]
    Columns { first: usize, count: usize, cols: usize, block: usize },
    #[error("parts of {first} and {other} columns cannot share a matrix: pack them apart")]
    PartCols { first: usize, other: usize },
    #[error("parts in {first} and {other} cannot share a matrix: pack them apart")]
    PartFormats { first: &'static str, other: &'static str },
    #[error(transparent)]
    Memory(#[from] DeviceError),
}

impl Coded for LinearError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(error) => error.code(),
            _ => ErrorCode::Invalid,
        }
    }
}
