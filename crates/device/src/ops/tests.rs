use std::num::NonZeroUsize;

use hawser_common::Position;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::gate::Gate;
use super::norm::Norm;
use super::rope::Rotate;
use super::*;
use crate::simd::dispatch;

fn pool(count: usize) -> Threads {
    Threads::new(NonZeroUsize::new(count).unwrap())
}

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n).map(|_| rng.random::<f32>() * 8.0 - 4.0).collect()
}

fn close(found: &[f32], expected: &[f64], within: f64) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        prop_assert!(error <= within * expected.abs().max(1.0), "{i}: {found} instead of {expected}");
    }
    Ok(())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn norms_equal_their_formula(seed in any::<u64>(), rows in 1usize..40, n in 1usize..700, threads in 1usize..4) {
        let (x, weight) = (numbers(seed, rows * n), numbers(seed ^ 1, n));
        let row = |row: &[f32]| {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            row.iter().zip(&weight).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect::<Vec<_>>()
        };
        let expected: Vec<f64> = x.chunks_exact(n).flat_map(row).collect();
        for isa in Isa::available() {
            let mut found = x.clone();
            dispatch(isa, Norm { rows: &mut found, weight: &weight, eps: 1e-5 });
            close(&found, &expected, 2e-6)?;
        }
        let mut out = vec![0.0; x.len()];
        rms_norm(&pool(threads), &x, &weight, 1e-5, &mut out);
        close(&out, &expected, 2e-6)?;
        let mut heads = x.clone();
        rms_norm_heads(&pool(threads), &mut heads, &weight, 1e-5);
        prop_assert_eq!(bits(&heads), bits(&out));
    }

    #[test]
    fn gates_equal_their_formula(seed in any::<u64>(), rows in 1usize..20, ffn in 1usize..900, threads in 1usize..4) {
        let gate_up = numbers(seed, rows * 2 * ffn);
        let expected: Vec<f64> = gate_up.chunks_exact(2 * ffn).flat_map(|row| (0..ffn).map(|i| {
            let (gate, up) = (f64::from(row[i]), f64::from(row[ffn + i]));
            gate / (1.0 + (-gate).exp()) * up
        })).collect();
        for isa in Isa::available() {
            for (row, expected) in gate_up.chunks_exact(2 * ffn).zip(expected.chunks_exact(ffn)) {
                let mut out = vec![0.0; ffn];
                dispatch(isa, Gate { gate: &row[..ffn], up: &row[ffn..], out: &mut out });
                close(&out, expected, 2e-6)?;
            }
        }
        let mut out = vec![0.0; rows * ffn];
        silu_mul(&pool(threads), &gate_up, ffn, &mut out);
        close(&out, &expected, 2e-6)?;
        // A row alone, which is cut by columns, has the same bits as within a batch, which is cut by rows.
        let mut alone = vec![0.0; ffn];
        silu_mul(&pool(4 - threads), &gate_up[..2 * ffn], ffn, &mut alone);
        prop_assert_eq!(bits(&alone), bits(&out[..ffn]));
    }

    #[test]
    fn rotations_equal_their_formula(
        seed in any::<u64>(), rows in 1usize..30, heads in 1usize..5, half in 1usize..40, rest in 0usize..20,
        threads in 1usize..4,
    ) {
        let head_dim = 2 * half + rest;
        let frequencies: Vec<f64> = (0..half).map(|i| 10_000_f64.powf(-(i as f64) / half as f64)).collect();
        let positions: Vec<Position> = (0..rows as u32).map(|i| Position(i * 37)).collect();
        let x = numbers(seed, rows * heads * head_dim);
        let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for (row, position) in expected.chunks_exact_mut(heads * head_dim).zip(&positions) {
            for head in row.chunks_exact_mut(head_dim) {
                for i in 0..half {
                    let angle = f64::from(position.0) * frequencies[i];
                    let (a, b) = (head[i], head[half + i]);
                    head[i] = 1.5 * (a * angle.cos() - b * angle.sin());
                    head[half + i] = 1.5 * (b * angle.cos() + a * angle.sin());
                }
            }
        }
        let rope = Rope::new(&frequencies, 1.5);
        let mut phases = Phases::default();
        rope.phases(&positions, &mut phases);
        let mut found = x.clone();
        phases.rotate(&pool(threads), &mut found, heads);
        close(&found, &expected, 2e-6)?;
        for isa in Isa::available() {
            let mut row = x[..heads * head_dim].to_vec();
            let (cos, sin) = (vec![0.6; half], vec![0.8; half]);
            dispatch(isa, Rotate { heads: &mut row, head_dim, cos: &cos, sin: &sin });
            for (before, after) in x.chunks_exact(head_dim).zip(row.chunks_exact(head_dim)) {
                let expected: Vec<f64> = (0..head_dim).map(|i| {
                    let at = |i: usize| f64::from(before[i]);
                    if i < half { at(i) * 0.6 - at(i + half) * 0.8 }
                    else if i < 2 * half { at(i) * 0.6 + at(i - half) * 0.8 }
                    else { at(i) }
                }).collect();
                close(after, &expected, 2e-6)?;
            }
        }
    }

    #[test]
    fn additions_cover_every_number(seed in any::<u64>(), n in 0usize..40_000, threads in 1usize..4) {
        let (x, y) = (numbers(seed, n), numbers(!seed, n));
        let mut found = x.clone();
        add_assign(&pool(threads), &mut found, &y);
        prop_assert!(found.iter().zip(x.iter().zip(&y)).all(|(found, (x, y))| *found == x + y));
    }
}

#[test]
fn positions_beyond_any_table_cost_nothing_up_front_and_keep_their_angle() {
    let rope = Rope::new(&[1.0, 0.01], 1.0);
    let mut phases = Phases::default();
    rope.phases(&[Position(131_071)], &mut phases);
    let mut x = vec![1.0, 1.0, 0.0, 0.0];
    phases.rotate(&pool(1), &mut x, 1);
    // As f32 the second angle would be off by up to 6e-5.
    for (pair, angle) in [131_071.0_f64, 1310.71].into_iter().enumerate() {
        assert!((f64::from(x[pair]) - angle.cos()).abs() < 1e-6, "{pair}");
        assert!((f64::from(x[2 + pair]) - angle.sin()).abs() < 1e-6, "{pair}");
    }
}
