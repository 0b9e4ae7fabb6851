//! The arithmetic of a reduction, the same in every transport: values are widened, added in the order of the ranks
//! and narrowed once. Also the buffers that hold values of any type.
//!
//! Promises that the same parts in the same order give the same bits. Never decides whose part comes when.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::{Reduce, Values};

/// Elements that are reduced at a time, so that their sum stays in the nearest cache.
pub(super) const BLOCK: usize = 4096;

/// A type that ranks can reduce.
pub(super) trait Element: Pod {
    /// What sums are kept in.
    type Wide: Pod;

    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The larger one; NaN if one of them is, so that it is not lost.
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
}

/// A type whose sums are kept in itself.
macro_rules! element {
    ($type:ty, $add:expr, $max:expr) => {
        impl Element for $type {
            type Wide = Self;

            fn widen(self) -> Self {
                self
            }

            fn narrow(wide: Self) -> Self {
                wide
            }

            fn add(a: Self, b: Self) -> Self {
                $add(a, b)
            }

            fn max(a: Self, b: Self) -> Self {
                $max(a, b)
            }
        }
    };
}

element!(f32, |a, b| a + b, |a, b: f32| if b > a || b.is_nan() { b } else { a });
element!(f64, |a, b| a + b, |a, b: f64| if b > a || b.is_nan() { b } else { a });
element!(i64, i64::wrapping_add, Ord::max);

impl Element for bf16 {
    type Wide = f32;

    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }

    fn add(a: f32, b: f32) -> f32 {
        a + b
    }

    fn max(a: f32, b: f32) -> f32 {
        <f32 as Element>::max(a, b)
    }
}

/// The sum of one block while it is being made.
pub(super) struct Fold<'a, T: Element> {
    sum: &'a mut [T::Wide],
    by: Reduce,
    parts: usize,
}

impl<'a, T: Element> Fold<'a, T> {
    /// A fold of `len` elements, made in `scratch`.
    pub(super) fn new(scratch: &'a mut Buffer, len: usize, by: Reduce) -> Self {
        Self { sum: scratch.room::<T::Wide>(len), by, parts: 0 }
    }

    /// Takes the next rank's part.
    pub(super) fn take(&mut self, part: &[T]) {
        assert_eq!(part.len(), self.sum.len(), "ranks with the same tag have parts of the same length");
        let pairs = self.sum.iter_mut().zip(part);
        match (self.parts, self.by) {
            (0, _) => pairs.for_each(|(sum, part)| *sum = part.widen()),
            (_, Reduce::Sum) => pairs.for_each(|(sum, part)| *sum = T::add(*sum, part.widen())),
            (_, Reduce::Max) => pairs.for_each(|(sum, part)| *sum = T::max(*sum, part.widen())),
        }
        self.parts += 1;
    }

    pub(super) fn finish(self, into: &mut [T]) {
        assert_eq!(into.len(), self.sum.len(), "the result has the length of the parts");
        into.iter_mut().zip(self.sum).for_each(|(into, sum)| *into = T::narrow(*sum));
    }
}

/// The blocks of `range`, in order.
pub(super) fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(BLOCK).map(move |start| start..(start + BLOCK).min(end))
}

/// Copies values in pieces of a KiB. For longer copies C libraries turn to a string instruction, which takes some ten
/// times as long on some CPUs where the target lies a few bytes behind the source within its page.
pub(super) fn copy<T: Pod>(into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "a copy has the length of its place");
    let piece = (1024 / size_of::<T>()).max(1);
    into.chunks_mut(piece).zip(from.chunks(piece)).for_each(|(into, from)| into.copy_from_slice(from));
}

/// Values of any type. It grows and stays, so that steps do not allocate.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Words rather than bytes: aligned for every type.
    words: Vec<u64>,
    bytes: usize,
}

impl Buffer {
    /// Room for `len` values; what is in it is left from before.
    pub(super) fn room<T: Pod>(&mut self, len: usize) -> &mut [T] {
        self.bytes = len * size_of::<T>();
        let words = self.bytes.div_ceil(size_of::<u64>());
        if self.words.len() < words {
            self.words.resize(words, u64::zeroed());
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytemuck::cast_slice_mut(&mut bytes[..self.bytes])
    }

    /// The values that were put here last.
    pub(super) fn values<T: Pod>(&self) -> &[T] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        bytemuck::cast_slice(&bytes[..self.bytes])
    }
}

/// The same expression for elements of whichever type there are.
macro_rules! with_elements {
    ($values:expr, $data:ident => $body:expr) => {
        match $values {
            $crate::collective::Values::F32($data) => $body,
            $crate::collective::Values::Bf16($data) => $body,
            $crate::collective::Values::F64($data) => $body,
            $crate::collective::Values::I64($data) => $body,
        }
    };
}
pub(super) use with_elements;

impl Values<'_> {
    /// The same values, for a shorter time.
    pub(super) fn reborrow(&mut self) -> Values<'_> {
        match self {
            Self::F32(data) => Values::F32(data),
            Self::Bf16(data) => Values::Bf16(data),
            Self::F64(data) => Values::F64(data),
            Self::I64(data) => Values::I64(data),
        }
    }

    /// Elements.
    pub(super) fn len(&self) -> usize {
        with_elements!(self, data => data.len())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        with_elements!(self, data => bytemuck::cast_slice(data))
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        with_elements!(self, data => bytemuck::cast_slice_mut(data))
    }
}
