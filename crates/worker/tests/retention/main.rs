//! The scheduler with pruned, shared, demoted, aborted and forked sessions, against a dense reference that recomputes
//! nothing: what a row has seen is hashed into it, so a row over the wrong history is found at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

mod harness;
mod reference;

use hawser_common::retention::{Policy, Retention};
use hawser_worker::scheduler::Limits;
use proptest::prelude::*;

use harness::{Harness, key};
use reference::Reference;

#[derive(Clone, Debug)]
enum Op {
    Submit {
        session: Option<usize>,
        prompt: Vec<u32>,
        goes_on: bool,
        max_new: usize,
        release: bool,
    },
    Steps(usize),
    Abort(usize),
    Close(usize),
    Fork(usize, usize),
    /// To a pool of so many slots.
    Relocate(usize),
}

fn op() -> impl Strategy<Value = Op> {
    // Few tokens and a common beginning, so that prompts share rows.
    let prompt =
        prop_oneof![proptest::collection::vec(0..3u32, 1..50), proptest::collection::vec(0..3u32, 60..160),];
    let submit = (proptest::option::weighted(0.8, 0..3usize), prompt, any::<bool>(), 1..10usize, 0..6u32);
    prop_oneof![
        5 => submit.prop_map(|(session, prompt, goes_on, max_new, release)| Op::Submit {
            session, prompt, goes_on, max_new, release: release == 0,
        }),
        5 => (1..12usize).prop_map(Op::Steps),
        1 => (0..6usize).prop_map(Op::Abort),
        1 => (0..3usize).prop_map(Op::Close),
        1 => (0..3usize, 0..3usize).prop_map(|(from, to)| Op::Fork(from, to)),
        1 => (90..300usize).prop_map(Op::Relocate),
    ]
}

/// Many long turns over an archive that holds digests and few rows.
#[test]
fn evicted_rows_that_are_nowhere_are_computed_again_as_they_were() {
    let retention = Retention {
        policy: Policy::Random,
        budget_tokens: 136,
        trigger_tokens: 8,
        revive: true,
        revive_margin: 0.0,
        refill_tokens: 200,
        ..Retention::default()
    };
    let limits =
        Limits { step_tokens: 24, mixed_tokens: 9, max_running: 3, max_waiting: 8, share_prefixes: true };
    let mut harness = Harness::new(limits, (900, 20), retention);
    for turn in 0..8u32 {
        for session in 0..3 {
            let mut whole = harness.sessions[session].tokens.clone();
            whole.extend((0..90).map(|at| 3 + (at * 7 + turn * 5 + session as u32 * 11) % 60));
            harness.submit(Some(session), whole, 4, false);
        }
        // One of them is given up, wherever it is.
        (0..3 + turn * 3).for_each(|_| harness.step());
        harness.abort(turn as usize % 3);
        harness.drain();
    }
    assert!(harness.refill_rows > 100, "{} rows were computed again", harness.refill_rows);
    (0..3).for_each(|session| harness.check_inspection(session));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn r5_r6_r7_e5_rows_have_seen_what_was_live_whatever_is_pruned_shared_demoted_moved_or_aborted(
        ops in proptest::collection::vec(op(), 1..60),
        slots in 90..300usize,
        step_tokens in 2..32usize,
        max_running in 1..5usize,
        budget in prop_oneof![10..40u32, 64..140u32],
        trigger in 0..12u32,
        policy in prop_oneof![Just(Policy::Streaming), Just(Policy::Random), Just(Policy::Full)],
        bounded in any::<bool>(),
        revive in any::<bool>(),
        archive in prop_oneof![Just(100usize), 0..24usize],
        refill_tokens in prop_oneof![Just(0u32), 1..300u32],
    ) {
        let retention = Retention {
            policy, budget_tokens: budget, trigger_tokens: trigger, bounded, revive, revive_margin: 0.0,
            refill_tokens, ..Retention::default()
        };
        let limits =
            Limits { step_tokens, mixed_tokens: step_tokens, max_running, max_waiting: 8, share_prefixes: true };
        let mut harness = Harness::new(limits, (slots, archive), retention);
        for op in ops {
            match op {
                Op::Submit { session, prompt, goes_on, max_new, release } => {
                    if session.is_some_and(|session| harness.is_busy(session)) {
                        continue;
                    }
                    let history = session.filter(|_| goes_on).map(|s| harness.sessions[s].tokens.clone());
                    let mut whole = history.unwrap_or_default();
                    whole.extend(prompt);
                    harness.submit(session, whole, max_new, release);
                }
                Op::Steps(count) => (0..count).for_each(|_| harness.step()),
                Op::Abort(nth) => harness.abort(nth),
                Op::Close(session) => {
                    if !harness.is_busy(session) {
                        harness.scheduler.close(&key(session));
                        harness.sessions[session] = Reference::default();
                    }
                }
                Op::Relocate(slots) => harness.relocate(slots),
                Op::Fork(from, to) => {
                    if !harness.is_busy(from) && !harness.is_busy(to) && from != to {
                        harness.scheduler.close(&key(to));
                        harness.sessions[to] = Reference::default();
                        harness.scheduler.fork(&key(from), &key(to), harness.now);
                        harness.sessions[to] = harness.sessions[from].clone();
                    }
                }
            }
            harness.scheduler.audit().unwrap();
        }
        harness.drain();
        let kept = harness.scheduler.capacity();
        let pruned: usize = harness.sessions.iter().map(Reference::dead).sum();
        prop_assert!(kept.slots_reclaimed <= pruned as u64, "{} of {pruned}", kept.slots_reclaimed);
        prop_assert_eq!(kept.slots_reserved, 0, "nothing runs");
        (0..3).for_each(|session| harness.check_inspection(session));
        (0..3).for_each(|session| { harness.scheduler.close(&key(session)); });
        let left = harness.scheduler.capacity();
        prop_assert_eq!(left.slots_free + left.slots_idle, left.slots_total, "no slot leaked");
        let plan = harness.scheduler.plan(harness.now);
        prop_assert!(plan.entries.is_empty());
    }
}

#[test]
fn a_request_that_runs_again_after_its_prompt_decides_nothing_anew() {
    // All of the last prompt is forced, so that its prune evicts nothing and leaves no record; then it is preempted.
    let retention =
        Retention { policy: Policy::Streaming, budget_tokens: 10, trigger_tokens: 0, ..Retention::default() };
    let limits =
        Limits { step_tokens: 29, mixed_tokens: 29, max_running: 4, max_waiting: 8, share_prefixes: true };
    let mut harness = Harness::new(limits, (135, 100), retention);
    let begins_with = |first: u32, zeros: usize| [vec![first], vec![0; zeros]].concat();
    harness.submit(None, begins_with(2, 30), 9, false);
    harness.submit(None, vec![0; 60], 7, true);
    harness.submit(None, begins_with(2, 26), 5, true);
    harness.submit(None, vec![0; 21], 3, false);
    harness.drain();
}
