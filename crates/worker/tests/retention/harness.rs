//! The scheduler under test with its pool, beside the reference; every row that a step computes is checked at once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use hawser_common::clock::Tick;
use hawser_common::retention::Retention;
use hawser_common::{Position, SessionId, SessionKey, SlotId, TenantId};
use hawser_kv::RowMove;
use hawser_kv::retention::{Event, Exchange, Marks, Origin, Situation, is_due, local_scores, select};
use hawser_worker::ranks::Tables;
use hawser_worker::scheduler::{
    EntryKind, Keep, Limits, PlanEntry, RankChange, RowState, Scheduler, SequenceId, SessionState, StepPlan,
    Submission, Verdict,
};

use crate::reference::{Reference, row};

pub(crate) fn key(index: usize) -> SessionKey {
    SessionKey { tenant: TenantId::single(), session: SessionId::parse(&format!("s{index}")).unwrap() }
}

pub(crate) struct Running {
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt: usize,
    pub(crate) left: usize,
    pub(crate) session: Option<usize>,
    pub(crate) keep: Keep,
    /// Tokens that the session had.
    pub(crate) held: usize,
    pub(crate) reference: Reference,
    /// Of its last revival.
    pub(crate) exchanged: Exchange,
}

impl Running {
    /// A revival that is given up before its rows were computed has not happened.
    pub(crate) fn undo(&mut self) {
        let live = &mut self.reference.live;
        self.exchanged.revived.iter().for_each(|position| live[position.index()] = false);
        self.exchanged.evicted.iter().for_each(|position| live[position.index()] = true);
    }
}

pub(crate) struct Harness {
    pub(crate) scheduler: Scheduler,
    /// Slots behind the pool for rows that may come back: too few for all.
    pub(crate) archive: usize,
    pub(crate) retention: Retention,
    pub(crate) limits: Limits,
    pub(crate) rows: HashMap<SlotId, u64>,
    /// As a rank has them.
    pub(crate) tables: Tables,
    pub(crate) running: HashMap<SequenceId, Running>,
    pub(crate) sessions: Vec<Reference>,
    pub(crate) next_id: u64,
    pub(crate) now: Tick,
    pub(crate) revived: usize,
    pub(crate) refill_rows: usize,
}

impl Harness {
    pub(crate) fn new(limits: Limits, (slots, archive): (usize, usize), retention: Retention) -> Self {
        let scheduler = Scheduler::new(limits, slots, archive);
        let (rows, running, sessions) = (HashMap::new(), HashMap::new(), vec![Reference::default(); 3]);
        Self {
            scheduler,
            archive,
            retention,
            limits,
            rows,
            running,
            sessions,
            next_id: 0,
            now: Tick::default(),
            revived: 0,
            refill_rows: 0,
            tables: Tables::default(),
        }
    }

    pub(crate) fn is_busy(&self, session: usize) -> bool {
        self.running.values().any(|running| running.session == Some(session))
    }

    pub(crate) fn submit(&mut self, session: Option<usize>, prompt: Vec<u32>, max_new: usize, release: bool) {
        let mut reference = session.map(|session| self.sessions[session].clone()).unwrap_or_default();
        let same = reference.tokens.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let held = same.min(prompt.len() - 1);
        // The last token is run again, whatever became of it.
        reference.truncate(held);
        let len = u32::try_from(prompt.len()).unwrap();
        let mut marks = Marks::default();
        marks.extend_to(len, Origin::User, 0);
        let releases: Vec<Range<u32>> = release.then_some(len / 4..len / 2).into_iter().collect();
        let span = u32::try_from(held).unwrap()..len;
        let keep = Keep {
            retention: self.retention.clone(),
            marks,
            protected: 3.min(len),
            span,
            pins: Vec::new(),
            hint: Vec::new(),
            releases,
        };
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
            keep: keep.clone(),
        };
        if self.scheduler.submit(submission, self.now).is_ok() {
            let prompt_len = prompt.len();
            let running = Running {
                tokens: prompt,
                prompt: prompt_len,
                left: max_new,
                session,
                keep,
                held,
                reference,
                exchanged: Exchange::default(),
            };
            self.running.insert(id, running);
        }
    }

    pub(crate) fn step(&mut self) {
        self.now = self.now.after(Duration::from_millis(1));
        let plan = self.scheduler.plan(self.now);
        assert!(plan.rows() <= self.limits.step_tokens);
        plan.changes.iter().for_each(|change| self.change(change));
        plan.tables.iter().for_each(|change| self.tables.apply(change));
        for entry in &plan.entries {
            if let EntryKind::Refill { aside } = &entry.kind {
                self.refill(&plan, entry, aside);
            }
        }
        for entry in plan.entries.iter().filter(|entry| entry.kind == EntryKind::Next) {
            let context = self.tables.find(entry.sequence).unwrap().slots().to_vec();
            self.compute(&plan, entry, &context);
            let (positions, slots) = (&plan.positions[entry.rows.clone()], &plan.slots[entry.rows.clone()]);
            self.tables.append(entry.sequence, positions, slots);
        }
        for entry in plan.entries.iter().filter(|entry| entry.kind == EntryKind::Next) {
            self.finish(entry);
        }
        self.scheduler.audit().unwrap();
    }

    pub(crate) fn change(&mut self, change: &RankChange) {
        match change {
            RankChange::Move(RowMove::Copy { from, to }) => {
                let row = self.rows[from];
                self.rows.insert(*to, row);
            }
            RankChange::Move(RowMove::Digest { of, to }) => {
                let sum = of.iter().fold(0, |sum: u64, slot| sum.wrapping_add(self.rows[slot]));
                self.rows.insert(*to, sum);
            }
            _ => {}
        }
    }

    /// Brings back what scores well by a hash of its key, which is what attention would see too.
    pub(crate) fn revive(&mut self, id: SequenceId) {
        for change in self.scheduler.take_changes() {
            self.change(&change);
        }
        let Some(scoring) = self.scheduler.revival(id) else { return };
        let score = |index: &u32| (self.rows[&scoring.keys[*index as usize]] >> 20) as i64;
        let scores: Vec<i64> = scoring.candidates.iter().map(score).collect();
        let exchanged = self.scheduler.settle_revival(id, Some(&scores));
        let live = &mut self.running.get_mut(&id).unwrap().reference.live;
        for position in &exchanged.revived {
            assert!(!std::mem::replace(&mut live[position.index()], true), "only the dead come back");
        }
        exchanged.evicted.iter().for_each(|position| live[position.index()] = false);
        self.revived += exchanged.revived.len();
        self.running.get_mut(&id).unwrap().exchanged = exchanged;
    }

    /// Computes rows again: they are what they were, and what the session has is not written.
    pub(crate) fn refill(&mut self, plan: &StepPlan, entry: &PlanEntry, aside: &[(Position, SlotId)]) {
        let table = self.tables.find(entry.sequence).unwrap();
        let live = table.positions().iter().copied().zip(table.slots().iter().copied());
        let mut seen: BTreeMap<Position, SlotId> = live.chain(aside.iter().copied()).collect();
        assert_eq!(seen.len(), table.slots().len() + aside.len(), "a row is live or kept aside");
        for at in entry.rows.clone() {
            let (position, slot) = (plan.positions[at], plan.slots[at]);
            let before: Vec<SlotId> = seen.range(..position).map(|(_, slot)| *slot).collect();
            let made = row(plan.tokens[at], position.index(), before.iter().map(|slot| self.rows[slot]));
            let expected = &self.running[&entry.sequence].reference.rows;
            assert_eq!(made, expected[position.index()], "{position:?} is computed again as it was");
            assert!(seen.values().all(|held| *held != slot), "a written slot is nobody's history");
            assert_eq!(seen.insert(position, slot), None, "what is there is not computed");
            self.rows.insert(slot, made);
            self.refill_rows += 1;
        }
    }

    /// Computes an entry's rows from the slots it is given, and compares them with the reference's.
    pub(crate) fn compute(&mut self, plan: &StepPlan, entry: &PlanEntry, context: &[SlotId]) {
        let running = self.running.get_mut(&entry.sequence).unwrap();
        let start = plan.positions[entry.rows.start].index();
        // Rows that another session computed: they are as if this one had.
        while running.reference.rows.len() < start {
            running.reference.push(running.tokens[running.reference.rows.len()]);
        }
        for (at, &slot) in entry.rows.clone().zip(&plan.slots[entry.rows.clone()]) {
            let position = plan.positions[at].index();
            let own = &plan.slots[entry.rows.start..at];
            let seen = context.iter().chain(own).map(|slot| self.rows[slot]);
            let made = row(plan.tokens[at], position, seen);
            if position < running.reference.rows.len() {
                assert_eq!(made, running.reference.rows[position], "position {position} is as it was");
            } else {
                assert_eq!(position, running.reference.rows.len(), "no row is left out");
                running.reference.push(plan.tokens[at]);
                assert_eq!(
                    made, running.reference.rows[position],
                    "position {position} has seen what is live"
                );
            }
            assert!(!contexts_hold(context, slot), "a written slot is nobody's history");
            self.rows.insert(slot, made);
        }
    }

    pub(crate) fn finish(&mut self, entry: &PlanEntry) {
        let running = self.running.get_mut(&entry.sequence).unwrap();
        let retention = &running.keep.retention;
        let at = running.reference.rows.len();
        let whole = at == running.prompt && !running.reference.rows.is_empty();
        if entry.prune {
            assert!(whole || retention.bounded, "prunes come after the prompt");
            let live = running.reference.live_positions();
            let released: Vec<Position> = live
                .iter()
                .copied()
                .filter(|p| whole && p.0 >= 4 && p.index() + 1 < at)
                .filter(|p| running.keep.releases.iter().any(|range| range.contains(&p.0)))
                .collect();
            let left: Vec<Position> = live.into_iter().filter(|p| !released.contains(p)).collect();
            let len = u32::try_from(at).unwrap();
            let mut evicted = released;
            if is_due(retention, retention.budget_tokens, left.len()) {
                let span = running.keep.span.start.min(len)..running.keep.span.end.min(len);
                let event = Event::new(&Situation {
                    retention,
                    budget: retention.budget_tokens,
                    live: &left,
                    len,
                    protected: running.keep.protected,
                    span,
                    pins: &[],
                });
                let scores = local_scores(retention, &running.keep.marks, &event.candidates);
                evicted.extend(select(retention, &running.keep.marks, &event, &scores).evicted);
            }
            evicted.iter().for_each(|position| running.reference.live[position.index()] = false);
            self.scheduler.settle(entry.sequence, None);
            self.revive(entry.sequence);
        }
        let running = self.running.get_mut(&entry.sequence).unwrap();
        if entry.sample {
            let token = u32::try_from(running.reference.rows.last().unwrap() % 40).unwrap();
            running.tokens.push(token);
            running.left -= 1;
            let verdict = if running.left == 0 { Verdict::Finish } else { Verdict::Continue };
            if running.left == 0 && self.scheduler.is_refilling(entry.sequence) {
                running.undo();
            }
            self.scheduler.advance(entry.sequence, token, verdict, self.now);
            if verdict == Verdict::Finish {
                let ended = self.running.remove(&entry.sequence).unwrap();
                if let Some(session) = ended.session {
                    self.sessions[session] = ended.reference;
                }
            }
        }
    }

    /// Takes a turn back: its tokens go, what it evicted stays evicted.
    pub(crate) fn abort(&mut self, nth: usize) {
        let mut ids: Vec<SequenceId> = self.running.keys().copied().collect();
        ids.sort();
        let Some(&id) = ids.get(nth) else { return };
        let started = self.scheduler.admission(id).is_some();
        if self.scheduler.is_refilling(id) {
            self.running.get_mut(&id).unwrap().undo();
        }
        assert!(self.scheduler.abort(id, self.now));
        let mut ended = self.running.remove(&id).unwrap();
        if let (Some(session), true) = (ended.session, started) {
            ended.reference.truncate(ended.held);
            self.sessions[session] = ended.reference;
        }
    }

    /// What is said of a session's rows is what became of them.
    pub(crate) fn check_inspection(&self, session: usize) {
        let Some(found) = self.scheduler.inspect(&key(session)) else { return };
        let reference = &self.sessions[session];
        assert_eq!(found.tokens, reference.tokens[..found.tokens.len()]);
        let evicted: Vec<bool> = found.rows.iter().map(|row| *row == RowState::Evicted).collect();
        let dead: Vec<bool> = reference.live[..found.rows.len()].iter().map(|live| !live).collect();
        assert_eq!(evicted, dead, "what was evicted is dead, with its row given up or not");
        let logged = found.prunes.iter().map(|r| r.evicted.len()).sum::<usize>()
            - found.prunes.iter().map(|r| r.revived.len()).sum::<usize>();
        assert_eq!(logged, dead.iter().filter(|dead| **dead).count());
        let live = found.rows.iter().filter(|row| matches!(row, RowState::Own | RowState::Shared)).count();
        assert!(live <= self.scheduler.live(&key(session)));
    }

    /// Moves all sessions to a fresh scheduler with another pool; one without room is lost.
    pub(crate) fn relocate(&mut self, slots: usize) {
        self.drain();
        // As the driver does before it reads a row: what waits for the next plan is done first.
        for change in self.scheduler.take_changes() {
            self.change(&change);
        }
        let mut rows = HashMap::new();
        let mut target = Scheduler::new(self.limits, slots, self.archive);
        for session in 0..self.sessions.len() {
            let Some(leaving) = self.scheduler.leave(&key(session)) else { continue };
            let wire = postcard::to_allocvec(&leaving.state).unwrap();
            let state: SessionState = postcard::from_bytes(&wire).unwrap();
            let live = state.live.clone();
            assert_eq!(
                self.scheduler.leaving_slots(&key(session), 0..live.len()),
                Some(leaving.slots.clone())
            );
            let history = (self.now, leaving.memory.is_some());
            let arrived = target.arrive(state, TenantId::single(), history, 1_000);
            let Ok((id, memory)) = arrived else {
                target.audit().unwrap();
                self.sessions[session] = Reference::default();
                continue;
            };
            assert_eq!(memory.is_some(), leaving.memory.is_some());
            let slots = target.arriving_slots(id, 0..live.len()).unwrap();
            for (position, (from, to)) in live.iter().zip(leaving.slots.iter().zip(&slots)) {
                assert_eq!(self.rows[from], self.sessions[session].rows[position.index()]);
                rows.insert(*to, self.rows[from]);
            }
            target.audit().unwrap();
            assert!(target.commit_arrival(id, key(session)) && !target.commit_arrival(id, key(session)));
            assert_eq!(target.drop_arrival(id), 0);
            let (before, after) = (self.scheduler.inspect(&key(session)), target.inspect(&key(session)));
            let evicted = |found: Option<hawser_worker::scheduler::Inspection>| {
                let rows = found.map(|found| found.rows).unwrap_or_default();
                rows.iter().map(|row| *row == RowState::Evicted).collect::<Vec<_>>()
            };
            assert_eq!(evicted(before), evicted(after), "positions stay, and the dead stay dead");
            self.scheduler.close(&key(session));
            self.scheduler.audit().unwrap();
        }
        (self.scheduler, self.rows, self.tables) = (target, rows, Tables::default());
        self.scheduler.audit().unwrap();
    }

    pub(crate) fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.running.is_empty() {
                return;
            }
            self.step();
        }
        panic!("the traffic does not end");
    }
}

fn contexts_hold(context: &[SlotId], slot: SlotId) -> bool {
    context.contains(&slot)
}
