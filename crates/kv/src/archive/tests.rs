use proptest::prelude::*;

use super::*;

fn rows(range: std::ops::Range<u32>, slot: u32) -> Vec<(Position, SlotId)> {
    (slot..).zip(range).map(|(slot, position)| (Position(position), SlotId(slot))).collect()
}

#[test]
fn rows_lie_in_blocks_with_a_digest_and_the_oldest_block_makes_room() {
    let mut archive = Archive::new(100, 21);
    let (a, b) = (archive.open(), archive.open());
    let mut moves = Vec::new();
    archive.store(a, &rows(14..18, 1), 0, &mut moves);
    assert_eq!(archive.used(), 6, "four rows and two digests");
    assert_eq!(moves.iter().filter(|m| matches!(m, RowMove::Digest { of, .. } if of.len() == 2)).count(), 2);
    let positions = |archive: &Archive, id| -> Vec<u32> {
        archive.blocks(id).flat_map(|block| &block.rows).map(|(position, _)| position.0).collect()
    };
    assert_eq!(positions(&archive, a), [14, 15, 16, 17]);
    // A block that grows is the newest: the other one goes first, the one with 16 and 17.
    archive.store(a, &rows(10..12, 5), 0, &mut moves);
    archive.store(b, &rows(32..46, 10), 0, &mut moves);
    assert_eq!((positions(&archive, a), positions(&archive, b).len()), (vec![10, 11, 14, 15], 14));
    assert!(archive.is_sound());
}

#[test]
fn more_than_there_is_room_for_is_not_kept() {
    let mut archive = Archive::new(100, 5);
    let id = archive.open();
    archive.store(id, &rows(0..8, 1), 0, &mut Vec::new());
    assert_eq!(archive.blocks(id).map(|block| block.rows.len()).sum::<usize>(), 4);
    let none = &mut Archive::new(100, 0);
    let id = none.open();
    none.store(id, &rows(0..9, 1), 0, &mut Vec::new());
    assert_eq!(none.blocks(id).count(), 0);
}

#[test]
fn rows_that_can_be_computed_again_go_before_their_digest() {
    let mut archive = Archive::new(100, 20);
    let id = archive.open();
    let mut moves = Vec::new();
    archive.store(id, &rows(0..16, 1), 16, &mut moves);
    archive.store(id, &rows(32..48, 20), 16, &mut moves);
    let blocks: Vec<(usize, usize)> =
        archive.blocks(id).map(|block| (block.rows.len(), block.hollow.len())).collect();
    assert_eq!(blocks, [(0, 16), (16, 0)], "the digest of the first block is there still");
    // What comes to a hollow block changes its digest by its share.
    let block = archive.blocks(id).next().unwrap().clone();
    assert!(archive.take(id, Position(40)).is_some());
    moves.clear();
    archive.store(id, &rows(48..49, 40), 16, &mut moves);
    assert!(archive.take(id, Position(3)).is_some_and(|taken| taken == block && taken.rows.is_empty()));
    // Where not even that has room, the oldest digest goes.
    let mut small = Archive::new(100, 3);
    let id = small.open();
    for at in 0..5 {
        small.store(id, &rows(16 * at..16 * at + 1, 1), 100, &mut moves);
        assert!(small.is_sound());
    }
    let left: Vec<u32> = small.blocks(id).flat_map(Block::positions).map(|position| position.0).collect();
    assert_eq!(left, [48, 64]);
}

#[derive(Clone, Debug)]
enum Op {
    Store { session: usize, from: u32, count: u32 },
    Take { session: usize, position: u32 },
    Truncate { session: usize, len: usize },
    Forget { session: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let session = || 0..3usize;
    prop_oneof![
        4 => (session(), 0..90u32, 1..40u32).prop_map(|(session, from, count)| Op::Store { session, from, count }),
        2 => (session(), 0..100u32).prop_map(|(session, position)| Op::Take { session, position }),
        1 => (session(), 0..100usize).prop_map(|(session, len)| Op::Truncate { session, len }),
        1 => session().prop_map(|session| Op::Forget { session }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Slots hold what the moves put there: each archived row is the one last stored for its position.
    #[test]
    fn rows_are_those_last_stored(
        ops in proptest::collection::vec(op(), 1..40),
        slots in 0..80usize,
        exact in prop_oneof![Just(0usize), 0..100usize],
    ) {
        const FIRST: usize = 1_000;
        let mut archive = Archive::new(FIRST, slots);
        let ids = [archive.open(), archive.open(), archive.open()];
        let mut contents: HashMap<SlotId, u64> = (0..200).map(|slot| (SlotId(slot), 0)).collect();
        let mut stored: HashMap<(usize, Position), u64> = HashMap::new();
        for (version, op) in (1u64..).zip(ops) {
            let mut moves = Vec::new();
            match op {
                Op::Store { session, from, count } => {
                    let held: Vec<Position> =
                        archive.blocks(ids[session]).flat_map(Block::positions).collect();
                    let mut new = rows(from..from + count, 1);
                    new.retain(|(position, _)| !held.contains(position));
                    for &(position, slot) in &new {
                        let content = version << 32 | u64::from(position.0);
                        contents.insert(slot, content);
                        stored.insert((session, position), content);
                    }
                    archive.store(ids[session], &new, exact, &mut moves);
                }
                Op::Take { session, position } => {
                    if let Some(block) = archive.take(ids[session], Position(position)) {
                        for (position, slot) in block.rows {
                            prop_assert_eq!(contents[&slot], stored[&(session, position)]);
                        }
                    }
                }
                Op::Truncate { session, len } => {
                    archive.truncate(ids[session], len, &mut moves);
                    let late = |block: &Block| block.positions().any(|position| position.index() >= len);
                    prop_assert!(!archive.blocks(ids[session]).any(late));
                }
                Op::Forget { session } => archive.forget(ids[session]),
            }
            for change in moves {
                match change {
                    RowMove::Copy { from, to } => {
                        prop_assert!(to.index() >= FIRST && to.index() < FIRST + slots);
                        let row = contents[&from];
                        contents.insert(to, row);
                    }
                    RowMove::Digest { of, to } => {
                        let sum = of.iter().fold(0, |sum: u64, slot| sum.wrapping_add(contents[slot]));
                        contents.insert(to, sum);
                    }
                }
            }
            prop_assert!(archive.is_sound());
            for (session, &id) in ids.iter().enumerate() {
                for block in archive.blocks(id) {
                    if block.hollow.is_empty() {
                        let sum = block.rows.iter().fold(0, |sum: u64, row| sum.wrapping_add(contents[&row.1]));
                        prop_assert_eq!(contents[&block.digest], sum, "a digest is of its block");
                    }
                    prop_assert!(block.hollow.iter().all(|position| position.index() < exact));
                    for (position, slot) in &block.rows {
                        prop_assert_eq!(contents[slot], stored[&(session, *position)]);
                    }
                }
            }
        }
        ids.iter().for_each(|&id| archive.forget(id));
        prop_assert_eq!(archive.used(), 0);
    }
}
