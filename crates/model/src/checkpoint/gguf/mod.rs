//! GGUF files, versions 2 and 3, little-endian.
//!
//! Promises that no number in the file is trusted: a count, length, offset or dimension that the file cannot hold is
//! an error that names it, found before anything is allocated for it.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod config;
mod cursor;
mod metadata;

use candle_core::quantized::GgmlDType;

pub(super) use config::{end_tokens, model_config, vocabulary};
pub(super) use metadata::Metadata;

use self::cursor::Cursor;
use super::error::CheckpointFault;
use super::tensors::{TensorEntry, TensorTable};

const MAGIC: [u8; 4] = *b"GGUF";
/// The smallest tensor entry: an empty name, a rank of 0, a dtype and an offset.
const LEAST_TENSOR_BYTES: usize = 24;
const MAX_RANK: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Blocks of weights hold 4-byte floats, so no smaller alignment lets them be read in place.
const LEAST_ALIGNMENT: u64 = 8;

/// The parts of a file before its weights.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    /// Where the weights begin: everything before it is header.
    pub(super) data_from: usize,
}

/// Reads the header of `file` and enters its tensors into `table` as tensors of the table's file `index`.
pub(super) fn read(file: &[u8], index: usize, table: &mut TensorTable) -> Result<Header, CheckpointFault> {
    let mut cursor = Cursor::new(file);
    let magic = cursor.magic()?;
    if magic != MAGIC {
        return Err(CheckpointFault::NotGguf { found: magic });
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(CheckpointFault::Version { found: version });
    }
    let tensors = cursor.count("the tensor count", LEAST_TENSOR_BYTES)?;
    let pairs = cursor.count("the metadata count", Metadata::least_pair_bytes())?;
    let metadata = Metadata::read(&mut cursor, pairs)?;
    let alignment = alignment(&metadata)?;
    let mut found = Vec::new();
    for _ in 0..tensors {
        found.push(read_tensor(&mut cursor)?);
    }
    let data_from = (cursor.at() as u64).next_multiple_of(alignment);
    for tensor in found {
        let entry = tensor.place(data_from, alignment, file.len() as u64, index)?;
        table.insert(tensor.name, entry)?;
    }
    table.check_overlap()?;
    Ok(Header { metadata, data_from: usize::try_from(data_from).unwrap_or(file.len()).min(file.len()) })
}

fn alignment(metadata: &Metadata) -> Result<u64, CheckpointFault> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.integer(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !(LEAST_ALIGNMENT..=1 << 20).contains(&alignment) {
        let expected = "a power of two from 8 to 1048576 is expected".to_owned();
        return Err(CheckpointFault::KeyValue {
            key: KEY.to_owned(),
            value: alignment.to_string(),
            expected,
        });
    }
    Ok(alignment)
}

/// A tensor as the header describes it.
struct Described<'a> {
    name: &'a str,
    /// Fastest-varying first, as the file has them.
    dims: Vec<u64>,
    dtype: u32,
    offset: u64,
}

fn read_tensor<'a>(cursor: &mut Cursor<'a>) -> Result<Described<'a>, CheckpointFault> {
    let name = cursor.string("a tensor name")?;
    let rank = cursor.u32(name)?;
    if rank == 0 || rank > MAX_RANK {
        return Err(CheckpointFault::Count {
            what: format!("the rank of tensor {name}"),
            count: rank.into(),
        });
    }
    let dims = (0..rank).map(|_| cursor.u64(name)).collect::<Result<_, _>>()?;
    Ok(Described { name, dims, dtype: cursor.u32(name)?, offset: cursor.u64(name)? })
}

impl Described<'_> {
    /// Where the tensor lies in a file of `have` bytes whose weights begin at `data_from`.
    fn place(
        &self,
        data_from: u64,
        alignment: u64,
        have: u64,
        file: usize,
    ) -> Result<TensorEntry, CheckpointFault> {
        let tensor = || self.name.to_owned();
        let dtype = ggml_dtype(self.dtype);
        let dtype = dtype.ok_or_else(|| CheckpointFault::UnknownDtype {
            tensor: tensor(),
            found: self.dtype.to_string(),
        })?;
        if !self.offset.is_multiple_of(alignment) {
            return Err(CheckpointFault::Misaligned { tensor: tensor(), offset: self.offset, alignment });
        }
        let impossible = || CheckpointFault::ImpossibleShape { tensor: tensor(), found: self.dims.clone() };
        let bytes = self.bytes(dtype).ok_or_else(impossible)?;
        let from = data_from.checked_add(self.offset).ok_or_else(impossible)?;
        let end = from.checked_add(bytes).ok_or_else(impossible)?;
        if end > have {
            return Err(CheckpointFault::OutOfFile { tensor: tensor(), end, have });
        }
        let size = |value: u64| usize::try_from(value).map_err(|_| impossible());
        let shape = self.dims.iter().rev().map(|&dim| size(dim)).collect::<Result<_, _>>()?;
        Ok(TensorEntry { dtype, shape, file, bytes: size(from)?..size(end)? })
    }

    /// Bytes of the tensor; `None` where the shape is empty, does not divide into blocks, or overflows.
    fn bytes(&self, dtype: GgmlDType) -> Option<u64> {
        let block = dtype.block_size() as u64;
        let columns = *self.dims.first()?;
        let elements = self.dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))?;
        let divides = elements > 0 && columns.is_multiple_of(block);
        divides.then(|| (elements / block).checked_mul(dtype.type_size() as u64))?
    }
}

/// The dtype of a number in a tensor's description.
fn ggml_dtype(found: u32) -> Option<GgmlDType> {
    Some(match found {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        9 => GgmlDType::Q8_1,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        15 => GgmlDType::Q8K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}
