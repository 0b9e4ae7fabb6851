//! Every way in which a batch can contradict itself, the model or the pool.

use super::*;

const VOCAB: usize = 100;
const CONTEXT: usize = 50;
const SLOTS: usize = 20;

/// Two sequences: two prefill rows after slots 9 and 8, one decode row after none.
#[derive(Clone)]
struct Parts {
    tokens: Vec<u32>,
    positions: Vec<Position>,
    slots: Vec<SlotId>,
    rows: [Range<usize>; 2],
    contexts: [Vec<SlotId>; 2],
    after: usize,
}

fn good() -> Parts {
    Parts {
        tokens: vec![0, 99, 7],
        positions: vec![Position(2), Position(49), Position(0)],
        slots: vec![SlotId(1), SlotId(19), SlotId(3)],
        rows: [0..2, 2..3],
        contexts: [vec![SlotId(9), SlotId(8)], vec![]],
        after: 0,
    }
}

fn check(parts: &Parts) -> Result<(), StepError> {
    let sequences: Vec<_> = (0..2)
        .map(|index| Sequence {
            rows: parts.rows[index].clone(),
            context: &parts.contexts[index],
            logits: LogitRows::Last,
            after: if index == 1 { parts.after } else { 0 },
            positions: &[],
            observe: None,
        })
        .collect();
    let Parts { tokens, positions, slots, .. } = parts;
    let batch = Batch { tokens, positions, slots, sequences: &sequences };
    let mut checker = Checker::new(VOCAB, CONTEXT, SLOTS);
    let found = checker.check(&batch);
    // A checker that has seen other batches says the same.
    assert_eq!(checker.check(&batch), found);
    found
}

fn refused(damage: impl Fn(&mut Parts)) -> StepError {
    let mut parts = good();
    damage(&mut parts);
    check(&parts).expect_err("a wrong batch was taken")
}

#[test]
fn a_right_batch_is_taken_and_every_wrong_one_named() {
    assert_eq!(check(&good()), Ok(()));
    assert!(matches!(refused(|p| p.tokens.truncate(2)), StepError::Lengths { tokens: 2, .. }));
    assert!(matches!(refused(|p| p.slots.push(SlotId(2))), StepError::Lengths { slots: 4, .. }));
    assert!(matches!(refused(|p| p.tokens[2] = 100), StepError::Token { row: 2, token: 100, .. }));
    assert!(matches!(refused(|p| p.positions[1] = Position(50)), StepError::Position { row: 1, .. }));
    assert!(matches!(refused(|p| p.rows[1] = 1..3), StepError::Rows { sequence: 1, expected: 2, .. }));
    assert!(matches!(refused(|p| p.rows[1] = 2..4), StepError::Rows { sequence: 1, .. }));
    assert!(matches!(refused(|p| p.rows = [0..2, 2..2]), StepError::Rows { sequence: 1, .. }));
    assert!(matches!(refused(|p| p.rows = [0..1, 1..2]), StepError::Uncovered { covered: 2, rows: 3 }));
}

#[test]
fn no_slot_is_written_twice_or_read_while_it_is_written() {
    assert!(matches!(refused(|p| p.slots[0] = SlotId::DEAD), StepError::WriteSlot { row: 0, .. }));
    assert!(matches!(refused(|p| p.slots[0] = SlotId(20)), StepError::WriteSlot { row: 0, slot: 20, .. }));
    assert!(matches!(refused(|p| p.slots[2] = SlotId(1)), StepError::WriteSlot { row: 2, slot: 1, .. }));
    for slot in [SlotId::DEAD, SlotId(20), SlotId(3), SlotId(u32::MAX)] {
        let found = refused(|p| p.contexts[0][1] = slot);
        assert!(matches!(found, StepError::ContextSlot { sequence: 0, .. }), "{slot:?}: {found}");
    }
}

#[test]
fn rows_of_one_session_see_its_earlier_rows_of_the_batch_and_no_others() {
    let mut parts = good();
    parts.contexts[1] = vec![SlotId(9), SlotId(1), SlotId(19)];
    parts.after = 2;
    assert_eq!(check(&parts), Ok(()));
    parts.after = 1;
    let found = check(&parts);
    assert!(matches!(found, Err(StepError::ContextSlot { sequence: 1, slot: 1, .. })), "{found:?}");
    (parts.after, parts.contexts[1]) = (2, vec![SlotId(3)]);
    let found = check(&parts);
    assert!(matches!(found, Err(StepError::ContextSlot { sequence: 1, slot: 3, .. })), "{found:?}");
}
