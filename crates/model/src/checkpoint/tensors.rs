//! Which tensors a checkpoint has and where their bytes lie. Owns the mapped files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use hawser_device::mapped::MappedFile;

use super::error::CheckpointFault;

/// One tensor's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorEntry {
    pub(super) dtype: GgmlDType,
    /// Slowest-varying first: `[rows, columns]` or `[length]`.
    pub(super) shape: Vec<usize>,
    /// Which of the checkpoint's files.
    pub(super) file: usize,
    pub(super) bytes: Range<usize>,
}

/// A matrix where it lies in the checkpoint: `rows` rows of `cols` weights, each row in whole blocks of the dtype.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    pub dtype: GgmlDType,
    pub rows: usize,
    pub cols: usize,
    pub data: &'a [u8],
}

impl<'a> MatrixView<'a> {
    /// Some of its rows, in place.
    pub(crate) fn rows(&self, rows: Range<usize>) -> MatrixView<'a> {
        let row_bytes = self.data.len() / self.rows;
        Self { rows: rows.len(), data: &self.data[rows.start * row_bytes..rows.end * row_bytes], ..*self }
    }
}

/// All tensors by name. Every entry's bytes lie inside its file and match its dtype and shape.
#[derive(Debug, Default)]
pub(super) struct TensorTable {
    entries: BTreeMap<String, TensorEntry>,
}

impl TensorTable {
    /// Adds a tensor whose bytes were checked against its file.
    pub(super) fn insert(&mut self, name: &str, entry: TensorEntry) -> Result<(), CheckpointFault> {
        match self.entries.insert(name.to_owned(), entry) {
            Some(_) => Err(CheckpointFault::DuplicateTensor { tensor: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Checks that no byte belongs to two tensors.
    pub(super) fn check_overlap(&self) -> Result<(), CheckpointFault> {
        let mut places: Vec<_> =
            self.entries.iter().map(|(name, e)| (e.file, e.bytes.start, e.bytes.end, name)).collect();
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
            Some(pair) => {
                Err(CheckpointFault::Overlap { tensor: pair[0].3.clone(), other: pair[1].3.clone() })
            }
            None => Ok(()),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &TensorEntry> {
        self.entries.values()
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    fn required(&self, name: &str) -> Result<&TensorEntry, CheckpointFault> {
        self.get(name).ok_or_else(|| CheckpointFault::MissingTensor { tensor: name.to_owned() })
    }

    /// The tensor's entry, if it is there with exactly this shape.
    pub(super) fn shaped(&self, name: &str, shape: &[usize]) -> Result<&TensorEntry, CheckpointFault> {
        let entry = self.required(name)?;
        if entry.shape == shape {
            return Ok(entry);
        }
        let (found, expected) = (entry.shape.clone(), shape.to_vec());
        Err(CheckpointFault::TensorShape { tensor: name.to_owned(), found, expected })
    }

    pub(super) fn matrix<'f>(
        &self,
        files: &'f [MappedFile],
        name: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<MatrixView<'f>, CheckpointFault> {
        let entry = self.shaped(name, &[rows, cols])?;
        Ok(MatrixView { dtype: entry.dtype, rows, cols, data: &files[entry.file][entry.bytes.clone()] })
    }

    /// A tensor of one dimension, widened to f32 whatever its dtype.
    pub(super) fn vector(
        &self,
        files: &[MappedFile],
        name: &str,
        length: usize,
    ) -> Result<Vec<f32>, CheckpointFault> {
        let entry = self.shaped(name, &[length])?;
        let data = &files[entry.file][entry.bytes.clone()];
        dequantize(entry.dtype, data, length).map_err(|_| CheckpointFault::UnknownDtype {
            tensor: name.to_owned(),
            found: format!("{:?}", entry.dtype),
        })
    }
}

/// `length` weights of any dtype as f32. The bytes may lie at any address.
///
/// # Errors
/// What candle says where `length` does not divide into blocks.
fn dequantize(dtype: GgmlDType, data: &[u8], length: usize) -> candle_core::Result<Vec<f32>> {
    QTensor::new(quantized_storage(dtype, data)?, length)?.dequantize(&Device::Cpu)?.to_vec1()
}

/// Candle's copy of a run of blocks. Candle reads blocks in place and insists on their alignment, which a view into
/// a file need not have: such a view is copied first.
pub(crate) fn quantized_storage(dtype: GgmlDType, data: &[u8]) -> candle_core::Result<QStorage> {
    const WIDEST_FIELD_BYTES: usize = 4;
    if data.as_ptr().addr().is_multiple_of(WIDEST_FIELD_BYTES) {
        return QStorage::from_data(Cow::Borrowed(data), &Device::Cpu, dtype);
    }
    let mut words = vec![0_u32; data.len().div_ceil(WIDEST_FIELD_BYTES)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    bytes[..data.len()].copy_from_slice(data);
    QStorage::from_data(Cow::Borrowed(&bytes[..data.len()]), &Device::Cpu, dtype)
}
