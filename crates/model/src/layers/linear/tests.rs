//! Products of every format against a dense reference, and their independence of the batch.

use std::num::NonZeroUsize;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use hawser_device::linear::Write;
use hawser_device::threads::Threads;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const ROWS: usize = 64;
const COLS: usize = 512;

struct Matrix {
    dtype: GgmlDType,
    data: Vec<u8>,
    dense: Vec<f32>,
}

fn random(rng: &mut StdRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn matrix(rng: &mut StdRng, dtype: GgmlDType) -> Matrix {
    let weights = Tensor::from_vec(random(rng, ROWS * COLS), (ROWS, COLS), &Device::Cpu).unwrap();
    let quantised = QTensor::quantize(&weights, dtype).unwrap();
    let data = quantised.data().unwrap().into_owned();
    let dense = quantised.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    Matrix { dtype, data, dense }
}

fn view(matrix: &Matrix) -> MatrixView<'_> {
    MatrixView { dtype: matrix.dtype, rows: ROWS, cols: COLS, data: &matrix.data }
}

fn forward(linear: &Linear, x: &[f32]) -> Vec<f32> {
    let threads = Threads::new(NonZeroUsize::new(2).unwrap());
    let mut out = vec![0.0; x.len() / COLS * linear.rows];
    linear.forward(&threads, x, &mut out, Write::Store, &mut LinearScratch::default()).unwrap();
    out
}

/// Every pair of formats below each other, with a row order on the first: close to the dense product, row by row the
/// same whatever the batch, and rows read back exactly.
#[test]
fn products_of_any_mix_of_formats_are_right_and_independent_of_the_batch() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let formats =
        [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q5_0, GgmlDType::Q4_1, GgmlDType::Q8_0, GgmlDType::F16];
    let order: Vec<u32> = (0..ROWS as u32).rev().collect();
    for first in formats {
        for second in formats {
            let (a, b) = (matrix(&mut rng, first), matrix(&mut rng, second));
            let ordered = [
                Ordered { view: view(&a), order: Some(&order), columns: None },
                Ordered { view: view(&b), order: None, columns: None },
            ];
            let linear = Linear::new(&ordered).unwrap();
            assert_eq!(linear.rows, 2 * ROWS);
            let mut weights: Vec<f32> = a.dense.chunks(COLS).rev().flatten().copied().collect();
            weights.extend(&b.dense);
            let x = random(&mut rng, 40 * COLS);
            let batch = forward(&linear, &x);
            for (x, out) in x.chunks(COLS).zip(batch.chunks(2 * ROWS)) {
                assert_eq!(forward(&linear, x), out, "{first:?} {second:?}: alone and in a batch");
                for (weights, out) in weights.chunks(COLS).zip(out) {
                    let exact: f32 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
                    assert!((exact - out).abs() < 0.5, "{first:?} {second:?}: {exact} {out}");
                }
            }
            let mut row = vec![0.0; COLS];
            for (index, weights) in weights.chunks(COLS).enumerate() {
                linear.row(index, &mut row).unwrap();
                assert_eq!(row, weights, "{first:?} {second:?}: row {index}");
            }
        }
    }
}

#[test]
fn adding_adds_to_what_was_there() {
    let mut rng = StdRng::seed_from_u64(7);
    for dtype in [GgmlDType::Q4_1, GgmlDType::Q4K] {
        let a = matrix(&mut rng, dtype);
        let linear = Linear::new(&[Ordered { view: view(&a), order: None, columns: None }]).unwrap();
        let x = random(&mut rng, 3 * COLS);
        let threads = Threads::new(NonZeroUsize::MIN);
        let stored = forward(&linear, &x);
        let mut added = vec![1.0; stored.len()];
        linear.forward(&threads, &x, &mut added, Write::Add, &mut LinearScratch::default()).unwrap();
        assert!(stored.iter().zip(&added).all(|(a, b)| (a + 1.0 - b).abs() < 1e-5), "{dtype:?}");
    }
}

/// A shard's columns are the file's weights, whichever engine multiplies them, and shards add up to the whole.
#[test]
fn columns_of_any_format_are_cut_between_blocks() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let order: Vec<u32> = vec![7, 3, 3, 60];
    for dtype in
        [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q5_0, GgmlDType::Q4_1, GgmlDType::F16, GgmlDType::F32]
    {
        let matrix = matrix(&mut rng, dtype);
        for order in [None, Some(&order[..])] {
            let cut = |columns| Linear::new(&[Ordered { view: view(&matrix), order, columns }]).unwrap();
            let whole = cut(None);
            let x = random(&mut rng, 3 * COLS);
            let mut sum = vec![0.0; 3 * whole.rows];
            let threads = Threads::new(NonZeroUsize::MIN);
            let (mut all, mut row) = (vec![0.0; COLS], vec![0.0; 256]);
            for first in [0, 256] {
                let part = cut(Some(Columns { first, count: 256 }));
                assert!(part.bytes() <= whole.bytes() / 2 + 4096, "{dtype:?}: a shard is smaller");
                let x: Vec<f32> = x.chunks(COLS).flat_map(|x| &x[first..first + 256]).copied().collect();
                part.forward(&threads, &x, &mut sum, Write::Add, &mut LinearScratch::default()).unwrap();
                for index in 0..whole.rows {
                    whole.row(index, &mut all).unwrap();
                    part.row(index, &mut row).unwrap();
                    assert_eq!(row, all[first..first + 256], "{dtype:?}: row {index}");
                }
            }
            for (sum, whole) in sum.iter().zip(forward(&whole, &x)) {
                assert!((sum - whole).abs() < 1e-2, "{dtype:?}: {sum} {whole}");
            }
        }
    }
}
