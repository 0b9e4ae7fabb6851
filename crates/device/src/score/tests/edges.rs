//! What is not a number, nothing at all, and bugs of the caller.

use super::reference::{near, shares};
use super::*;

const SIZES: Sizes =
    Sizes { layers: 2, kv_heads: 2, group: 2, head_dim: 16, rows: 3, keys: 300, row_type: RowType::F32 };

/// A case whose KV head 1 of layer 1 has one number in key 270 that is `bad`; only the last row sees it.
fn with_bad_key(bad: f32) -> Case {
    let mut case = Case::new(6, SIZES).whole();
    case.visible = vec![100, 270, 300];
    let slot = case.keys[270];
    let mut keys = vec![0.5; 2 * SIZES.head_dim];
    keys[SIZES.head_dim + 3] = bad;
    case.kv.write(1, &[slot], &keys, &keys);
    case
}

#[test]
fn shares_that_are_not_finite_count_as_nothing_and_are_counted() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut case = with_bad_key(bad);
        // Two query heads read that key; a NaN spoils all of a row's shares, an infinite logit too.
        case.queries.iter_mut().for_each(|q| *q = q.abs() + 0.1);
        for isa in Isa::available() {
            for width in [0, 5] {
                let (shares, non_finite) = shares(&case, width);
                assert_eq!(non_finite, 2 * 300);
                let (scores, scored) = case.score(Aggregate::Sum, width, isa);
                assert_eq!(scored.non_finite, non_finite, "{isa:?} {bad}");
                for (c, &score) in scores.iter().enumerate() {
                    let expected: f64 = shares.iter().map(|head| head[c] * ONE as f64).sum();
                    assert!(near(score, expected, 8), "{isa:?} {bad} {c}: {score} {expected}");
                }
            }
        }
    }
}

#[test]
fn a_bad_key_matters_to_rows_that_see_it_only() {
    let mut case = with_bad_key(f32::NAN);
    case.visible = vec![100, 270, 270];
    for isa in Isa::available() {
        assert_eq!(case.score(Aggregate::Sum, 0, isa).1.non_finite, 0, "{isa:?}");
    }
    // Now one row sees it, and the others see keys before it: those shares are spoilt, later ones are not.
    case.visible = vec![100, 271, 90];
    for isa in Isa::available() {
        let (scores, scored) = case.score(Aggregate::Sum, 0, isa);
        assert_eq!(scored.non_finite, 2 * 271, "{isa:?}");
        assert!(scores[271..].iter().all(|&score| score == 0), "{isa:?}");
    }
}

#[test]
fn nothing_to_see_or_to_score_is_no_error() {
    let case = Case::new(8, SIZES).whole();
    let call = case.call(Aggregate::Sum, 3, Isa::best());
    let mut scratch = ScoreScratch::default();
    let unseen = ScoreCall { visible: &[0, 0, 0], ..call };
    assert_eq!(scored(&unseen, 2, &mut scratch), (vec![0; 300], Scored::default()), "no row sees a key");
    let no_rows = ScoreCall { visible: &[], queries: &[], ..call };
    assert_eq!(scored(&no_rows, 2, &mut scratch), (vec![0; 300], Scored::default()), "no rows");
    let nothing = Some(Pool { width: 3, positions: &[] });
    let no_candidates = ScoreCall { candidates: &[], pool: nothing, ..call };
    assert_eq!(scored(&no_candidates, 2, &mut scratch), (vec![], Scored::default()), "no candidates");
    let no_keys = ScoreCall { keys: &[], visible: &[0, 0, 0], ..no_candidates };
    let vote = Aggregate::Vote { top: 4 };
    for aggregate in [Aggregate::Sum, Aggregate::Max, vote] {
        let no_keys = ScoreCall { aggregate, ..no_keys };
        assert_eq!(scored(&no_keys, 2, &mut scratch), (vec![], Scored::default()), "no keys");
    }
}

#[test]
fn bugs_of_the_caller_are_caught() {
    let case = Case::new(8, SIZES).whole();
    let call = case.call(Aggregate::Sum, 0, Isa::best());
    let mut keys = [case.keys.clone(), case.keys.clone()];
    keys[0][5] = SlotId::DEAD;
    keys[1][5] = SlotId(10_000);
    let unsorted: Vec<u32> = (0..300).rev().collect();
    let beyond: Vec<u32> = (1..301).collect();
    let even = Some(Pool { width: 4, positions: &case.positions });
    for (bad, message) in [
        (ScoreCall { keys: &keys[0], ..call }, "in a live list"),
        (ScoreCall { keys: &keys[1], ..call }, "in a live list"),
        (ScoreCall { candidates: &unsorted, ..call }, "ascend"),
        (ScoreCall { candidates: &beyond, ..call }, "are keys"),
        (ScoreCall { visible: &[1, 2, 301], ..call }, "no row sees more"),
        (ScoreCall { visible: &[1, 2], ..call }, "2 rows"),
        (ScoreCall { heads: QueryHeads::whole(3, 3), ..call }, "KV heads"),
        (ScoreCall { pool: even, ..call }, "no middle"),
    ] {
        let outcome = std::panic::catch_unwind(|| scored(&bad, 2, &mut ScoreScratch::default()));
        let payload = outcome.unwrap_err();
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.unwrap_or_else(|| payload.downcast_ref::<&str>().unwrap().to_string());
        assert!(text.contains(message), "{text}");
    }
}
