//! Sums over pieces of columns: the documented arithmetic, and the same whoever adds which pieces.

use super::reference::integer_product;
use super::*;
use proptest::prelude::*;

/// A matrix `[rows][cols]` cut into pieces, and how they are shared out: every shard's columns.
#[derive(Clone, Debug)]
struct Cut {
    format: Format,
    rows: usize,
    piece: usize,
    shards: Vec<usize>,
}

impl Cut {
    fn cols(&self) -> usize {
        self.piece * self.shards.iter().sum::<usize>()
    }
}

fn cuts() -> impl Strategy<Value = Cut> {
    let format = proptest::sample::select(&FORMATS[..]);
    let piece = proptest::sample::select(&[32usize, 64, 128][..]);
    (format, 1usize..60, piece, proptest::collection::vec(1usize..5, 1..5))
        .prop_map(|(format, rows, piece, shards)| Cut { format, rows, piece, shards })
}

fn sums(threads: &Threads, w: &PackedMatrix, x: &[f32]) -> Vec<f64> {
    let mut out = vec![f64::NAN; x.len() / w.cols() * w.rows()];
    matmul_sums(threads, w, x, &mut out, &mut MatmulScratch::new());
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What ranks add up to, in any order, is what one rank computes: to the bit.
    #[test]
    fn shards_add_up_to_the_bits_of_the_whole(cut in cuts(), seed: u64, m in 1usize..9, count in 1usize..3) {
        let (mut random, threads) = (Random(seed), pool(count));
        let cols = cut.cols();
        let data = random.matrix(cut.format, cut.rows, cols);
        let x = random.floats(m * cols);
        for isa in Isa::available() {
            let whole = raw(cut.format, cut.rows, cols, &data);
            let pack = |raw| PackedMatrix::pack_for(isa, &[raw]).unwrap().in_pieces(cut.piece);
            let expected = product(&threads, &pack(whole), &x);
            let mut first = 0;
            let parts: Vec<_> = cut.shards.iter().map(|pieces| {
                let count = pieces * cut.piece;
                let part = pack(RawMatrix { columns: Some(Columns { first, count }), ..whole });
                let x: Vec<_> = x.chunks(cols).flat_map(|x| &x[first..first + count]).copied().collect();
                first += count;
                sums(&threads, &part, &x)
            }).collect();
            let added = |order: &mut dyn Iterator<Item = &Vec<f64>>| {
                let add = |sum: Vec<f64>, part: &Vec<f64>| sum.iter().zip(part).map(|(a, b)| a + b).collect();
                let sum: Vec<f64> = order.fold(vec![0.0; m * cut.rows], add);
                sum.into_iter().map(|sum| sum as f32).collect::<Vec<_>>()
            };
            prop_assert_eq!(bits(&added(&mut parts.iter())), bits(&expected), "{:?}", isa);
            prop_assert_eq!(bits(&added(&mut parts.iter().rev())), bits(&expected), "{:?}", isa);
        }
    }

    /// Pieces are f32 sums from zero, and f64 sums of these.
    #[test]
    fn the_arithmetic_of_pieces_is_as_documented(seed: u64, pieces in 1usize..5, rows in 1usize..20) {
        let (mut random, threads) = (Random(seed), pool(1));
        for format in QUANTISED {
            let cols = pieces * 64;
            let data = random.matrix(format, rows, cols);
            let x = random.floats(cols);
            let w = PackedMatrix::pack(&[raw(format, rows, cols, &data)]).unwrap().in_pieces(64);
            let row_bytes = format.row_bytes(cols).unwrap();
            let piece_bytes = format.row_bytes(64).unwrap();
            let expected: Vec<f64> = data.chunks_exact(row_bytes).map(|row| {
                row.chunks_exact(piece_bytes)
                    .zip(x.chunks_exact(64))
                    .map(|(row, x)| f64::from(integer_product(format, row, x)))
                    .sum()
            }).collect();
            prop_assert_eq!(&sums(&threads, &w, &x), &expected, "{:?}", format);
            let rounded: Vec<f32> = expected.iter().map(|sum| *sum as f32).collect();
            prop_assert_eq!(bits(&product(&threads, &w, &x)), bits(&rounded), "{:?}", format);
        }
    }
}

/// A matrix without pieces gives its f32 sums, only wider.
#[test]
fn a_matrix_of_one_piece_is_as_any_other() {
    let (mut random, threads) = (Random(9), pool(2));
    for format in FORMATS {
        let data = random.matrix(format, 21, 96);
        let x = random.floats(5 * 96);
        let w = PackedMatrix::pack(&[raw(format, 21, 96, &data)]).unwrap();
        let narrow: Vec<f64> = product(&threads, &w, &x).into_iter().map(f64::from).collect();
        assert_eq!(sums(&threads, &w, &x), narrow, "{format:?}");
        assert_eq!(sums(&threads, &w.in_pieces(96), &x), narrow, "{format:?}");
    }
}

/// What is not finite stays so.
#[test]
fn sums_of_what_is_not_finite_are_not_finite() {
    let (mut random, threads) = (Random(10), pool(1));
    for format in FORMATS {
        let data = random.matrix(format, 9, 128);
        let w = PackedMatrix::pack(&[raw(format, 9, 128, &data)]).unwrap().in_pieces(32);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = random.floats(128);
            x[70] = bad;
            assert!(sums(&threads, &w, &x).iter().all(|sum| !sum.is_finite()), "{format:?} {bad}");
        }
    }
}
