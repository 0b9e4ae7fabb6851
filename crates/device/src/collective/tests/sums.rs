//! Groups in which nothing goes wrong: every rank has the bits of a sequential computation.

use proptest::prelude::*;

use super::script::{Data, Type, reference};
use super::*;

fn check(transport: Transport, script: Vec<Item>, seed: u64) {
    let world = transport.world();
    let expected: Vec<_> = (0..world).map(|rank| reference(rank, world, &script, seed)).collect();
    let results = run_all(transport.open(LONG), move |mut rank| follow(&mut *rank, &script, seed));
    for (rank, (result, expected)) in results.into_iter().zip(expected).enumerate() {
        assert!(result.as_ref() == Ok(&expected), "{transport:?}, rank {rank}");
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0usize..4, 6 => 0usize..700, 2 => 4_000usize..9_000]
}

fn items() -> impl Strategy<Value = Item> {
    let of = prop_oneof![Just(Type::F32), Just(Type::Bf16), Just(Type::F64), Just(Type::I64)];
    let by = prop_oneof![Just(Reduce::Sum), Just(Reduce::Max)];
    prop_oneof![
        1 => (0u64..9).prop_map(Item::BeginStep),
        4 => (of.clone(), lengths(), by.clone()).prop_map(|(of, len, by)| Item::AllReduce(of, len, by)),
        2 => (of.clone(), lengths(), by).prop_map(|(of, len, by)| Item::ReduceToLeader(of, len, by)),
        2 => proptest::array::uniform5(lengths()).prop_map(Item::Gather),
        2 => (of, lengths()).prop_map(|(of, len)| Item::Broadcast(of, len)),
        1 => Just(Item::Barrier),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_rank_has_the_bits_of_the_sum_in_the_order_of_the_ranks(
        script in proptest::collection::vec(items(), 1..20),
        seed in any::<u64>(),
    ) {
        ALL.into_iter().for_each(|transport| check(transport, script.clone(), seed));
    }
}

#[test]
fn long_payloads_pass_in_both_directions_at_once() {
    // More than sockets buffer, so ranks that only wrote, or only read, would block each other.
    let len = 3 << 20;
    let script = [
        Item::AllReduce(Type::F32, len, Reduce::Sum),
        Item::Gather([len, len / 2, 1, 0, 0]),
        Item::ReduceToLeader(Type::Bf16, len, Reduce::Sum),
        Item::Broadcast(Type::I64, len / 2),
        Item::Barrier,
    ];
    JOINED.into_iter().for_each(|transport| check(transport, script.to_vec(), 7));
}

#[test]
fn many_short_sums_in_a_row_do_not_mix() {
    let script = vec![Item::AllReduce(Type::F32, 9, Reduce::Sum); 3_000];
    JOINED.into_iter().for_each(|transport| check(transport, script.clone(), 11));
    check(Transport::Threads(5), script[..500].to_vec(), 11);
}

#[test]
fn bf16_sums_are_rounded_once() {
    // Added one by one in bf16, both small parts would be lost.
    let parts = [1.0, 2f32.powi(-8), 2f32.powi(-9)];
    for transport in [Transport::Threads(3), Transport::Tcp(3)] {
        let sums = run_all(transport.open(LONG), move |mut rank| {
            let mut data = [bf16::from_f32(parts[rank.rank()])];
            rank.all_reduce(Values::Bf16(&mut data), Reduce::Sum).map(|()| data[0].to_f32())
        });
        assert_eq!(sums, vec![Ok(1.0 + 2f32.powi(-7)); 3], "{transport:?}");
    }
}

#[test]
fn a_nan_of_any_rank_reaches_all() {
    for transport in JOINED {
        for (by, poisoned) in
            [Reduce::Sum, Reduce::Max].into_iter().flat_map(|by| (0..2).map(move |r| (by, r)))
        {
            let sums = run_all(transport.open(LONG), move |mut rank| {
                let mut data = [if rank.rank() == poisoned { f32::NAN } else { 1.0 }];
                rank.all_reduce(Values::F32(&mut data), by).map(|()| data[0].to_bits())
            });
            assert!(f32::from_bits(sums[0].clone().unwrap()).is_nan(), "{transport:?} {by:?} {poisoned}");
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{transport:?} {by:?} {poisoned}: {sums:?}");
        }
    }
}

#[test]
fn a_flipped_bit_changes_the_sum_on_every_rank_and_what_the_leader_gathers() {
    let script = [Item::AllReduce(Type::F32, 40, Reduce::Sum), Item::Gather([3, 2, 2, 0, 0]), Item::Barrier];
    for transport in JOINED {
        for at in 0..2 {
            let fault = Fault::FlipBit { element: 1, bit: 30 };
            let ranks = transport.open(LONG).into_iter().map(|rank| {
                let at = if rank.rank() == 1 { at } else { u64::MAX };
                Faulty::new(rank, at, fault)
            });
            let job = script.clone();
            let results =
                run_all(ranks.collect(), move |mut rank: Faulty| follow(&mut rank, &job, 5).unwrap());
            for (rank, result) in results.iter().enumerate() {
                assert_eq!(result[0], results[0][0], "{transport:?}: the ranks agree on the wrong values");
                let whole = reference(rank, transport.world(), &script, 5);
                let differs = |i: usize| result[i].iter().zip(&whole[i]).filter(|(a, b)| a != b).count();
                let expected = [usize::from(at == 0), usize::from(at == 1 && rank == 0)];
                assert_eq!([differs(0), differs(1)], expected, "{transport:?}, rank {rank}, call {at}");
            }
        }
    }
}

#[test]
fn a_bit_flipped_on_its_way_to_a_rank_changes_what_that_rank_has() {
    let script = [Item::AllReduce(Type::F32, 40, Reduce::Sum), Item::Broadcast(Type::I64, 9)];
    for transport in JOINED {
        for at in 0..script.len() {
            let fault = Fault::FlipReceived { element: 1, bit: 30 };
            let ranks = transport.open(LONG).into_iter().map(|rank| {
                let at = if rank.rank() == 1 { at as u64 } else { u64::MAX };
                Faulty::new(rank, at, fault)
            });
            let job = script.clone();
            let results =
                run_all(ranks.collect(), move |mut rank: Faulty| follow(&mut rank, &job, 5).unwrap());
            for (rank, result) in results.into_iter().enumerate() {
                let whole = reference(rank, transport.world(), &script, 5);
                let differs = |i: usize| result[i].iter().zip(&whole[i]).filter(|(a, b)| a != b).count();
                for call in 0..script.len() {
                    let expected = usize::from(rank == 1 && call == at);
                    assert_eq!(differs(call), expected, "{transport:?}, rank {rank}, call {call}");
                }
            }
        }
    }
}

#[test]
fn traffic_counts_calls_and_payload() {
    let script = [Item::AllReduce(Type::F32, 10, Reduce::Sum), Item::Broadcast(Type::I64, 2), Item::Barrier];
    for (transport, leader, other, wires) in [
        (Transport::Threads(2), 56, 40, 1),
        (Transport::Tcp(2), 56, 40, 1),
        // The hub sends both its sum and its broadcast to two ranks.
        (Transport::Tcp(3), 112, 40, 2),
        (Transport::Tls(2), 56, 40, 1),
    ] {
        let script = script.clone();
        let traffic = run_all(transport.open(LONG), move |mut rank| {
            follow(&mut *rank, &script, 1).unwrap();
            rank.traffic()
        });
        for (rank, traffic) in traffic.into_iter().enumerate() {
            let (bytes, wires) = if rank == 0 { (leader, wires) } else { (other, 1) };
            let expected = Traffic { calls: 3, messages: 3 * wires, bytes };
            assert_eq!(traffic, expected, "{transport:?}, rank {rank}");
        }
    }
}

#[test]
fn parts_are_given_in_the_order_of_the_ranks_whatever_their_lengths() {
    for transport in ALL {
        let counts: Vec<usize> = (0..transport.world()).map(|rank| rank * 3 % 4).collect();
        let expected: Vec<f32> =
            counts.iter().enumerate().flat_map(|(rank, &count)| vec![rank as f32; count]).collect();
        let wholes = run_all(transport.open(LONG), move |mut rank| {
            let part = vec![rank.rank() as f32; counts[rank.rank()]];
            let room = if rank.rank() == 0 { counts.iter().sum() } else { 0 };
            let mut whole = vec![f32::NAN; room];
            rank.gather(&part, &counts, &mut whole).map(|()| whole)
        });
        assert_eq!(wholes[0], Ok(expected), "{transport:?}");
        assert!(wholes[1..].iter().all(|whole| *whole == Ok(Vec::new())), "{transport:?}: {wholes:?}");
    }
}

#[test]
fn a_reference_value_depends_on_everything_that_names_it() {
    let of = |key| Data::of(Type::I64, 3, key).bits();
    let all = [of((1, 0, 0)), of((2, 0, 0)), of((1, 1, 0)), of((1, 0, 1))].concat();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
}
