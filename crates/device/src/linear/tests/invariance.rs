//! The promise that lets a scheduler batch as it likes: a row's outputs depend on that row only.

use super::*;
use proptest::prelude::*;

fn check(random: &mut Random, format: Format, rows: usize, cols: usize, sizes: &[usize]) {
    let data = random.matrix(format, rows, cols);
    let largest = *sizes.iter().max().unwrap();
    let x = random.floats(largest * cols);
    let pools: Vec<Threads> = (1..=4).map(pool).collect();
    for isa in Isa::available() {
        let w = PackedMatrix::pack_for(isa, &[raw(format, rows, cols, &data)]).unwrap();
        let alone: Vec<Vec<u32>> = x.chunks_exact(cols).map(|x| bits(&product(&pools[0], &w, x))).collect();
        for &m in sizes {
            for threads in &pools {
                // The first and the last rows: the same row at different places of a batch.
                for first in [0, largest - m] {
                    let out = product(threads, &w, &x[first * cols..][..m * cols]);
                    for (at, out) in out.chunks_exact(rows).enumerate() {
                        let place = format!("{format:?} {isa:?} {threads:?} row {at} of {m}");
                        assert_eq!(bits(out), alone[first + at], "{place}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_row_does_not_depend_on_its_batch(
        seed: u64, rows in 1usize..150, blocks in 1usize..6, m in 2usize..20,
    ) {
        for format in FORMATS {
            check(&mut Random(seed), format, rows, blocks * 32, &[1, 2, 3, m]);
        }
    }
}

/// More rows than a panel holds, more tiles than a group holds, and activations that several threads quantise.
#[test]
fn a_row_does_not_depend_on_panels_and_groups() {
    check(&mut Random(1), Format::Q4_1, 72, 1536, &[2, 5, 16, 64, 133]);
    check(&mut Random(2), Format::Q8_0, 40, 576, &[4, 33, 190]);
    check(&mut Random(3), Format::F16, 40, 576, &[4, 61]);
}

#[test]
fn a_scratch_can_be_reused_and_no_rows_are_fine() {
    let mut random = Random(5);
    let threads = pool(2);
    let mut scratch = MatmulScratch::new();
    for (rows, cols, m) in [(9, 64, 3), (4, 32, 1), (17, 320, 70), (9, 64, 3), (9, 64, 0)] {
        let data = random.matrix(Format::Q4_1, rows, cols);
        let w = PackedMatrix::pack(&[raw(Format::Q4_1, rows, cols, &data)]).unwrap();
        let x = random.floats(m * cols);
        let mut out = vec![f32::NAN; m * rows];
        matmul(&threads, &w, &x, &mut out, Write::Store, &mut scratch);
        assert_eq!(bits(&out), bits(&product(&threads, &w, &x)));
    }
}
