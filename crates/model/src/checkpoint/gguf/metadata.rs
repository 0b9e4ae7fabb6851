//! The key-value part of a GGUF file. Arrays stay in the file until somebody asks for them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cursor::Cursor;
use crate::checkpoint::error::CheckpointFault;

/// The smallest key-value pair: an empty key (8 bytes of length), a type and one byte.
const LEAST_PAIR_BYTES: usize = 13;

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array { element: u32, count: usize, bytes: Range<usize> },
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::Array { .. } => "an array",
        }
    }
}

const TYPE_TEXT: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// Bytes of a scalar of the type, `None` for strings, arrays and types that do not exist.
fn scalar_bytes(value_type: u32) -> Option<usize> {
    match value_type {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Decodes a scalar of a known type from its bytes.
fn scalar(value_type: u32, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let raw = u64::from_le_bytes(wide);
    let narrow = |bits: u32| (raw << (64 - bits)).cast_signed() >> (64 - bits);
    match value_type {
        1 => Value::Signed(narrow(8)),
        3 => Value::Signed(narrow(16)),
        5 => Value::Signed(narrow(32)),
        11 => Value::Signed(narrow(64)),
        6 => Value::Float(f64::from(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))),
        12 => Value::Float(f64::from_bits(raw)),
        7 => Value::Bool(raw != 0),
        _ => Value::Unsigned(raw),
    }
}

/// The keys of a file and their values.
#[derive(Debug, Default)]
pub(crate) struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Self, CheckpointFault> {
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = cursor.string("a metadata key")?.to_owned();
            let value = read_value(cursor, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(CheckpointFault::DuplicateKey { key });
            }
        }
        Ok(Self(values))
    }

    pub(super) const fn least_pair_bytes() -> usize {
        LEAST_PAIR_BYTES
    }

    /// Whether the key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// An integer that is not negative.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<u64>, CheckpointFault> {
        self.typed(key, "an integer from 0", |value| match value {
            Value::Unsigned(value) => Some(*value),
            Value::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        })
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, CheckpointFault> {
        self.typed(key, "a float", |value| match value {
            Value::Float(value) => Some(*value),
            _ => None,
        })
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, CheckpointFault> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, CheckpointFault> {
        self.typed(key, "a string", |value| match value {
            Value::Text(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// The strings of an array, where they lie in `file`.
    pub(crate) fn texts<'a>(
        &self,
        file: &'a [u8],
        key: &str,
    ) -> Result<Option<Vec<&'a str>>, CheckpointFault> {
        let Some((count, bytes)) = self.array(key, "an array of strings", |element| element == TYPE_TEXT)?
        else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(&file[bytes]);
        (0..count).map(|_| cursor.string(key)).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// The integers of an array of 32-bit ones.
    pub(crate) fn integers(&self, file: &[u8], key: &str) -> Result<Option<Vec<u32>>, CheckpointFault> {
        let Some((_, bytes)) = self.array(key, "an array of 32-bit integers", |e| e == 4 || e == 5)? else {
            return Ok(None);
        };
        let words = file[bytes].as_chunks::<4>().0;
        Ok(Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect()))
    }

    fn array(
        &self,
        key: &str,
        expected: &'static str,
        fits: impl Fn(u32) -> bool,
    ) -> Result<Option<(usize, Range<usize>)>, CheckpointFault> {
        self.typed(key, expected, |value| match value {
            Value::Array { element, count, bytes } if fits(*element) => Some((*count, bytes.clone())),
            _ => None,
        })
    }

    fn typed<'m, T>(
        &'m self,
        key: &str,
        expected: &'static str,
        pick: impl Fn(&'m Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointFault> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let wrong = || CheckpointFault::KeyType { key: key.to_owned(), expected, found: value.kind() };
        pick(value).ok_or_else(wrong).map(Some)
    }
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, CheckpointFault> {
    let value_type = cursor.u32(key)?;
    match (value_type, scalar_bytes(value_type)) {
        (_, Some(bytes)) => Ok(scalar(value_type, cursor.take(bytes as u64, key)?)),
        (TYPE_TEXT, _) => Ok(Value::Text(cursor.string(key)?.to_owned())),
        (TYPE_ARRAY, _) => read_array(cursor, key),
        _ => Err(CheckpointFault::ValueType { key: key.to_owned(), found: value_type }),
    }
}

/// An array of scalars or strings. Arrays of arrays are in the format but in no model.
fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, CheckpointFault> {
    let element = cursor.u32(key)?;
    let element_bytes = match (element, scalar_bytes(element)) {
        (_, Some(bytes)) => bytes,
        (TYPE_TEXT, _) => 8,
        _ => return Err(CheckpointFault::ValueType { key: key.to_owned(), found: element }),
    };
    let count = cursor.count(key, element_bytes)?;
    let from = cursor.at();
    if element == TYPE_TEXT {
        for _ in 0..count {
            cursor.skip_string(key)?;
        }
    } else {
        cursor.take((count * element_bytes) as u64, key)?;
    }
    Ok(Value::Array { element, count, bytes: from..cursor.at() })
}
