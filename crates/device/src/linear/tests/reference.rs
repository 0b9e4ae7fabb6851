//! The same products, written for reading.

use super::*;

/// Half precision number `index` of a block.
fn scale(block: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([block[2 * index], block[2 * index + 1]]).to_f32()
}

/// Quant `at` of a block, as the format counts them: unsigned in four bits, signed in eight.
fn quant(format: Format, block: &[u8], at: usize) -> i32 {
    let quants = &block[2 * format.scales()..];
    match format {
        Format::Q8_0 => i32::from(quants[at] as i8),
        _ if at < 16 => i32::from(quants[at] & 15),
        _ => i32::from(quants[at - 16] >> 4),
    }
}

/// A row's weights, exact in f32 but for the last rounding of `d * q + m`.
pub(super) fn weights(format: Format, row: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| match format {
        Format::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Format::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    };
    let weight = |block: &[u8], at: usize| {
        let q = quant(format, block, at) as f32;
        match format {
            Format::Q4_0 => scale(block, 0) * (q - 8.0),
            Format::Q4_1 => scale(block, 0) * q + scale(block, 1),
            _ => scale(block, 0) * q,
        }
    };
    let blocks = row.chunks_exact(format.block_bytes());
    if format.scales() == 0 {
        return blocks.map(float).collect();
    }
    blocks.flat_map(|block| (0..32).map(move |at| weight(block, at))).collect()
}

/// Scale and quants of 32 activations.
pub(super) fn quantised(x: &[f32]) -> (f32, Vec<i32>) {
    let peak = x.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    if peak < 1e-30 {
        return (0.0, vec![0; x.len()]);
    }
    let inverse = 127.0 / peak;
    (peak / 127.0, x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect())
}

/// One output of quantised weights: the documented arithmetic, to the last bit.
pub(super) fn integer_product(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = 0.0f32;
    for (block, x) in row.chunks_exact(format.block_bytes()).zip(x.chunks_exact(32)) {
        let (x_scale, x) = quantised(x);
        let dot: i32 = x.iter().enumerate().map(|(at, x)| quant(format, block, at) * x).sum();
        let sum: i32 = x.iter().sum();
        let value = match format {
            Format::Q4_0 => scale(block, 0) * (dot - 8 * sum) as f32,
            Format::Q4_1 => scale(block, 0).mul_add(dot as f32, scale(block, 1) * sum as f32),
            _ => scale(block, 0) * dot as f32,
        };
        acc = x_scale.mul_add(value, acc);
    }
    acc
}
