//! Properties 1-5 of the slot pool and the slot maps, over random operation sequences.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

use hawser_common::{Position, SlotId};
use hawser_kv::{EvictError, SlotMap, SlotPool, audit};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Append { map: usize, count: usize },
    Truncate { map: usize, share: f64 },
    Evict { map: usize, every: usize, offset: usize },
    Share { from: usize, to: usize },
    Clear { map: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let map = 0..4usize;
    prop_oneof![
        4 => (map.clone(), 0..40usize).prop_map(|(map, count)| Op::Append { map, count }),
        2 => (map.clone(), 0.0..1.0f64).prop_map(|(map, share)| Op::Truncate { map, share }),
        2 => (map.clone(), 1..7usize, 0..7usize).prop_map(|(map, every, offset)| Op::Evict { map, every, offset }),
        1 => (map.clone(), map.clone()).prop_map(|(from, to)| Op::Share { from, to }),
        1 => map.prop_map(|map| Op::Clear { map }),
    ]
}

fn apply(op: &Op, pool: &mut SlotPool, maps: &mut [SlotMap]) {
    match *op {
        Op::Append { map, count } => {
            let free = pool.free();
            match pool.allocate(count) {
                Ok(slots) => {
                    assert!(slots.iter().all(|&slot| pool.refs(slot) == 1 && !slot.is_dead()));
                    maps[map].append(&slots);
                }
                Err(exhausted) => {
                    assert_eq!((exhausted.free, pool.free()), (free, free), "a refusal changes nothing");
                }
            }
        }
        Op::Truncate { map, share } => {
            let keep = (maps[map].len() as f64 * share) as usize;
            maps[map].truncate(keep, pool);
            assert_eq!(maps[map].len(), keep);
        }
        Op::Evict { map, every, offset } => {
            let newest = maps[map].len().saturating_sub(1);
            let live = maps[map].live_positions().iter().skip(offset).step_by(every);
            let chosen: Vec<Position> = live.copied().filter(|p| p.index() < newest).collect();
            let survivors: Vec<(Position, SlotId)> = pairs(&maps[map], |p| !chosen.contains(&p));
            maps[map].evict(&chosen, pool).unwrap();
            assert_eq!(pairs(&maps[map], |_| true), survivors, "survivors keep position and slot");
        }
        Op::Share { from, to } => {
            let copy = maps[from].share(pool);
            maps[to].clear(pool);
            maps[to] = copy;
        }
        Op::Clear { map } => {
            maps[map].clear(pool);
            let free = pool.free();
            assert_eq!(maps[map].clear(pool), 0);
            assert_eq!(pool.free(), free, "clearing twice is clearing once");
        }
    }
}

fn pairs(map: &SlotMap, keep: impl Fn(Position) -> bool) -> Vec<(Position, SlotId)> {
    let all = map.live_positions().iter().copied().zip(map.live().iter().copied());
    all.filter(|&(position, _)| keep(position)).collect()
}

proptest! {
    #[test]
    fn slots_are_conserved_under_any_sequence(ops in proptest::collection::vec(op(), 0..60), total in 1..120usize) {
        let mut pool = SlotPool::new(total);
        let mut maps: Vec<SlotMap> = (0..4).map(|_| SlotMap::new()).collect();
        for op in &ops {
            apply(op, &mut pool, &mut maps);
            prop_assert_eq!(audit(&pool, maps.iter()), Ok(()), "after {:?}", op);
        }
        for map in &mut maps {
            map.clear(&mut pool);
        }
        prop_assert_eq!(pool.free(), total - 1, "all maps cleared: only the dead slot is left out");
    }
}

#[test]
fn r3_the_newest_and_the_protected_tokens_are_never_evicted() {
    let mut pool = SlotPool::new(16);
    let mut map = SlotMap::new();
    map.append(&pool.allocate(8).unwrap());
    map.protect(3);
    let mut refused = |positions: &[u32]| {
        let positions: Vec<Position> = positions.iter().map(|&p| Position(p)).collect();
        map.evict(&positions, &mut pool).unwrap_err()
    };
    assert_eq!(refused(&[4, 7]), EvictError::Newest { position: Position(7) });
    assert_eq!(refused(&[2, 4]), EvictError::Protected { position: Position(2), protected: 3 });
    assert_eq!(refused(&[4, 4]), EvictError::NotLive { position: Position(4) });
    assert_eq!(refused(&[8]), EvictError::PastEnd { position: Position(8), len: 8 });
    assert_eq!(map.live().len(), 8, "a refusal evicts nothing");
}

#[test]
fn an_evicted_shared_slot_is_freed_by_its_last_holder() {
    let mut pool = SlotPool::new(8);
    let mut first = SlotMap::new();
    first.append(&pool.allocate(4).unwrap());
    let mut second = first.share(&mut pool);
    assert_eq!(first.evict(&[Position(1)], &mut pool), Ok(0));
    assert_eq!(second.evict(&[Position(1)], &mut pool), Ok(1));
    audit(&pool, [&first, &second].into_iter()).unwrap();
}
