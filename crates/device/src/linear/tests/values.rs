//! Outputs are what they should be.

use super::reference::{integer_product, quantised, weights};
use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every instruction set computes the documented arithmetic, to the last bit.
    #[test]
    fn quantised_products_equal_the_scalar_arithmetic(
        seed: u64, rows in 1usize..70, blocks in 1usize..8, m in 1usize..11,
    ) {
        let threads = pool(2);
        for format in QUANTISED {
            let mut random = Random(seed);
            let cols = blocks * 32;
            let data = random.matrix(format, rows, cols);
            let x = random.floats(m * cols);
            let before = random.floats(m * rows);
            let row_bytes = format.row_bytes(cols).unwrap();
            let expected: Vec<f32> = x
                .chunks_exact(cols)
                .flat_map(|x| data.chunks_exact(row_bytes).map(|row| integer_product(format, row, x)))
                .collect();
            let added: Vec<f32> = before.iter().zip(&expected).map(|(before, y)| before + y).collect();
            for isa in Isa::available() {
                let w = PackedMatrix::pack_for(isa, &[raw(format, rows, cols, &data)]).unwrap();
                prop_assert_eq!(bits(&product(&threads, &w, &x)), bits(&expected), "{:?} {:?}", format, isa);
                let mut out = before.clone();
                matmul(&threads, &w, &x, &mut out, Write::Add, &mut MatmulScratch::new());
                prop_assert_eq!(bits(&out), bits(&added), "{:?} {:?}", format, isa);
            }
        }
    }

    /// Against exact weights and activations: each activation is off by at most half a quantisation step, and f32
    /// adds a rounding error per block.
    #[test]
    fn quantised_products_are_as_near_as_int8_allows(seed: u64, rows in 1usize..20, blocks in 1usize..50) {
        let threads = pool(1);
        for format in QUANTISED {
            let mut random = Random(seed);
            let cols = blocks * 32;
            let data = random.matrix(format, rows, cols);
            let x = random.floats(cols);
            let w = PackedMatrix::pack(&[raw(format, rows, cols, &data)]).unwrap();
            let out = product(&threads, &w, &x);
            for (row, out) in data.chunks_exact(format.row_bytes(cols).unwrap()).zip(out) {
                let weights = weights(format, row);
                let (mut exact, mut bound) = (0.0, 0.0);
                for (weights, x) in weights.chunks_exact(32).zip(x.chunks_exact(32)) {
                    let half_step = f64::from(quantised(x).0) / 2.0;
                    for (&w, &x) in weights.iter().zip(x) {
                        exact += f64::from(w) * f64::from(x);
                        bound += f64::from(w).abs() * (half_step * 1.0001 + f64::from(x).abs() * 1e-5);
                    }
                }
                let error = (f64::from(out) - exact).abs();
                prop_assert!(error <= bound + 1e-6, "{format:?}: {out} for {exact}, {error} > {bound}");
            }
        }
    }

    #[test]
    fn float_products_are_accurate(seed: u64, rows in 1usize..40, cols in 1usize..400, m in 1usize..7) {
        let threads = pool(2);
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let mut random = Random(seed);
            let data = random.matrix(format, rows, cols);
            let x = random.floats(m * cols);
            let row_bytes = format.row_bytes(cols).unwrap();
            let mut per_isa = Vec::new();
            for isa in Isa::available() {
                let w = PackedMatrix::pack_for(isa, &[raw(format, rows, cols, &data)]).unwrap();
                let out = product(&threads, &w, &x);
                for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact(rows)) {
                    for (row, &out) in data.chunks_exact(row_bytes).zip(out) {
                        let terms = weights(format, row).into_iter().zip(x);
                        let terms: Vec<f64> = terms.map(|(w, &x)| f64::from(w) * f64::from(x)).collect();
                        let exact: f64 = terms.iter().sum();
                        let size: f64 = terms.iter().map(|term| term.abs()).sum();
                        prop_assert!((f64::from(out) - exact).abs() <= 1e-6 * size, "{format:?} {isa:?}");
                    }
                }
                per_isa.push(bits(&out));
            }
            prop_assert!(per_isa.windows(2).all(|pair| pair[0] == pair[1]), "{format:?}: sets differ");
        }
    }
}

/// The largest sums that a block can reach: 16-bit intermediate sums must not overflow.
#[test]
fn extreme_quants_do_not_overflow() {
    let threads = pool(1);
    for format in QUANTISED {
        for (byte, x) in [(0xff, 1.0f32), (0xff, -1.0), (0x00, 1.0), (0x80, 1.0), (0x80, -1.0), (0x7f, -1.0)]
        {
            let mut block = f16::ONE.to_le_bytes().repeat(format.scales());
            block.resize(format.block_bytes(), byte);
            let (data, x) = (block.repeat(9 * 3), [x; 96]);
            for isa in Isa::available() {
                let w = PackedMatrix::pack_for(isa, &[raw(format, 9, 96, &data)]).unwrap();
                let expected = integer_product(format, &data[..data.len() / 9], &x);
                assert_eq!(product(&threads, &w, &x), vec![expected; 9], "{format:?} {isa:?} {byte} {x:?}");
            }
        }
    }
}

#[test]
fn a_bad_number_spoils_its_own_row_and_no_other() {
    let threads = pool(2);
    for format in FORMATS {
        let mut random = Random(7);
        let data = random.matrix(format, 20, 96);
        for isa in Isa::available() {
            let w = PackedMatrix::pack_for(isa, &[raw(format, 20, 96, &data)]).unwrap();
            let good = random.floats(3 * 96);
            let expected = product(&threads, &w, &good);
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = good.clone();
                x[96 + 40] = value;
                let out = product(&threads, &w, &x);
                assert!(out[20..40].iter().all(|y| !y.is_finite()), "{format:?} {isa:?} {value}");
                assert_eq!((&out[..20], &out[40..]), (&expected[..20], &expected[40..]));
            }
        }
    }
}

#[test]
fn zeros_and_tiny_numbers_give_zero() {
    let threads = pool(1);
    for format in QUANTISED {
        let data = Random(3).matrix(format, 5, 64);
        let w = PackedMatrix::pack(&[raw(format, 5, 64, &data)]).unwrap();
        for x in [0.0, -0.0, 1e-38, f32::from_bits(1)] {
            assert_eq!(product(&threads, &w, &[x; 64]), vec![0.0; 5], "{format:?} {x}");
        }
    }
}
