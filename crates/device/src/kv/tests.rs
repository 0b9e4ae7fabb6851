use super::*;
use proptest::prelude::*;

const TYPES: [RowType; 3] = [RowType::F32, RowType::F16, RowType::Bf16];

fn round(rows: RowType, x: f32) -> f32 {
    match rows {
        RowType::F32 => x,
        RowType::F16 => f16::from_f32(x).to_f32(),
        RowType::Bf16 => bf16::from_f32(x).to_f32(),
    }
}

proptest! {
    #[test]
    fn rows_read_back_as_written_and_touch_no_other(
        head_dim in 1usize..40, kv_heads in 1usize..4, slot in 1u32..6, layer in 0usize..3, rows in 0usize..3,
    ) {
        let shape = KvShape { layers: 3, slots: 6, kv_heads, head_dim };
        let rows = TYPES[rows];
        let mut kv = KvRows::new(shape, rows).unwrap();
        (0..6).for_each(|slot| kv.poison(SlotId(slot)));
        let keys: Vec<f32> = (0..kv_heads * head_dim).map(|i| (i as f32 + 0.3).sin()).collect();
        let values: Vec<f32> = keys.iter().map(|x| x * 3.0 - 1.0).collect();
        kv.write(layer, &[SlotId(slot)], &keys, &values);
        let mut out = vec![0.0; head_dim];
        for l in 0..3 {
            for s in 0..6 {
                for head in 0..kv_heads {
                    let written = (l, s) == (layer, slot);
                    for (read, source) in [(KvRows::key as fn(&_, _, _, _, &mut [f32]), &keys), (KvRows::value, &values)] {
                        read(&kv, l, SlotId(s), head, &mut out);
                        for (d, &x) in out.iter().enumerate() {
                            let expected = if written { round(rows, source[head * head_dim + d]) } else { f32::NAN };
                            prop_assert!(x == expected || (x.is_nan() && expected.is_nan()), "{l} {s} {head} {d}");
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn r6_bits_read_from_one_pool_are_the_rows_of_another(
        head_dim in 1usize..40, kv_heads in 1usize..4, rows in 0usize..3, from in 1u32..6, to in 1u32..9,
    ) {
        let rows = TYPES[rows];
        let mut source = KvRows::new(KvShape { layers: 2, slots: 6, kv_heads, head_dim }, rows).unwrap();
        let mut target = KvRows::new(KvShape { layers: 2, slots: 9, kv_heads, head_dim }, rows).unwrap();
        (0..9).for_each(|slot| target.poison(SlotId(slot)));
        let keys: Vec<f32> = (0..kv_heads * head_dim).map(|i| (i as f32 + 0.7).sin()).collect();
        let values: Vec<f32> = keys.iter().map(|x| 1.0 - x).collect();
        let mut bits = vec![0; source.head_bytes()];
        let (mut was, mut is) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for layer in 0..2 {
            source.write(layer, &[SlotId(from)], &keys, &values);
            for head in 0..kv_heads {
                source.read_bits(layer, SlotId(from), head, &mut bits);
                target.write_bits(layer, SlotId(to), head, &bits);
                for read in [KvRows::key as fn(&_, _, _, _, &mut [f32]), KvRows::value] {
                    read(&source, layer, SlotId(from), head, &mut was);
                    read(&target, layer, SlotId(to), head, &mut is);
                    prop_assert_eq!(&was, &is);
                }
            }
        }
        prop_assert!(match target.layer(1) {
            Layer::F32(items) => items[to as usize * target.shape().slot_stride()..]
                [..target.shape().slot_stride()].iter().all(|x| !x.is_nan()),
            Layer::F16(items) | Layer::Bf16(items) => items[to as usize * target.shape().slot_stride()..]
                [..target.shape().slot_stride()].iter().all(|&x| x != f16::NAN.to_bits() && x != bf16::NAN.to_bits()),
        }, "the padding is clear");
    }
}

#[test]
fn writing_a_slot_clears_what_its_padding_held() {
    for rows in TYPES {
        let mut kv = KvRows::new(KvShape { layers: 1, slots: 2, kv_heads: 1, head_dim: 5 }, rows).unwrap();
        kv.poison(SlotId(1));
        kv.write(0, &[SlotId(1)], &[1.0; 5], &[2.0; 5]);
        let padding_is_zero = match kv.layer(0) {
            Layer::F32(items) => items[37..48].iter().chain(&items[53..64]).all(|&x| x == 0.0),
            Layer::F16(items) | Layer::Bf16(items) => {
                items[37..48].iter().chain(&items[53..64]).all(|&x| x == 0)
            }
        };
        assert!(padding_is_zero, "{rows:?}");
    }
}

#[test]
#[should_panic(expected = "the dead slot is never written")]
fn the_dead_slot_is_never_written() {
    let mut kv =
        KvRows::new(KvShape { layers: 1, slots: 2, kv_heads: 1, head_dim: 1 }, RowType::F32).unwrap();
    kv.write(0, &[SlotId(1), SlotId::DEAD], &[0.0; 2], &[0.0; 2]);
}

#[test]
fn impossible_shapes_are_typed_errors() {
    let shape = KvShape { layers: 2, slots: 8, kv_heads: 1, head_dim: 4 };
    let error = |shape| KvRows::new(shape, RowType::F32).unwrap_err();
    assert!(matches!(error(KvShape { slots: 1, ..shape }), DeviceError::Shape { name: "slots", .. }));
    assert!(matches!(error(KvShape { head_dim: 0, ..shape }), DeviceError::Shape { name: "head_dim", .. }));
    assert!(matches!(error(KvShape { slots: usize::MAX / 2, ..shape }), DeviceError::TooLarge { .. }));
    assert!(matches!(error(KvShape { head_dim: usize::MAX, ..shape }), DeviceError::TooLarge { .. }));
    assert_eq!(KvRows::new(shape, RowType::F16).unwrap().bytes(), 2 * 8 * 32 * 2);
}

proptest! {
    #[test]
    fn copies_are_equal_and_means_are_of_keys(
        head_dim in 1usize..40, kv_heads in 1usize..4, rows in 0usize..3, count in 1u32..5,
    ) {
        let shape = KvShape { layers: 2, slots: 8, kv_heads, head_dim };
        let mut kv = KvRows::new(shape, TYPES[rows]).unwrap();
        (0..8).for_each(|slot| kv.poison(SlotId(slot)));
        let width = kv_heads * head_dim;
        for layer in 0..2 {
            for slot in 1..=count {
                let keys: Vec<f32> = (0..width).map(|i| ((i * 7 + layer) as f32 + slot as f32).sin()).collect();
                kv.write(layer, &[SlotId(slot)], &keys, &keys);
            }
        }
        let sources: Vec<SlotId> = (1..=count).map(SlotId).collect();
        kv.copy(SlotId(1), SlotId(6));
        kv.write_mean(&sources, SlotId(7));
        let (mut a, mut b) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for layer in 0..2 {
            for head in 0..kv_heads {
                for read in [KvRows::key as fn(&_, _, _, _, &mut [f32]), KvRows::value] {
                    read(&kv, layer, SlotId(1), head, &mut a);
                    read(&kv, layer, SlotId(6), head, &mut b);
                    prop_assert_eq!(&a, &b);
                }
                let mut mean = vec![0.0; head_dim];
                for &slot in &sources {
                    kv.key(layer, slot, head, &mut a);
                    mean.iter_mut().zip(&a).for_each(|(mean, key)| *mean += key / count as f32);
                }
                kv.key(layer, SlotId(7), head, &mut b);
                prop_assert!(mean.iter().zip(&b).all(|(mean, key)| (mean - key).abs() < 0.01), "{mean:?} {b:?}");
                kv.value(layer, SlotId(7), head, &mut b);
                prop_assert!(b.iter().all(|&value| value == 0.0));
            }
        }
    }
}

#[test]
fn rows_made_present_hold_what_they_held() {
    let shape = KvShape { layers: 3, slots: 700, kv_heads: 2, head_dim: 5 };
    for (rows, threads) in TYPES.into_iter().zip([1, 2, 5]) {
        let threads = Threads::new(threads.try_into().unwrap());
        let mut kv = KvRows::new(shape, rows).unwrap();
        kv.write(1, &[SlotId(699)], &[1.5; 10], &[2.5; 10]);
        for slots in [0, 400, 700, 701] {
            kv.make_present(slots, &threads).unwrap();
        }
        let mut out = [0.0; 5];
        kv.key(1, SlotId(699), 1, &mut out);
        assert_eq!(out, [1.5; 5]);
        kv.value(2, SlotId(1), 0, &mut out);
        assert_eq!(out, [0.0; 5]);
    }
}
