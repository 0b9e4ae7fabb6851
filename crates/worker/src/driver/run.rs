//! The driver's loop: take commands, plan, execute, sample, stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::Capacity;
use hawser_model::executor::Logits;
use tokio::sync::{mpsc, watch};

mod moves;
mod prunes;

use super::command::{Command, DriverOptions, Turn, Weights};
use crate::metrics::WorkerMetrics;
use crate::ranks::{
    Awaited, BEAT, FormError, Formation, GroupReport, Leader, Phase, RankError, TableChange, Traced,
};
use crate::scheduler::{EntryKind, Kept, PlanEntry, Scheduler, SequenceId, StepPlan, Verdict};
use crate::turn::{Finish, Generation, PruneTime, Timeline, TurnEnd, TurnError, TurnEvent, Usage};
use moves::Moving;

/// How often a driver looks for room when every sequence waits for its reader.
const PAUSED_POLL: Duration = Duration::from_millis(1);
/// How often the capacity is recounted while steps run.
const CAPACITY_PERIOD: Duration = Duration::from_millis(100);

/// Epochs of a group's ranks count from here, each time that its driver starts.
const FIRST_EPOCH: u64 = 1;

fn scheduler(options: &DriverOptions) -> Scheduler {
    Scheduler::new(options.limits, options.slots, options.archive_slots)
}

struct Running {
    generation: Generation,
    events: mpsc::Sender<TurnEvent>,
    first_token: Option<Tick>,
    arrived: Tick,
    last_token: Option<Tick>,
    /// Time spent in prunes.
    pruning: Duration,
    prunes: Vec<PruneTime>,
    /// Of the steps that computed its evicted rows again.
    refilling: Duration,
    /// Where its turn is traced.
    trace: Option<(u128, u64)>,
}

impl Running {
    fn new(generation: Generation, events: mpsc::Sender<TurnEvent>, arrived: Tick) -> Self {
        Self {
            generation,
            events,
            first_token: None,
            arrived,
            last_token: None,
            pruning: Duration::ZERO,
            prunes: Vec::new(),
            refilling: Duration::ZERO,
            trace: None,
        }
    }
}

pub(super) struct Driver {
    /// `None`: the group is down and is formed again.
    leader: Option<Leader>,
    formation: Box<dyn Formation>,
    awaited: Awaited,
    epoch: u64,
    /// When the ranks are next told that the leader is there, or formed again.
    due: Tick,
    is_up: watch::Sender<bool>,
    report: watch::Sender<GroupReport>,
    options: DriverOptions,
    scheduler: Scheduler,
    running: HashMap<SequenceId, Running>,
    /// As many as the tasks that move sessions hold.
    moving: Vec<Moving>,
    clock: Clock,
    inbox: Receiver<Command>,
    next_report: Tick,
    metrics: WorkerMetrics,
}

/// Every handle was dropped.
struct Stopped;

impl Driver {
    pub(super) fn new(
        mut formation: Box<dyn Formation>,
        options: &DriverOptions,
        clock: Clock,
        inbox: Receiver<Command>,
    ) -> Result<Self, FormError> {
        let now = clock.now();
        let mut report =
            GroupReport::new(formation.world(), now).with_slots(options.slots, options.archive_slots);
        let mut awaited = Awaited::default();
        let leader = match formation.form(FIRST_EPOCH) {
            Err(FormError::Missing { ranks, world }) => {
                awaited.tell(&ranks, (world, formation.meeting()), clock.now());
                report.missing(&ranks);
                None
            }
            formed => Some(formed?),
        };
        let now = clock.now();
        if let Some(leader) = &leader {
            report.formed(leader.epoch(), leader.timers(), now);
        }
        Ok(Self {
            formation,
            epoch: FIRST_EPOCH,
            // At once, so that the ranks are known.
            due: now.after(BEAT),
            report: watch::Sender::new(report),
            is_up: watch::Sender::new(leader.is_some()),
            leader,
            awaited,
            options: *options,
            scheduler: scheduler(options),
            running: HashMap::new(),
            moving: Vec::new(),
            clock,
            inbox,
            next_report: now,
            metrics: WorkerMetrics::default(),
        })
    }

    pub(super) fn observed_by(self, metrics: WorkerMetrics) -> Self {
        metrics.up(self.leader.is_some());
        Self { metrics, ..self }
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.scheduler.capacity()
    }

    pub(super) fn is_up(&self) -> watch::Receiver<bool> {
        self.is_up.subscribe()
    }

    pub(super) fn report(&self) -> watch::Receiver<GroupReport> {
        self.report.subscribe()
    }

    /// The group begins something.
    fn enter(&self, phase: Phase) {
        let now = self.clock.now();
        self.report.send_modify(|report| report.enter(phase, now));
    }

    /// The group has done something.
    fn done(&self) {
        let Some(leader) = &self.leader else { return };
        let (now, steps, figures) = (self.clock.now(), leader.steps(), leader.figures());
        self.report.send_modify(|report| report.done(steps, Some(&figures), now));
    }

    pub(super) fn run(mut self, capacity: &watch::Sender<Capacity>) {
        while self.take_commands().is_ok() {
            let now = self.clock.now();
            self.drop_ended(now);
            self.sweep();
            self.keep_group(now);
            let plan = self.leader.as_ref().map(|_| self.scheduler.plan(now));
            if let Some(plan) = plan.filter(|plan| !plan.is_empty()) {
                self.execute(plan);
            }
            if self.scheduler.is_idle() || self.next_report <= now {
                self.next_report = now.after(CAPACITY_PERIOD);
                let latest = self.scheduler.capacity();
                self.metrics.pool(&latest, self.scheduler.archived());
                capacity.send_if_modified(|held| std::mem::replace(held, latest) != latest);
            }
        }
        if let Some(leader) = self.leader.take() {
            leader.end();
        }
    }

    /// Tells ranks that the leader is there when they have heard nothing for a while; forms a group that is down.
    fn keep_group(&mut self, now: Tick) {
        if now < self.due {
            return;
        }
        self.due = now.after(BEAT);
        match &mut self.leader {
            Some(leader) if leader.has_followers() => match leader.beat() {
                Ok(()) => {
                    self.done();
                    self.formation.turn_away();
                }
                Err(error) => self.fail_group(&error),
            },
            Some(_) => self.done(),
            None => self.form(),
        }
    }

    fn form(&mut self) {
        match self.formation.form(self.epoch + 1) {
            Ok(leader) => {
                self.epoch += 1;
                let (timers, now) = (leader.timers(), self.clock.now());
                self.report.send_modify(|report| report.formed(self.epoch, timers, now));
                self.leader = Some(leader);
                self.due = now.after(BEAT);
                self.awaited.clear();
                tracing::info!(epoch = self.epoch, "all ranks are there");
                self.metrics.up(true);
                self.is_up.send_replace(true);
            }
            Err(error) => {
                if let FormError::Missing { ranks, world } = &error {
                    self.report.send_modify(|report| report.missing(ranks));
                    self.awaited.tell(ranks, (*world, self.formation.meeting()), self.clock.now());
                }
                tracing::debug!(%error, "the group is not up yet");
            }
        }
    }

    /// How long an idle driver waits for commands; `None`: until one comes.
    fn patience(&self) -> Option<Duration> {
        match &self.leader {
            Some(leader) if !leader.has_followers() => None,
            Some(_) | None => Some(self.due.since(self.clock.now())),
        }
    }

    /// Takes what waits; blocks only when nothing can run.
    fn take_commands(&mut self) -> Result<(), Stopped> {
        loop {
            let patience = if self.scheduler.is_idle() {
                self.patience()
            } else if self.all_paused() {
                Some(PAUSED_POLL)
            } else {
                Some(Duration::ZERO)
            };
            let received = match patience {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(limit) => self.inbox.recv_timeout(limit),
            };
            match received {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
            }
            if self.scheduler.is_idle() {
                // A close or a refusal changed the capacity, and no step will report it.
                return Ok(());
            }
        }
    }

    fn all_paused(&self) -> bool {
        !self.running.is_empty() && self.running.values().all(|turn| is_full(&turn.events))
    }

    fn obey(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Run(turn) => self.submit(*turn),
            Command::Fork { from, to, done } => {
                self.scheduler.fork(&from, &to, now);
                let _ = done.send(());
            }
            Command::Close { key, done } => {
                // Who closes a session has it: what runs for it still is of a turn that has ended, or was not let in.
                let mut freed = 0;
                for id in self.scheduler.of_session(&key) {
                    freed += self.scheduler.discard(id, now);
                    self.running.remove(&id);
                }
                let _ = done.send(freed + self.scheduler.close(&key));
            }
            Command::Live { keys, done } => {
                let _ = done.send(keys.iter().map(|key| self.scheduler.live(key)).collect());
            }
            Command::Weigh { done } => {
                let (capacity, sessions) = (self.scheduler.capacity(), self.scheduler.weights());
                let _ = done.send(Weights { capacity, sessions });
            }
            Command::Move(command) => self.obey_move(*command, now),
            Command::Inspect { key, done } => {
                let _ = done.send(self.scheduler.inspect(&key));
            }
        }
    }

    fn submit(&mut self, turn: Turn) {
        let Turn { submission, generation, events, arrived, trace } = turn;
        if self.leader.is_none() {
            return send(&events, TurnEvent::Failed(TurnError::GroupDown));
        }
        let id = submission.id;
        match self.scheduler.submit(submission, arrived) {
            Ok(()) => {
                let turn = Running { trace: trace.ids(), ..Running::new(generation, events, arrived) };
                self.running.insert(id, turn);
            }
            Err(refusal) => send(&events, TurnEvent::Failed(refusal.into())),
        }
    }

    /// Aborts turns whose reader is gone or whose deadline passed, and pauses those whose reader is slow.
    fn drop_ended(&mut self, now: Tick) {
        for id in self.scheduler.expire(now) {
            self.fail(id, TurnError::Deadline);
        }
        let gone: Vec<SequenceId> =
            self.running.iter().filter(|(_, turn)| turn.events.is_closed()).map(|(&id, _)| id).collect();
        for id in gone {
            self.scheduler.abort(id, now);
            self.running.remove(&id);
            tracing::debug!(sequence = id.0, "the reader is gone: aborted");
        }
        let Self { running, scheduler, .. } = self;
        scheduler.pause(|id| running.get(&id).is_some_and(|turn| is_full(&turn.events)));
    }

    fn fail(&mut self, id: SequenceId, error: TurnError) {
        if let Some(turn) = self.running.remove(&id) {
            send(&turn.events, TurnEvent::Failed(error));
        }
    }

    fn execute(&mut self, mut plan: StepPlan) {
        self.enter(Phase::Running);
        let Some(leader) = &mut self.leader else { return };
        if leader.has_followers() {
            plan.traces = traces(&self.running, &plan.tables);
        }
        let started = self.clock.now();
        self.due = started.after(BEAT);
        let plan = Arc::new(plan);
        let stepped = leader.step(&plan);
        let took = self.clock.now().since(started);
        self.metrics.step(plan.rows(), took);
        for entry in plan.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Refill { .. })) {
            self.running.entry(entry.sequence).and_modify(|turn| turn.refilling += took);
        }
        if stepped.is_ok() {
            self.done();
        }
        match stepped {
            Ok(Some(logits)) => self.advance(&plan, logits),
            Ok(None) => {}
            Err(error) => self.fail_group(&error),
        }
    }

    /// The group is over: every request ends with an error that allows another try, nothing is left of any session's
    /// rows, and a new epoch begins.
    fn fail_group(&mut self, error: &RankError) {
        tracing::error!(%error, epoch = self.epoch, running = self.running.len(), "the group is down");
        self.leader = None;
        self.metrics.up(false);
        let now = self.clock.now();
        self.report.send_modify(|report| report.failed(error, now));
        self.is_up.send_replace(false);
        self.scheduler = scheduler(&self.options);
        self.moving.clear();
        let reason = error.to_string();
        for (_, turn) in self.running.drain() {
            send(&turn.events, TurnEvent::Failed(TurnError::GroupFailed { reason: reason.clone() }));
        }
        self.due = self.clock.now();
    }

    fn advance(&mut self, plan: &StepPlan, mut logits: Logits) {
        let now = self.clock.now();
        let mut sampled = 0..;
        for entry in &plan.entries {
            let row = if entry.sample { sampled.next() } else { None };
            if let Err(error) = self.advance_entry(entry, row.map(|row| logits.row_mut(row)), now) {
                return self.fail_group(&error);
            }
        }
    }

    fn advance_entry(
        &mut self,
        entry: &PlanEntry,
        logits: Option<&mut [f32]>,
        now: Tick,
    ) -> Result<(), RankError> {
        let id = entry.sequence;
        let (Some(logits), Some(turn)) = (logits, self.running.get_mut(&id)) else {
            return if entry.prune { self.prune(id) } else { Ok(()) };
        };
        turn.first_token.get_or_insert(now);
        if let Some(last) = turn.last_token.replace(now) {
            self.metrics.next_token(now.since(last));
        }
        match turn.generation.next(logits) {
            Ok((piece, finish)) => {
                let token = piece.token;
                // The first token comes from all of the history; the prune comes after it.
                send(&turn.events, TurnEvent::Token(piece));
                if entry.prune {
                    self.prune(id)?;
                }
                match finish {
                    None => self.scheduler.advance(id, token, Verdict::Continue, now),
                    Some(finish) => self.complete(id, token, finish, now),
                }
            }
            Err(error) => {
                self.scheduler.abort(id, now);
                self.fail(id, error.into());
            }
        }
        Ok(())
    }

    fn complete(&mut self, id: SequenceId, token: u32, finish: Finish, now: Tick) {
        let admission = self.scheduler.admission(id);
        let kept: Kept = self.scheduler.kept(id);
        self.scheduler.advance(id, token, Verdict::Finish, now);
        let (Some(turn), Some(admission)) = (self.running.remove(&id), admission) else { return };
        let usage = Usage {
            prompt: admission.prompt,
            reused: admission.reused,
            dead: admission.dead,
            shared: admission.shared,
            generated: turn.generation.generated(),
            kept,
        };
        let first = turn.first_token.unwrap_or(now);
        let seed = turn.generation.seed();
        let (tokens, text) = turn.generation.into_output();
        let end = TurnEnd {
            finish,
            tokens,
            text,
            usage,
            seed,
            queued: admission.queued,
            prefill: first.since(turn.arrived).saturating_sub(admission.queued),
            decode: now.since(first),
            pruning: turn.pruning,
            refilling: turn.refilling,
            timeline: Timeline { arrived: turn.arrived, first_token: first, ended: now, prunes: turn.prunes },
        };
        send(&turn.events, TurnEvent::Finished(Box::new(end)));
    }
}

/// What the ranks are told of turns that are traced: with the first rows of each.
fn traces(running: &HashMap<SequenceId, Running>, tables: &[TableChange]) -> Vec<Traced> {
    let traced = |change: &TableChange| {
        let TableChange::Set { sequence, .. } = change else { return None };
        let (trace, span) = running.get(sequence)?.trace?;
        Some(Traced { sequence: *sequence, trace, span })
    };
    tables.iter().filter_map(traced).collect()
}

fn is_full(events: &mpsc::Sender<TurnEvent>) -> bool {
    events.capacity() < Turn::MIN_ROOM
}

/// A closed channel is noticed before the next step; a full one cannot be, since its turn was paused.
fn send(events: &mpsc::Sender<TurnEvent>, event: TurnEvent) {
    if let Err(mpsc::error::TrySendError::Full(event)) = events.try_send(event) {
        tracing::error!(?event, "an event found no room");
    }
}
