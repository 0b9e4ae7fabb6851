//! Matrix products of any weight format.
//!
//! Formats that the device crate packs run on its kernels. The others (K-quants, `Q5_0`, `Q5_1`, `Q8_1`) run on
//! candle's. Matrices that read the same input are put below each other, so that one product computes q, k and v, or
//! gate and up. Promises that an output row depends on its input row only.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use hawser_device::linear::{
    Columns, Format, LinearError, MatmulScratch, PackedMatrix, RawMatrix, Write, matmul, matmul_sums,
};
use hawser_device::threads::Threads;
use thiserror::Error;

use crate::checkpoint::{MatrixView, quantized_storage};

/// Why a matrix cannot be made ready.
#[derive(Debug, Error)]
pub enum PackError {
    #[error(transparent)]
    Device(#[from] LinearError),
    #[error("weights cannot be read: {0}")]
    Candle(#[from] candle_core::Error),
}

/// What is wanted of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered<'a> {
    pub(crate) view: MatrixView<'a>,
    /// Row `i` is the view's row `order[i]`; `None` keeps the order.
    pub(crate) order: Option<&'a [u32]>,
    /// Which columns are taken, from block to block; `None`: all.
    pub(crate) columns: Option<Columns>,
}

impl Ordered<'_> {
    fn rows(&self) -> usize {
        self.order.map_or(self.view.rows, <[u32]>::len)
    }

    fn cols(&self) -> usize {
        self.columns.map_or(self.view.cols, |columns| columns.count)
    }
}

/// Matrices with a common input, below each other.
#[derive(Debug)]
pub(crate) struct Linear {
    parts: Vec<Part>,
    rows: usize,
    cols: usize,
}

#[derive(Debug)]
enum Part {
    Packed(PackedMatrix),
    Candle(CandleMatrix),
}

/// Working memory of [`Linear::forward`]; grows to the largest product.
#[derive(Debug, Default)]
pub(crate) struct LinearScratch {
    matmul: MatmulScratch,
    part: Vec<f32>,
    whole: Vec<f32>,
}

impl Linear {
    /// Puts the matrices below each other. All have the same number of columns.
    pub(crate) fn new(matrices: &[Ordered<'_>]) -> Result<Self, PackError> {
        let rows = matrices.iter().map(Ordered::rows).sum();
        let cols = matrices.first().map_or(0, Ordered::cols);
        let mut parts = Vec::new();
        // Neighbours of the same format share a packed matrix: one pass over the input, one hand-over to the threads.
        for run in matrices.chunk_by(|a, b| a.view.dtype == b.view.dtype) {
            match packed_format(run[0].view.dtype) {
                Some(format) => {
                    let raw = run.iter().map(|matrix| raw(matrix, format)).collect::<Vec<_>>();
                    parts.push(Part::Packed(PackedMatrix::pack(&raw)?));
                }
                None => {
                    for matrix in run {
                        parts.push(Part::Candle(CandleMatrix::new(matrix)?));
                    }
                }
            }
        }
        Ok(Self { parts, rows, cols })
    }

    /// Products become sums over pieces of `cols` columns, which are the same however columns are shared out. Not where
    /// candle multiplies: its sums are its own.
    pub(crate) fn in_pieces(self, cols: usize) -> Self {
        let part = |part| match part {
            Part::Packed(matrix) => Part::Packed(matrix.in_pieces(cols)),
            Part::Candle(matrix) => Part::Candle(matrix),
        };
        Self { parts: self.parts.into_iter().map(part).collect(), ..self }
    }

    /// Bytes that one product reads.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |part: &Part| match part {
            Part::Packed(matrix) => matrix.bytes(),
            Part::Candle(matrix) => matrix.bytes,
        };
        self.parts.iter().map(bytes).sum()
    }

    /// `out[m][rows] = x[m][cols] · Wᵀ`, or `+=`.
    pub(crate) fn forward(
        &self,
        threads: &Threads,
        x: &[f32],
        out: &mut [f32],
        write: Write,
        scratch: &mut LinearScratch,
    ) -> candle_core::Result<()> {
        if let [Part::Packed(matrix)] = &self.parts[..] {
            matmul(threads, matrix, x, out, write, &mut scratch.matmul);
            return Ok(());
        }
        let count = x.len() / self.cols;
        let mut from = 0;
        for part in &self.parts {
            let width = part.rows();
            let values = &mut scratch.part;
            values.resize(count * width, 0.0);
            match part {
                Part::Packed(matrix) => matmul(threads, matrix, x, values, Write::Store, &mut scratch.matmul),
                Part::Candle(matrix) => matrix.forward(x, values)?,
            }
            for (out, values) in out.chunks_exact_mut(self.rows).zip(values.chunks_exact(width)) {
                let out = &mut out[from..from + width];
                match write {
                    Write::Store => out.copy_from_slice(values),
                    Write::Add => out.iter_mut().zip(values).for_each(|(out, value)| *out += value),
                }
            }
            from += width;
        }
        Ok(())
    }

    /// As [`Linear::forward`], stored before the last rounding: what a rank gives to a sum.
    pub(crate) fn sums(
        &self,
        threads: &Threads,
        x: &[f32],
        out: &mut [f64],
        scratch: &mut LinearScratch,
    ) -> candle_core::Result<()> {
        if let [Part::Packed(matrix)] = &self.parts[..] {
            matmul_sums(threads, matrix, x, out, &mut scratch.matmul);
            return Ok(());
        }
        let mut floats = std::mem::take(&mut scratch.whole);
        floats.resize(out.len(), 0.0);
        self.forward(threads, x, &mut floats, Write::Store, scratch)?;
        out.iter_mut().zip(&floats).for_each(|(out, value)| *out = f64::from(*value));
        scratch.whole = floats;
        Ok(())
    }

    /// Writes row `row` of the matrix, `cols` weights: an embedding lookup.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) -> candle_core::Result<()> {
        let mut from = 0;
        for part in &self.parts {
            if row < from + part.rows() {
                return part.row(row - from, out);
            }
            from += part.rows();
        }
        unreachable!("the row is checked against the vocabulary before the lookup")
    }
}

impl Part {
    fn rows(&self) -> usize {
        match self {
            Self::Packed(matrix) => matrix.rows(),
            Self::Candle(matrix) => matrix.rows,
        }
    }

    fn row(&self, row: usize, out: &mut [f32]) -> candle_core::Result<()> {
        match self {
            Self::Packed(matrix) => {
                matrix.row(row, out);
                Ok(())
            }
            Self::Candle(matrix) => matrix.row(row, out),
        }
    }
}

fn packed_format(dtype: GgmlDType) -> Option<Format> {
    match dtype {
        GgmlDType::F32 => Some(Format::F32),
        GgmlDType::F16 => Some(Format::F16),
        GgmlDType::BF16 => Some(Format::Bf16),
        GgmlDType::Q4_0 => Some(Format::Q4_0),
        GgmlDType::Q4_1 => Some(Format::Q4_1),
        GgmlDType::Q8_0 => Some(Format::Q8_0),
        _ => None,
    }
}

fn raw<'a>(matrix: &Ordered<'a>, format: Format) -> RawMatrix<'a> {
    let MatrixView { rows, cols, data, .. } = matrix.view;
    RawMatrix { format, rows, cols, data, row_order: matrix.order, columns: matrix.columns }
}

/// Candle picks its kernel by the number of rows, and the kernels round differently. Products of 2 to 31 rows share
/// one kernel, so every product is cut or filled up to such a number, and no row can tell what it was batched with.
const LEAST_ROWS: usize = 2;
const MOST_ROWS: usize = 16;

/// A matrix that candle multiplies.
#[derive(Debug)]
struct CandleMatrix {
    tensor: Arc<QTensor>,
    matrix: QMatMul,
    rows: usize,
    cols: usize,
    bytes: usize,
}

impl CandleMatrix {
    fn new(matrix: &Ordered<'_>) -> Result<Self, PackError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (dtype, all) = (matrix.view.dtype, matrix.view.data);
        let taken: Vec<u8>;
        let data = if matrix.order.is_none() && matrix.columns.is_none() {
            all
        } else {
            let row_bytes = all.len() / matrix.view.rows;
            let bytes = |cols: usize| cols / dtype.block_size() * dtype.type_size();
            let first = matrix.columns.map_or(0, |columns| bytes(columns.first));
            let row = |index: usize| {
                let row = matrix.order.map_or(index, |order| order[index] as usize);
                &all[row * row_bytes + first..][..bytes(cols)]
            };
            taken = (0..rows).flat_map(row).copied().collect();
            &taken
        };
        let tensor = Arc::new(QTensor::new(quantized_storage(dtype, data)?, (rows, cols))?);
        let matrix = QMatMul::QTensor(Arc::clone(&tensor));
        Ok(Self { tensor, matrix, rows, cols, bytes: data.len() })
    }

    fn forward(&self, x: &[f32], out: &mut [f32]) -> candle_core::Result<()> {
        for (x, out) in x.chunks(MOST_ROWS * self.cols).zip(out.chunks_mut(MOST_ROWS * self.rows)) {
            let count = x.len() / self.cols;
            let input = if count < LEAST_ROWS {
                Tensor::from_vec(x.repeat(LEAST_ROWS), (LEAST_ROWS, self.cols), &Device::Cpu)?
            } else {
                Tensor::from_slice(x, (count, self.cols), &Device::Cpu)?
            };
            let product = self.matrix.forward(&input)?.flatten_all()?.to_vec1::<f32>()?;
            out.copy_from_slice(&product[..out.len()]);
        }
        Ok(())
    }

    fn row(&self, row: usize, out: &mut [f32]) -> candle_core::Result<()> {
        let id = u32::try_from(row).map_err(candle_core::Error::wrap)?;
        let values = self.tensor.embedding(&Tensor::from_slice(&[id], 1, &Device::Cpu)?)?;
        out.copy_from_slice(&values.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
