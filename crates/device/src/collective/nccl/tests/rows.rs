//! Rows that go through groups of several ranks, each on a thread of its own.

use half::bf16;
use proptest::prelude::*;

use super::super::{Member, TagCheck};
use super::pieces::{collect, reduce};
use super::{alone, group, rank};
use crate::collective::call::Kind;
use crate::collective::{Collective, CollectiveError, Reduce, StepTag, Values};

fn any_by() -> impl Strategy<Value = Reduce> {
    prop_oneof![Just(Reduce::Sum), Just(Reduce::Max)]
}

fn any_tags() -> impl Strategy<Value = TagCheck> {
    prop_oneof![Just(TagCheck::On), Just(TagCheck::Off)]
}

/// Some number, another one for every rank and place.
fn number(seed: i64, rank: usize, at: usize) -> i64 {
    let mixed = (seed + 1) * 2_654_435_761 + (rank * 40_503 + at * 9_973) as i64;
    (mixed >> 3) % 2_000 - 1_000
}

/// A rank's rows as numbers of type `T`.
fn rows<T>(seed: i64, rank: usize, len: usize, from: fn(i64) -> T) -> Vec<T> {
    (0..len).map(|at| from(number(seed, rank, at))).collect()
}

fn f32_of(number: i64) -> f32 {
    number as f32 / 7.0
}

fn bf16_of(number: i64) -> bf16 {
    bf16::from_f32(number as f32 / 3.0)
}

/// Every type, through each operation on values, compared with the arithmetic on plain bytes.
fn check<T: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug>(
    (world, len, seed): (usize, usize, i64),
    (by, tags): (Reduce, TagCheck),
    kind: Kind,
    from: fn(i64) -> T,
    values: for<'a> fn(&'a mut [T]) -> Values<'a>,
) {
    let parts: Vec<Vec<T>> = (0..world).map(|rank| rows(seed, rank, len, from)).collect();
    let bytes: Vec<Vec<u8>> = parts.iter().map(|part| bytemuck::cast_slice(part).to_vec()).collect();
    let reduced: Vec<T> = collect(&reduce(kind, by, &bytes));
    let out = group(world, tags, |nccl| {
        let own = &parts[nccl.rank()];
        let (mut all, mut leader, mut sent) = (own.clone(), own.clone(), own.clone());
        nccl.begin_step(StepTag { epoch: 1, step: 2 });
        nccl.all_reduce(values(&mut all), by).unwrap();
        nccl.reduce_to_leader(values(&mut leader), by).unwrap();
        nccl.barrier().unwrap();
        nccl.broadcast(values(&mut sent)).unwrap();
        (all, leader, sent, nccl.traffic())
    });
    let size = (len * kind.bytes()) as u64;
    for (rank, (all, leader, sent, traffic)) in out.iter().enumerate() {
        assert_eq!(all, &reduced, "rank {rank}");
        assert_eq!(leader, if rank == 0 { &reduced } else { &parts[rank] }, "rank {rank}");
        assert_eq!(sent, &parts[0], "rank {rank}");
        assert_eq!(traffic.calls, 4);
        // The leader sends its part of the first sum and its broadcast, the others their parts of both sums.
        assert_eq!(traffic.bytes, if world > 1 { 2 * size } else { 0 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn values_of_every_type_are_reduced_and_sent(
        world in 1..5_usize,
        len in 0..300_usize,
        seed in 0..1_000_i64,
        by in any_by(),
        tags in any_tags(),
    ) {
        let (shape, how) = ((world, len, seed), (by, tags));
        check(shape, how, Kind::F32, f32_of, |data| Values::F32(data));
        check(shape, how, Kind::Bf16, bf16_of, |data| Values::Bf16(data));
        check(shape, how, Kind::F64, |number| number as f64 / 8.0, |data| Values::F64(data));
        check(shape, how, Kind::I64, |number| number << 40, |data| Values::I64(data));
    }

    #[test]
    fn parts_of_any_lengths_are_gathered_in_the_order_of_the_ranks(
        counts in proptest::collection::vec(0..200_usize, 1..5),
        seed in 0..1_000_i64,
        tags in any_tags(),
    ) {
        let world = counts.len();
        let part = |rank: usize| rows(seed, rank, counts[rank], f32_of);
        let expected: Vec<f32> = (0..world).flat_map(part).collect();
        let out = group(world, tags, |nccl| {
            let mut whole = vec![-1.0; expected.len()];
            // Twice: the first one's parts lie where the second one's padding is.
            nccl.gather(&part(nccl.rank()), &counts, &mut whole).unwrap();
            nccl.gather(&part(nccl.rank()), &counts, &mut whole).unwrap();
            (nccl.rank(), whole, nccl.traffic().bytes)
        });
        let longest = counts.iter().max().copied().unwrap_or(0) as u64;
        let untouched = vec![-1.0; expected.len()];
        for (rank, whole, bytes) in out {
            prop_assert_eq!(&whole, if rank == 0 { &expected } else { &untouched });
            prop_assert_eq!(bytes, if world > 1 { 2 * 4 * longest } else { 0 });
        }
    }

    #[test]
    fn staging_grows_only_when_it_must(
        lens in proptest::collection::vec(prop_oneof![0..4_000_usize, 0..200_000_usize], 1..12),
    ) {
        let fake = alone(1);
        let mut nccl = rank(&fake, Member { rank: 0, world: 1 }, TagCheck::Off).unwrap();
        let (mut room, mut grown) = (0, 0);
        for (seed, len) in lens.into_iter().enumerate() {
            let own = rows(seed as i64, 0, len, f32_of);
            let mut data = own.clone();
            nccl.all_reduce(Values::F32(&mut data), Reduce::Sum).unwrap();
            prop_assert_eq!(&data, &own);
            if 4 * len > room {
                (room, grown) = ((4 * len).next_power_of_two().max(64 * 1024), grown + 1);
            }
            prop_assert_eq!((fake.times("pin"), fake.times("allocate")), (grown, grown));
            prop_assert_eq!((fake.live("pinned"), fake.live("device")), (grown.min(1), grown.min(1)));
        }
        drop(nccl);
        fake.assert_nothing_left();
    }
}

/// Two ranks, of which the second calls something else with as many elements of the same size.
fn differ(tags: TagCheck) -> Vec<(Result<(), CollectiveError>, [f32; 3])> {
    group(2, tags, |nccl| {
        let mut data = [1.0, 2.0, 3.0];
        let by = if nccl.rank() == 0 { Reduce::Sum } else { Reduce::Max };
        (nccl.all_reduce(Values::F32(&mut data), by), data)
    })
}

#[test]
fn ranks_that_call_different_things_are_found_by_their_tags() {
    let out = differ(TagCheck::On);
    let mut mismatches = 0;
    for (own, (result, data)) in out.into_iter().enumerate() {
        assert_eq!(data, [1.0, 2.0, 3.0]);
        // The first to notice ends the group, which the other one may see before it looks at the tags.
        match result {
            Err(CollectiveError::Mismatch { rank, ours, .. }) => {
                mismatches += 1;
                assert_eq!(rank, 1 - own);
                assert!(ours.starts_with(["all_reduce(sum)", "all_reduce(max)"][own]), "{ours}");
            }
            other => assert!(matches!(other, Err(CollectiveError::Transport { .. })), "{other:?}"),
        }
    }
    assert!(mismatches > 0);
    // Without tags nobody notices, as the module says.
    assert!(differ(TagCheck::Off).iter().all(|(result, _)| result.is_ok()));
}
