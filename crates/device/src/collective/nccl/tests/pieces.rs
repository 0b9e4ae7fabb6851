//! What needs no group: ids, versions, tags and plans; and the arithmetic that the fake's ranks share.

use half::bf16;
use proptest::prelude::*;

use super::super::calls::{DevicePtr, Op};
use super::super::plan::Plan;
use super::super::{Member, UniqueId, UniqueIdError, Version};
use crate::collective::call::{Call, Kind, Numbering};
use crate::collective::{Reduce, StepTag, Values};

/// Bytes as the values that they are.
pub(super) fn collect<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// What all ranks' parts become, in the order of the ranks.
pub(super) fn reduce(kind: Kind, by: Reduce, parts: &[Vec<u8>]) -> Vec<u8> {
    fn fold<T: bytemuck::Pod + PartialOrd>(parts: &[Vec<u8>], by: Reduce, add: fn(T, T) -> T) -> Vec<u8> {
        let values = |part: &Vec<u8>| collect::<T>(part);
        let two = |a: T, b: T| match by {
            Reduce::Sum => add(a, b),
            Reduce::Max if b > a => b,
            Reduce::Max => a,
        };
        let all = parts.iter().map(values);
        let sum = all.reduce(|sum, part| sum.into_iter().zip(part).map(|(a, b)| two(a, b)).collect());
        bytemuck::cast_slice(&sum.unwrap()).to_vec()
    }
    match kind {
        Kind::F32 => fold::<f32>(parts, by, |a, b| a + b),
        Kind::Bf16 => fold::<bf16>(parts, by, |a, b| a + b),
        Kind::F64 => fold::<f64>(parts, by, |a, b| a + b),
        Kind::I64 => fold::<i64>(parts, by, i64::wrapping_add),
    }
}

#[test]
fn an_id_has_its_length_or_is_refused_and_is_not_printed() {
    for len in [0, 1, 127, 129, 256] {
        assert_eq!(UniqueId::try_from(&vec![1; len][..]), Err(UniqueIdError { found: len }));
    }
    let bytes: [u8; UniqueId::LEN] = std::array::from_fn(|at| at as u8 ^ 0x80);
    let id = UniqueId::try_from(&bytes[..]).unwrap();
    assert_eq!(id.as_bytes(), &bytes);
    assert_eq!(format!("{id:?}"), "UniqueId(..)");
}

#[test]
fn versions_are_read_in_both_encodings() {
    for (code, text) in [(2_708, "2.7.8"), (21_803, "2.18.3"), (22_400, "2.24.0"), (23_007, "2.30.7")] {
        assert_eq!(Version::from_code(code).to_string(), text);
    }
    assert!(Version::from_code(2_708) < Version::from_code(21_803));
}

fn any_op() -> impl Strategy<Value = Op> {
    let by = prop_oneof![Just(Reduce::Sum), Just(Reduce::Max)];
    prop_oneof![by.clone().prop_map(Op::AllReduce), by.prop_map(Op::ReduceToLeader), Just(Op::Broadcast)]
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::F32), Just(Kind::Bf16), Just(Kind::F64), Just(Kind::I64)]
}

type Called = (u64, u64, u64, Option<Op>, Kind, Vec<usize>);

fn any_call() -> impl Strategy<Value = Called> {
    let counts = proptest::collection::vec(0..3_usize, 1..4);
    (0..3_u64, 0..3_u64, 0..3_u64, proptest::option::of(any_op()), any_kind(), counts)
}

fn tag((epoch, step, seq, op, kind, counts): &Called) -> Call {
    let mut numbering = Numbering::default();
    numbering.begin_step(StepTag { epoch: *epoch, step: *step });
    for _ in 0..*seq {
        let _ = numbering.barrier();
    }
    let len = counts.len();
    match op {
        None => numbering.gather(counts),
        Some(op) => match kind {
            Kind::F32 => numbering.call((*op).into(), &Values::F32(&mut vec![0.0; len])),
            Kind::Bf16 => numbering.call((*op).into(), &Values::Bf16(&mut vec![bf16::ZERO; len])),
            Kind::F64 => numbering.call((*op).into(), &Values::F64(&mut vec![0.0; len])),
            Kind::I64 => numbering.call((*op).into(), &Values::I64(&mut vec![0; len])),
        },
    }
}

proptest! {
    #[test]
    fn tags_have_the_same_number_only_if_they_are_the_same(a in any_call(), b in any_call()) {
        let (a, b) = (tag(&a), tag(&b));
        prop_assert_eq!(a.number() == b.number(), a == b, "{} and {}", a, b);
    }

    #[test]
    fn a_plan_stays_in_its_room_and_is_as_large_on_every_rank(
        op in any_op(),
        kind in any_kind(),
        count in 0..1000_usize,
        world in 1..9_usize,
    ) {
        let mut covered = Vec::new();
        for rank in 0..world {
            let member = Member { rank, world };
            let plan = Plan::in_place(member, op, kind, count);
            prop_assert!(plan.input.end.max(plan.output.end) <= plan.room);
            prop_assert_eq!(plan.room, count * kind.bytes());
            let gather = Plan::gather(member, kind, count);
            prop_assert_eq!(gather.room, world * gather.own_bytes());
            prop_assert_eq!(&gather.output, &(0..gather.room));
            let at = DevicePtr(1 << 20);
            prop_assert_eq!(gather.exchange(at).send, at.plus(gather.input.start));
            prop_assert_eq!(gather.exchange(at).receive, at);
            covered.extend(gather.input);
        }
        prop_assert!(covered.iter().copied().eq(0..world * count * kind.bytes()));
    }
}

#[test]
fn the_number_of_a_tag_does_not_change_between_builds() {
    let tag = tag(&(1, 2, 3, None, Kind::F32, vec![4, 5]));
    assert_eq!(tag.to_string(), "gather of 9 f32 in parts 0x706a09b6, call 3 of step 2 in epoch 1");
    // FNV-1a of this text, from another implementation.
    assert_eq!(tag.number().cast_unsigned(), 0x9611_f8a9_ff0a_fe80);
}
