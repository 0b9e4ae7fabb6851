use hawser_common::Position;
use hawser_common::retention::{Policy, Retention};
use proptest::prelude::*;

use super::*;

fn positions(range: std::ops::Range<u32>) -> Vec<Position> {
    range.map(Position).collect()
}

fn marks(len: u32) -> Marks {
    let mut marks = Marks::default();
    for turn in 0..len.div_ceil(20) {
        marks.extend_to((turn * 20 + 5).min(len), Origin::User, turn);
        marks.extend_to((turn * 20 + 10).min(len), Origin::Assistant, turn);
        marks.extend_to((turn * 20 + 20).min(len), Origin::Tool, turn);
    }
    marks
}

fn retention(policy: Policy) -> Retention {
    Retention {
        policy,
        budget_tokens: 40,
        trigger_tokens: 0,
        span_cap: false,
        role_weight: 0.0,
        user_weight: 0.0,
        ..Retention::default()
    }
}

fn situation<'a>(retention: &'a Retention, live: &'a [Position]) -> Situation<'a> {
    let len = live.last().map_or(0, |last| last.0 + 1);
    Situation {
        retention,
        budget: retention.budget_tokens,
        live,
        len,
        protected: 10,
        span: len.saturating_sub(6)..len,
        pins: &[],
    }
}

#[test]
fn what_is_forced_is_no_candidate() {
    let options = Retention { recent_tokens: 8, ..retention(Policy::Streaming) };
    let live = positions(0..100);
    let pins = [30..33, 50..70];
    let event = Event::new(&Situation { pins: &pins, ..situation(&options, &live) });
    let left: Vec<Position> =
        positions(10..100).into_iter().filter(|p| p.0 < 92 && !(50..70).contains(&p.0)).collect();
    assert_eq!(event.candidates, left, "the last pin takes all of half a budget");
    assert_eq!((event.forced, event.keep, event.overflow), (38, 2, false));
    let small = Event::new(&Situation { budget: 12, ..situation(&options, &live) });
    assert!(small.overflow && small.keep == 0, "forced is 10 + 8");
}

#[test]
fn a_long_span_is_forced_only_at_its_end() {
    let options = Retention { span_cap: true, budget_tokens: 400, ..retention(Policy::Streaming) };
    let live = positions(0..900);
    let event = Event::new(&Situation { span: 200..899, ..situation(&options, &live) });
    assert_eq!(event.candidates, positions(10..799), "a quarter of the budget is forced");
}

#[test]
fn baselines_choose_as_their_names_say() {
    let (live, marks) = (positions(0..100), marks(100));
    let chosen = |policy| {
        let options = retention(policy);
        let event = Event::new(&situation(&options, &live));
        let scores = local_scores(&options, &marks, &event.candidates);
        select(&options, &marks, &event, &scores).kept
    };
    assert_eq!(chosen(Policy::Streaming), positions(70..94));
    let prior = chosen(Policy::RolePrior);
    let own = prior.iter().filter(|p| marks.at(p.0).0 == Origin::Assistant).count();
    assert_eq!((prior.len(), own), (24, 20), "every answer after the protected ten, then the newest four");
    assert_eq!(prior.iter().rev().take(4).copied().collect::<Vec<_>>(), [93, 92, 91, 90].map(Position));
    let random = chosen(Policy::Random);
    assert_ne!(random, chosen(Policy::Streaming));
    assert_eq!(random, chosen(Policy::Random), "the seed decides");
}

#[test]
fn ties_go_to_the_later_position_and_weights_act_on_relative_scores() {
    let (live, marks) = (positions(0..100), marks(100));
    let options = retention(Policy::IntentQuery);
    let event = Event::new(&situation(&options, &live));
    let equal = vec![7; event.candidates.len()];
    assert_eq!(select(&options, &marks, &event, &equal).kept, positions(70..94));
    let weighted = Retention { role_weight: 0.5, ..options.clone() };
    let kept = select(&weighted, &marks, &event, &equal).kept;
    assert_eq!(kept.iter().filter(|p| marks.at(p.0).0 == Origin::Assistant).count(), 20);
    let aged = Retention { age_decay: 1.0, ..options.clone() };
    let rising: Vec<i64> = event.candidates.iter().map(|p| 1_000 - i64::from(p.0)).collect();
    assert_eq!(select(&options, &marks, &event, &rising).kept, positions(10..34));
    assert!(select(&aged, &marks, &event, &rising).kept.iter().all(|p| p.0 >= 60), "the last turns win");
    let strict = Retention { threshold: 1.5, threshold_min_tokens: 20, ..options };
    let peaked: Vec<i64> = event.candidates.iter().map(|p| if p.0 < 20 { 100 } else { 1 }).collect();
    assert_eq!(select(&strict, &marks, &event, &peaked).kept, positions(10..20));
}

#[test]
fn h2o_keeps_the_newest_half_and_blocks_live_and_die_together() {
    let (live, marks) = (positions(0..100), marks(100));
    let options = retention(Policy::H2o);
    let event = Event::new(&situation(&options, &live));
    let old_first: Vec<i64> = event.candidates.iter().map(|p| -i64::from(p.0)).collect();
    let kept = select(&options, &marks, &event, &old_first).kept;
    assert_eq!(kept, [positions(10..22), positions(82..94)].concat());
    // Own messages come first: 20 + 25 of them are candidates, more than stay.
    let weighted = Retention { role_weight: 16.0, user_weight: 8.0, ..options };
    let flat = vec![1_000; event.candidates.len()];
    let kept = select(&weighted, &marks, &event, &flat).kept;
    assert!(kept.iter().all(|p| matches!(marks.at(p.0).0, Origin::Assistant | Origin::User)), "{kept:?}");
    let own = kept.iter().filter(|p| marks.at(p.0).0 == Origin::Assistant).count();
    assert_eq!((kept.len(), own), (24, 20));
    let blocks = Retention { block_tokens: 16, ..retention(Policy::IntentQuery) };
    let kept = select(&blocks, &marks, &event, &old_first).kept;
    assert_eq!(kept, [positions(10..16), positions(16..32), positions(46..48)].concat());
}

#[test]
fn the_budget_shrinks_with_the_pool() {
    let options = Retention { adaptive_min_tokens: 10, ..retention(Policy::Streaming) };
    let at = |used| budget(&options, used, 1_000);
    assert_eq!([at(0), at(600), at(750), at(900), at(1_000)], [40, 40, 25, 10, 10]);
    assert_eq!(budget(&retention(Policy::Streaming), 1_000, 1_000), 40);
    assert!(is_due(&options, 40, 41) && !is_due(&options, 40, 40));
}

fn evicts(at: u32, evicted: Vec<Position>, freed: u32) -> PruneRecord {
    PruneRecord { at, evicted, freed, ..PruneRecord::default() }
}

fn revives(at: u32, revived: Vec<Position>) -> PruneRecord {
    PruneRecord { at, revived, ..PruneRecord::default() }
}

#[test]
fn what_comes_back_is_logged_and_undone_changes_are_not() {
    let mut log = PruneLog::default();
    log.push(evicts(50, positions(10..20), 10));
    log.push(revives(80, positions(12..15)));
    assert_eq!((log.dead(), log.exact()), (7, 50));
    assert!(log.comes_back(50, Position(12)) && !log.comes_back(50, Position(15)));
    assert!(!log.comes_back(80, Position(12)), "only later events count");
    log.push(evicts(80, positions(12..13), 1));
    assert_eq!(log.records()[1].revived, positions(13..15), "of one length, what is undone is as it was");
    assert_eq!(log.records()[1].evicted, vec![]);
    log.push(evicts(90, positions(13..14), 1));
    log.push(revives(95, positions(10..11)));
    log.truncate(70);
    let last = &log.records()[1];
    assert_eq!((last.at, &last.evicted, &last.revived), (70, &vec![], &[10, 14].map(Position).to_vec()));
    assert_eq!(log.dead(), 8);
}

#[test]
fn what_attention_asks_for_comes_back_for_what_the_policy_values_least() {
    let (live, marks) = (positions(60..100), marks(100));
    let options = Retention { revive: true, revive_margin: 0.5, ..retention(Policy::Streaming) };
    let event = Event::new(&Situation { budget: 64, ..situation(&options, &live) });
    let block = |range, score| Dead { positions: positions(range), score };
    let dead = [block(16..20, 30), block(32..36, 25), block(48..52, 14)];
    let scores = vec![10; event.candidates.len()];
    let chosen = |margin, budget| {
        let options = Retention { revive_margin: margin, ..options.clone() };
        exchange(&options, &marks, (&event, budget), &scores, &dead)
    };
    assert_eq!(chosen(0.5, 40).revived, positions(16..20), "C/8 = 5 is room for one block");
    assert_eq!(chosen(0.5, 40).evicted, positions(60..64), "the oldest go for it");
    assert_eq!(chosen(0.5, 80).revived, [positions(16..20), positions(32..36)].concat());
    assert_eq!(chosen(0.5, 80).evicted, vec![], "below the budget there is room");
    assert_eq!(chosen(9.0, 40), Exchange::default(), "not for a little more");
}

#[test]
fn a_log_cut_short_keeps_what_cannot_come_back() {
    let mut log = PruneLog::default();
    log.push(evicts(50, positions(10..20), 7));
    log.push(evicts(80, positions(30..60), 30));
    assert_eq!(log.exact(), 50);
    assert_eq!(log.next_from(50).unwrap().at, 50);
    assert_eq!(log.next_from(51).unwrap().at, 80);
    log.truncate(40);
    assert_eq!(log.records().len(), 1);
    let record = &log.records()[0];
    assert_eq!(
        (record.at, record.evicted.len(), record.freed),
        (40, 20, 20),
        "ten of the first prune, ten of the second below 40, and no more slots than positions"
    );
    log.truncate(5);
    assert_eq!(log.records().len(), 0);
}

proptest! {
    /// Kept and evicted part the candidates, as many stay as the budget says, and nothing that stays scores below
    /// anything that goes.
    #[test]
    fn the_best_stay(
        scores in proptest::collection::vec(0i64..50, 1..200),
        keep in 0usize..220,
    ) {
        let candidates = positions(0..scores.len() as u32);
        let event = Event { candidates: candidates.clone(), keep, forced: 0, overflow: false };
        let options = retention(Policy::IntentMemory);
        let chosen = select(&options, &Marks::default(), &event, &scores);
        prop_assert_eq!(chosen.kept.len(), keep.min(scores.len()));
        let mut all = [chosen.kept.clone(), chosen.evicted.clone()].concat();
        all.sort_unstable();
        prop_assert_eq!(all, candidates);
        let rank = |p: &Position| (scores[p.index()], *p);
        let worst = chosen.kept.iter().map(rank).min();
        let best = chosen.evicted.iter().map(rank).max();
        if let (Some(worst), Some(best)) = (worst, best) {
            prop_assert!(worst > best);
        }
    }
}

proptest! {
    /// Whatever the budget: something is live, the newest token and the sinks among it.
    #[test]
    fn t4_no_prune_leaves_a_session_without_a_live_position(
        len in 1..300u32,
        budget in 1..80u32,
        sink_tokens in 0..6u32,
        span in 0..60u32,
        policy in prop_oneof![Just(Policy::Streaming), Just(Policy::Random), Just(Policy::RolePrior)],
    ) {
        let options = Retention { sink_tokens, budget_tokens: budget, span_cap: true, ..retention(policy) };
        let live = positions(0..len);
        let span = len.saturating_sub(span)..len;
        let event = Event::new(&Situation { budget, protected: 0, span, ..situation(&options, &live) });
        let scores = local_scores(&options, &marks(len), &event.candidates);
        let evicted = select(&options, &marks(len), &event, &scores).evicted;
        prop_assert!(evicted.len() < live.len());
        prop_assert!(!evicted.contains(&Position(len - 1)));
        prop_assert!(evicted.iter().all(|position| position.0 >= sink_tokens));
    }
}
