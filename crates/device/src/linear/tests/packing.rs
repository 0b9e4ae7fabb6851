//! Packing keeps every weight, and refuses what does not fit together.

use super::reference::weights;
use super::*;

fn rows_of(w: &PackedMatrix) -> Vec<Vec<u32>> {
    let mut row = vec![0.0; w.cols()];
    let mut read = |index| {
        w.row(index, &mut row);
        bits(&row)
    };
    (0..w.rows()).map(&mut read).collect()
}

#[test]
fn rows_read_back_exactly() {
    for format in FORMATS {
        for rows in [1, 7, 8, 33] {
            let data = Random(rows as u64).matrix(format, rows, 160);
            let expected: Vec<_> = data
                .chunks_exact(format.row_bytes(160).unwrap())
                .map(|row| bits(&weights(format, row)))
                .collect();
            for isa in Isa::available() {
                let w = PackedMatrix::pack_for(isa, &[raw(format, rows, 160, &data)]).unwrap();
                assert_eq!((w.rows(), w.cols(), w.format()), (rows, 160, format));
                assert!(w.bytes() >= data.len());
                assert_eq!(rows_of(&w), expected, "{format:?} {isa:?}");
            }
        }
    }
}

#[test]
fn parts_and_row_orders_are_the_same_rows_elsewhere() {
    let mut random = Random(11);
    let threads = pool(2);
    for format in FORMATS {
        let (a, b) = (random.matrix(format, 13, 96), random.matrix(format, 6, 96));
        let order: Vec<u32> = vec![5, 0, 3, 3, 1];
        let part_a = PackedMatrix::pack(&[raw(format, 13, 96, &a)]).unwrap();
        let part_b = PackedMatrix::pack(&[raw(format, 6, 96, &b)]).unwrap();
        let ordered = RawMatrix { row_order: Some(&order), ..raw(format, 6, 96, &b) };
        let whole = PackedMatrix::pack(&[raw(format, 13, 96, &a), ordered]).unwrap();
        assert_eq!(whole.rows(), 18);

        let b_rows = rows_of(&part_b);
        let mut expected = rows_of(&part_a);
        expected.extend(order.iter().map(|&row| b_rows[row as usize].clone()));
        assert_eq!(rows_of(&whole), expected, "{format:?}");

        let x = random.floats(3 * 96);
        let (from_a, from_b) = (product(&threads, &part_a, &x), product(&threads, &part_b, &x));
        for (m, out) in product(&threads, &whole, &x).chunks_exact(18).enumerate() {
            let mut expected = from_a[m * 13..][..13].to_vec();
            expected.extend(order.iter().map(|&row| from_b[m * 6 + row as usize]));
            assert_eq!(bits(out), bits(&expected), "{format:?} row {m}");
        }
    }
}

/// A shard of the inputs has the file's weights, and the products of the shards add up to that of the whole.
#[test]
fn columns_are_cut_between_blocks_without_touching_a_weight() {
    let mut random = Random(12);
    let threads = pool(2);
    for format in FORMATS {
        let data = random.matrix(format, 13, 160);
        let order: Vec<u32> = vec![12, 0, 7, 7, 1];
        let whole = RawMatrix { row_order: Some(&order), ..raw(format, 13, 160, &data) };
        let all = PackedMatrix::pack(&[whole]).unwrap();
        let x = random.floats(3 * 160);
        let mut sums = vec![0.0; 3 * order.len()];
        for (first, count) in [(0, 96), (96, 32), (128, 32)] {
            let part = RawMatrix { columns: Some(Columns { first, count }), ..whole };
            let part = PackedMatrix::pack(&[part]).unwrap();
            let expected: Vec<_> =
                rows_of(&all).iter().map(|row| row[first..first + count].to_vec()).collect();
            assert_eq!(rows_of(&part), expected, "{format:?} {first}");
            let x: Vec<f32> = x.chunks(160).flat_map(|x| &x[first..first + count]).copied().collect();
            sums.iter_mut().zip(product(&threads, &part, &x)).for_each(|(sum, part)| *sum += part);
        }
        for (sum, whole) in sums.iter().zip(product(&threads, &all, &x)) {
            assert!((sum - whole).abs() <= 1e-4 * whole.abs().max(1.0), "{format:?}: {sum} {whole}");
        }
        let bad = if format.block_items() > 1 {
            [(16, 32), (0, 48), (160, 32)]
        } else {
            [(160, 1), (0, 0), (1, 160)]
        };
        for (first, count) in bad {
            let part = RawMatrix { columns: Some(Columns { first, count }), ..whole };
            let expected = LinearError::Columns { first, count, cols: 160, block: format.block_items() };
            assert_eq!(PackedMatrix::pack(&[part]).unwrap_err(), expected);
        }
    }
}

#[test]
fn sizes_that_contradict_each_other_are_typed_errors() {
    let refused = |parts: &[RawMatrix<'_>]| PackedMatrix::pack(parts).unwrap_err();
    let data = Random(1).matrix(Format::Q4_1, 4, 64);
    let good = raw(Format::Q4_1, 4, 64, &data);
    assert_eq!(refused(&[]), LinearError::Empty);
    assert_eq!(refused(&[RawMatrix { rows: 0, data: &[], ..good }]), LinearError::Empty);
    for cols in [0, 63, 65] {
        let expected = LinearError::Cols { cols, format: "q4_1", block: 32 };
        assert_eq!(refused(&[RawMatrix { cols, ..good }]), expected);
    }
    for data in [&data[..data.len() - 1], &[]] {
        let expected = LinearError::DataSize { rows: 4, cols: 64, expected: 160, found: data.len() };
        assert_eq!(refused(&[RawMatrix { data, ..good }]), expected);
    }
    let huge = RawMatrix { rows: usize::MAX / 16, ..good };
    assert!(matches!(refused(&[huge]), LinearError::TooLarge { .. }));
    let wide = RawMatrix { cols: usize::MAX - 31, ..good };
    assert!(matches!(refused(&[wide]), LinearError::Cols { .. } | LinearError::TooLarge { .. }));
    let order = [3, 4];
    let beyond = RawMatrix { row_order: Some(&order), ..good };
    assert_eq!(refused(&[beyond]), LinearError::RowOrder { row: 4, rows: 4 });
    let other = Random(1).matrix(Format::Q8_0, 4, 64);
    let mixed = raw(Format::Q8_0, 4, 64, &other);
    assert_eq!(refused(&[good, mixed]), LinearError::PartFormats { first: "q4_1", other: "q8_0" });
    let narrow = raw(Format::Q4_1, 8, 32, &data);
    assert_eq!(refused(&[good, narrow]), LinearError::PartCols { first: 64, other: 32 });
}
