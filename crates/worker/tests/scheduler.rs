//! The scheduler against a model of what it promises, over random traffic. No model runs: the "engine" records
//! which token was written to which slot, and every attention context is compared with the sequence's own tokens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail loudly")]

use std::collections::HashMap;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::retention::{Policy, Retention};
use hawser_common::{SessionId, SessionKey, SlotId, TenantId};
use hawser_worker::ranks::Tables;
use hawser_worker::scheduler::{
    Keep, Limits, PlanEntry, Refusal, Scheduler, SequenceId, StepPlan, Submission, Verdict,
};
use proptest::prelude::*;

fn key(index: usize) -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse(&format!("s{index}")).unwrap() }
}

/// A sequence as its client sees it.
#[derive(Debug, Clone)]
struct Expected {
    tokens: Vec<u32>,
    left: usize,
    session: Option<usize>,
}

/// Runs plans like an engine would, and checks them.
struct Harness {
    scheduler: Scheduler,
    limits: Limits,
    /// What was last written to each slot: (token, position).
    rows: HashMap<SlotId, (u32, u32)>,
    active: HashMap<SequenceId, Expected>,
    next_id: u64,
    now: Tick,
    steps_since_progress: HashMap<SequenceId, usize>,
    /// As a rank has them.
    tables: Tables,
}

/// The next token is a function of everything before it, so a wrong context gives a wrong continuation.
fn next_token(tokens: &[u32]) -> u32 {
    tokens.iter().fold(7u32, |hash, &t| hash.wrapping_mul(31).wrapping_add(t)) % 50
}

impl Harness {
    fn new(limits: Limits, slots: usize) -> Self {
        Self {
            scheduler: Scheduler::new(limits, slots, 0),
            limits,
            rows: HashMap::new(),
            active: HashMap::new(),
            next_id: 0,
            now: Tick::default(),
            steps_since_progress: HashMap::new(),
            tables: Tables::default(),
        }
    }

    fn submit(
        &mut self,
        session: Option<usize>,
        prompt: Vec<u32>,
        max_new: usize,
    ) -> Result<SequenceId, Refusal> {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let submission = Submission {
            id,
            session: session.map(key),
            namespace: TenantId::single(),
            prompt: prompt.clone(),
            begun: Vec::new(),
            max_new,
            deadline: None,
            keep: Keep::default(),
        };
        self.scheduler.submit(submission, self.now)?;
        self.active.insert(id, Expected { tokens: prompt, left: max_new, session });
        Ok(id)
    }

    /// One step; returns the plan's rows.
    fn step(&mut self) -> usize {
        self.now = self.now.after(Duration::from_millis(1));
        let plan = self.scheduler.plan(self.now);
        assert!(plan.rows() <= self.limits.step_tokens);
        self.check_mixed(&plan);
        self.check_and_write(&plan);
        for entry in plan.entries.iter().filter(|entry| entry.sample) {
            let expected = self.active.get_mut(&entry.sequence).unwrap();
            let token = next_token(&expected.tokens);
            expected.tokens.push(token);
            expected.left -= 1;
            let finished = expected.left == 0;
            let verdict = if finished { Verdict::Finish } else { Verdict::Continue };
            self.scheduler.advance(entry.sequence, token, verdict, self.now);
            if finished {
                self.active.remove(&entry.sequence);
            }
        }
        self.scheduler.audit().unwrap();
        plan.rows()
    }

    /// A step that decodes prefills no more than it may.
    fn check_mixed(&self, plan: &StepPlan) {
        let pending = |entry: &PlanEntry| {
            self.active[&entry.sequence].tokens.len() - plan.positions[entry.rows.start].index()
        };
        let (decoding, prefilling): (Vec<_>, Vec<_>) =
            plan.entries.iter().partition(|entry| pending(entry) == 1);
        let rows: usize = prefilling.iter().map(|entry| entry.rows.len()).sum();
        assert!(decoding.is_empty() || rows <= self.limits.mixed_tokens, "{rows} rows beside {decoding:?}");
    }

    fn check_and_write(&mut self, plan: &StepPlan) {
        plan.tables.iter().for_each(|change| self.tables.apply(change));
        let slots = |entry: &PlanEntry| self.tables.find(entry.sequence).unwrap().slots().to_vec();
        let contexts: Vec<Vec<SlotId>> = plan.entries.iter().map(slots).collect();
        for entry in &plan.entries {
            let rows = entry.rows.clone();
            self.tables.append(entry.sequence, &plan.positions[rows.clone()], &plan.slots[rows]);
        }
        let mut written: Vec<SlotId> = plan.slots.clone();
        written.sort();
        written.dedup();
        assert_eq!(written.len(), plan.slots.len(), "no slot is written twice in a step");
        assert!(plan.slots.iter().all(|slot| !slot.is_dead()), "the dead slot is never written");
        for (entry, context) in plan.entries.iter().zip(&contexts) {
            let expected = &self.active[&entry.sequence];
            let start = plan.positions[entry.rows.start].index();
            assert_eq!(context.len(), start, "nothing is pruned here: the context is the whole history");
            for (position, slot) in context.iter().enumerate() {
                let row = self.rows[slot];
                assert_eq!(
                    row,
                    (expected.tokens[position], position as u32),
                    "the context holds its own rows"
                );
            }
            let tokens = &plan.tokens[entry.rows.clone()];
            assert_eq!(tokens, &expected.tokens[start..start + tokens.len()]);
            assert_eq!(entry.sample, start + tokens.len() == expected.tokens.len());
        }
        for ((&slot, &token), position) in plan.slots.iter().zip(&plan.tokens).zip(&plan.positions) {
            assert!(
                !contexts.iter().flatten().any(|&read| read == slot),
                "a written slot is nobody's history"
            );
            self.rows.insert(slot, (token, position.0));
        }
        let planned: Vec<SequenceId> = plan.entries.iter().map(|entry| entry.sequence).collect();
        for &id in self.active.keys() {
            let waited = self.steps_since_progress.entry(id).or_default();
            *waited = if planned.contains(&id) { 0 } else { *waited + 1 };
        }
    }

    fn drain(&mut self) {
        let mut steps = 0;
        while !self.active.is_empty() {
            assert!(self.step() > 0, "something runs while something is wanted: {:?}", self.active);
            steps += 1;
            assert!(steps < 20_000, "the traffic ends");
        }
        assert!(self.scheduler.is_idle());
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit { session: Option<usize>, prompt: Vec<u32>, keep_history: bool, max_new: usize },
    Steps(usize),
    Abort(usize),
    Close(usize),
    Fork(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let prompt = proptest::collection::vec(0..50u32, 1..40);
    prop_oneof![
        4 => (proptest::option::of(0..4usize), prompt, any::<bool>(), 1..12usize).prop_map(
            |(session, prompt, keep_history, max_new)| Op::Submit { session, prompt, keep_history, max_new }
        ),
        4 => (1..8usize).prop_map(Op::Steps),
        1 => (0..8usize).prop_map(Op::Abort),
        1 => (0..4usize).prop_map(Op::Close),
        1 => (0..4usize, 0..4usize).prop_map(|(from, to)| Op::Fork(from, to)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_traffic_keeps_every_context_right_and_every_slot(
        ops in proptest::collection::vec(op(), 1..50),
        slots in 60..160usize,
        step_tokens in 1..24usize,
        mixed_tokens in 1..24usize,
        max_running in 1..6usize,
    ) {
        let limits = Limits { step_tokens, mixed_tokens, max_running, max_waiting: 8, share_prefixes: true };
        let mut harness = Harness::new(limits, slots);
        let mut histories: Vec<Vec<u32>> = vec![Vec::new(); 4];
        for op in ops {
            match op {
                Op::Submit { session, prompt, keep_history, max_new } => {
                    let busy = harness.active.values().any(|e| session.is_some() && e.session == session);
                    if busy { continue; }
                    let mut whole = session.filter(|_| keep_history).map_or_else(Vec::new, |s| histories[s].clone());
                    whole.extend(prompt);
                    whole.truncate(slots.saturating_sub(20));
                    if let (Ok(_), Some(s)) = (harness.submit(session, whole.clone(), max_new), session) {
                        histories[s] = whole;
                    }
                }
                Op::Steps(count) => for _ in 0..count { harness.step(); },
                Op::Abort(nth) => {
                    let mut ids: Vec<SequenceId> = harness.active.keys().copied().collect();
                    ids.sort();
                    if let Some(&id) = ids.get(nth) {
                        prop_assert!(harness.scheduler.abort(id, harness.now));
                        prop_assert!(!harness.scheduler.abort(id, harness.now), "aborting twice is aborting once");
                        harness.active.remove(&id);
                    }
                }
                Op::Close(session) => { harness.scheduler.close(&key(session)); }
                Op::Fork(from, to) => {
                    let busy = harness.active.values().any(|e| e.session == Some(from) || e.session == Some(to));
                    if !busy { harness.scheduler.fork(&key(from), &key(to), harness.now); }
                }
            }
            harness.scheduler.audit().unwrap();
        }
        harness.drain();
        for session in 0..4 { harness.scheduler.close(&key(session)); }
        let left = harness.scheduler.capacity();
        prop_assert_eq!(left.slots_free + left.slots_idle, left.slots_total, "all closed: everything may be taken");
    }
}

#[test]
fn a_later_turn_prefills_only_what_is_new_and_a_changed_history_ends_reuse_at_the_difference() {
    let mut harness = Harness::new(
        Limits { step_tokens: 16, mixed_tokens: 16, max_running: 4, max_waiting: 4, share_prefixes: true },
        200,
    );
    let first: Vec<u32> = (0..30).collect();
    harness.submit(Some(0), first.clone(), 5).unwrap();
    let mut log = first.clone();
    for _ in 0..5 {
        log.push(next_token(&log));
    }
    harness.drain();
    // The last generated token has no row yet; the new turn adds 3 tokens.
    log.extend([1, 2, 3]);
    let id = harness.submit(Some(0), log.clone(), 1).unwrap();
    harness.step();
    assert_eq!(harness.scheduler.admission(id), None, "one token, so it is done");
    let id = harness.submit(Some(0), first[..10].iter().copied().chain([49, 49]).collect(), 3).unwrap();
    harness.step();
    assert_eq!(harness.scheduler.admission(id).map(|a| (a.prompt, a.reused)), Some((12, 10)));
    harness.drain();
}

#[test]
fn e1_the_same_prompt_again_and_a_strict_prefix_reuse_at_most_all_but_the_last_token() {
    let mut harness = Harness::new(
        Limits { step_tokens: 64, mixed_tokens: 64, max_running: 4, max_waiting: 4, share_prefixes: true },
        200,
    );
    let prompt: Vec<u32> = (0..20).collect();
    for (prompt, reused) in [(&prompt[..], 0), (&prompt[..], 19), (&prompt[..7], 6), (&prompt[..1], 0)] {
        let id = harness.submit(Some(0), prompt.to_vec(), 2).unwrap();
        harness.step();
        assert_eq!(
            harness.scheduler.admission(id).map(|a| a.reused),
            Some(reused),
            "{} tokens",
            prompt.len()
        );
        harness.drain();
    }
}

#[test]
fn e16_a_request_larger_than_the_pool_is_refused_and_a_hundred_at_once_queue_in_bounds() {
    let mut harness = Harness::new(
        Limits { step_tokens: 32, mixed_tokens: 32, max_running: 8, max_waiting: 20, share_prefixes: true },
        101,
    );
    let refusal = harness.submit(None, vec![1; 95], 6).unwrap_err();
    assert_eq!(refusal, Refusal::NeverFits { needed: 101, usable: 100 });
    let taken = (0..100).filter(|_| harness.submit(None, vec![1; 50], 6).is_ok()).count();
    assert_eq!(taken, 20);
    assert_eq!(harness.submit(None, vec![1], 1).unwrap_err(), Refusal::QueueFull { waiting: 20 });
    harness.drain();
    harness.submit(None, vec![1; 94], 6).unwrap();
    harness.drain();
}

#[test]
fn prompts_reserve_what_they_have_yet_to_take_as_far_as_their_retention_keeps_them() {
    let limits =
        Limits { step_tokens: 32, mixed_tokens: 32, max_running: 1, max_waiting: 20, share_prefixes: true };
    let mut harness = Harness::new(limits, 301);
    harness.submit(None, vec![1; 100], 2).unwrap();
    harness.submit(None, vec![2; 80], 2).unwrap();
    let reserved = |harness: &Harness| harness.scheduler.capacity().slots_reserved;
    assert_eq!(reserved(&harness), 180, "both wait");
    harness.step();
    assert_eq!(reserved(&harness), 180 - 32, "a chunk of one of them has its slots");
    harness.drain();
    assert_eq!(reserved(&harness), 0);

    let retention = Retention {
        policy: Policy::RolePrior,
        budget_tokens: 40,
        trigger_tokens: 8,
        bounded: true,
        ..Retention::default()
    };
    let id = SequenceId(9);
    let submission = Submission {
        id,
        session: None,
        namespace: TenantId::single(),
        prompt: vec![3; 250],
        begun: Vec::new(),
        max_new: 2,
        deadline: None,
        keep: Keep { retention, ..Keep::default() },
    };
    harness.scheduler.submit(submission, harness.now).unwrap();
    let bounded = reserved(&harness);
    assert!((48..250).contains(&bounded), "{bounded}: the budget and a step, not all of the prompt");
    assert!(harness.scheduler.abort(id, harness.now));
    assert_eq!(reserved(&harness), 0);
}

#[test]
fn e5_the_least_recently_used_idle_session_makes_room_and_recomputes_later() {
    let mut harness = Harness::new(
        Limits { step_tokens: 64, mixed_tokens: 64, max_running: 4, max_waiting: 4, share_prefixes: true },
        101,
    );
    let prompt = |session: u32| -> Vec<u32> { (0..40).map(|i| (i * 7 + session) % 50).collect() };
    for session in 0..2 {
        harness.submit(Some(session), prompt(session as u32), 2).unwrap();
        harness.drain();
    }
    harness.submit(Some(2), prompt(2), 2).unwrap();
    harness.drain();
    let mut reused_of = |session: usize| {
        let id = harness.submit(Some(session), prompt(session as u32), 2).unwrap();
        harness.step();
        let reused = harness.scheduler.admission(id).map(|a| a.reused);
        harness.drain();
        reused
    };
    assert_eq!(reused_of(1), Some(39), "the younger one kept its rows");
    assert_eq!(reused_of(0), Some(16), "the oldest one gave up what the others needed, and no more");
}

#[test]
fn e17_a_long_prompt_delays_a_decoding_sequence_by_at_most_its_own_chunk() {
    let mut harness = Harness::new(
        Limits { step_tokens: 32, mixed_tokens: 32, max_running: 4, max_waiting: 4, share_prefixes: true },
        2_000,
    );
    let a = harness.submit(None, vec![3; 10], 200).unwrap();
    harness.step();
    harness.submit(None, vec![5; 1_000], 1).unwrap();
    while harness.active.len() == 2 {
        let before = harness.active[&a].tokens.len();
        harness.step();
        assert_eq!(
            harness.active[&a].tokens.len(),
            before + 1,
            "the decoding one gets a token in every step"
        );
    }
    harness.drain();
}

#[test]
fn e17_a_short_prompt_does_not_wait_for_all_of_a_long_one() {
    let mut harness = Harness::new(
        Limits { step_tokens: 32, mixed_tokens: 32, max_running: 8, max_waiting: 8, share_prefixes: true },
        4_000,
    );
    harness.submit(None, vec![1; 1_000], 2).unwrap();
    harness.submit(None, vec![2; 900], 2).unwrap();
    harness.step();
    let short = harness.submit(None, (0..20).collect(), 1).unwrap();
    let steps = (1..).find(|_| {
        harness.step();
        !harness.active.contains_key(&short)
    });
    assert_eq!(steps, Some(2), "sixteen rows a step are not the oldest's");
    // The oldest loses half of the steps at most.
    let oldest = SequenceId(0);
    let steps = (3..).find(|_| {
        harness.step();
        harness.active.get(&oldest).is_none_or(|sequence| sequence.tokens.len() > 1_000)
    });
    assert!(steps.is_some_and(|steps| steps <= 1_000 / 16), "{steps:?}");
    harness.drain();
}

#[test]
fn a_full_pool_preempts_the_youngest_and_every_sequence_still_gets_its_tokens() {
    let mut harness = Harness::new(
        Limits { step_tokens: 16, mixed_tokens: 16, max_running: 3, max_waiting: 8, share_prefixes: true },
        101,
    );
    for seed in 0..3 {
        harness.submit(None, vec![seed; 20], 70).unwrap();
    }
    harness.drain();
}

#[test]
fn a_deadline_ends_a_sequence_wherever_it_is() {
    let limits =
        Limits { step_tokens: 8, mixed_tokens: 8, max_running: 1, max_waiting: 4, share_prefixes: true };
    let mut scheduler = Scheduler::new(limits, 100, 0);
    let deadline = Some(Tick(Duration::from_millis(5)));
    for id in [1, 2] {
        let submission = Submission {
            id: SequenceId(id),
            session: None,
            namespace: TenantId::single(),
            prompt: vec![1; 20],
            begun: Vec::new(),
            max_new: 4,
            deadline,
            keep: Keep::default(),
        };
        scheduler.submit(submission, Tick::default()).unwrap();
    }
    assert!(!scheduler.plan(Tick::default()).is_empty());
    assert_eq!(scheduler.expire(Tick(Duration::from_millis(4))), []);
    assert_eq!(scheduler.expire(Tick(Duration::from_millis(5))), [SequenceId(2), SequenceId(1)]);
    assert!(scheduler.is_idle());
    scheduler.audit().unwrap();
    assert_eq!(scheduler.capacity().slots_free, 99);
}

#[test]
fn a_paused_sequence_holds_back_nobody_else() {
    let mut harness = Harness::new(
        Limits { step_tokens: 8, mixed_tokens: 8, max_running: 4, max_waiting: 4, share_prefixes: true },
        200,
    );
    let slow = harness.submit(None, vec![1; 4], 50).unwrap();
    let fast = harness.submit(None, vec![2; 4], 50).unwrap();
    harness.step();
    harness.scheduler.pause(|id| id == slow);
    let held = harness.active[&slow].tokens.len();
    for _ in 0..10 {
        harness.step();
    }
    assert_eq!(harness.active[&slow].tokens.len(), held);
    assert_eq!(harness.active[&fast].left, 50 - 11);
    harness.scheduler.pause(|_| false);
    harness.drain();
}
