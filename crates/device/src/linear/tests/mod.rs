//! Every test draws matrices in file format from a printed seed and compares with the arithmetic written out here.

mod invariance;
mod packing;
mod pieces;
mod reference;
mod values;

use std::num::NonZeroUsize;

use half::{bf16, f16};

use super::*;
use crate::cpu::Isa;

const FORMATS: [Format; 6] =
    [Format::F32, Format::F16, Format::Bf16, Format::Q4_0, Format::Q4_1, Format::Q8_0];
const QUANTISED: [Format; 3] = [Format::Q4_0, Format::Q4_1, Format::Q8_0];

/// splitmix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        // Magnitudes differ between blocks, as those of activations do.
        (0..count).map(|at| self.float() * [0.01, 1.0, 30.0][at / 32 % 3]).collect()
    }

    /// A matrix as in a file. Quants take all values, scales either sign.
    fn matrix(&mut self, format: Format, rows: usize, cols: usize) -> Vec<u8> {
        let mut data = Vec::new();
        for _ in 0..rows * cols / format.block_items() {
            match format {
                Format::F32 => data.extend(self.float().to_le_bytes()),
                Format::F16 => data.extend(f16::from_f32(self.float()).to_le_bytes()),
                Format::Bf16 => data.extend(bf16::from_f32(self.float()).to_le_bytes()),
                Format::Q4_0 | Format::Q4_1 | Format::Q8_0 => {
                    let heads = format.scales();
                    (0..heads).for_each(|_| data.extend(f16::from_f32(self.float() / 50.0).to_le_bytes()));
                    let quants = format.block_bytes() - 2 * heads;
                    data.extend((0..quants).map(|_| self.bits() as u8));
                }
            }
        }
        data
    }
}

fn pool(count: usize) -> Threads {
    Threads::new(NonZeroUsize::new(count).unwrap())
}

fn raw(format: Format, rows: usize, cols: usize, data: &[u8]) -> RawMatrix<'_> {
    RawMatrix { format, rows, cols, data, row_order: None, columns: None }
}

/// W x for rows of `x`, stored.
fn product(threads: &Threads, w: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    matmul(threads, w, x, &mut out, Write::Store, &mut MatmulScratch::new());
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
