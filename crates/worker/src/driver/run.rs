//! The driver's loop: take commands, plan, execute, sample, stream.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::Capacity;
use hawser_model::executor::{Batch, Executor, LogitRows, Logits, Sequence};
use tokio::sync::{mpsc, watch};

use super::command::{Command, DriverOptions, Turn};
use crate::scheduler::{Kept, RankChange, Scheduler, Scoring, SequenceId, StepPlan, Verdict};
use crate::turn::{Finish, Generation, TurnEnd, TurnError, TurnEvent, Usage};

/// How often a driver looks for room when every sequence waits for its reader.
const PAUSED_POLL: Duration = Duration::from_millis(1);
/// How often the capacity is recounted while steps run.
const CAPACITY_PERIOD: Duration = Duration::from_millis(100);

struct Running {
    generation: Generation,
    events: mpsc::Sender<TurnEvent>,
    first_token: Option<Tick>,
    arrived: Tick,
    /// Time spent in prunes.
    pruning: Duration,
}

pub(super) struct Driver {
    executor: Executor,
    scheduler: Scheduler,
    running: HashMap<SequenceId, Running>,
    clock: Clock,
    inbox: Receiver<Command>,
    next_report: Tick,
}

/// Every handle was dropped.
struct Stopped;

impl Driver {
    pub(super) fn new(
        executor: Executor,
        options: &DriverOptions,
        clock: Clock,
        inbox: Receiver<Command>,
    ) -> Self {
        let scheduler = Scheduler::new(options.limits, options.slots, options.archive_slots);
        let next_report = clock.now();
        Self { executor, scheduler, running: HashMap::new(), clock, inbox, next_report }
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.scheduler.capacity()
    }

    pub(super) fn run(mut self, capacity: &watch::Sender<Capacity>) {
        while self.take_commands().is_ok() {
            let now = self.clock.now();
            self.drop_ended(now);
            let plan = self.scheduler.plan(now);
            if !plan.is_empty() {
                self.execute(&plan);
            }
            if self.scheduler.is_idle() || self.next_report <= now {
                self.next_report = now.after(CAPACITY_PERIOD);
                capacity.send_if_modified(|held| {
                    let latest = self.scheduler.capacity();
                    std::mem::replace(held, latest) != latest
                });
            }
        }
    }

    /// Takes what waits; blocks only when nothing can run.
    fn take_commands(&mut self) -> Result<(), Stopped> {
        loop {
            let command = if self.scheduler.is_idle() {
                self.inbox.recv().map_err(|_| Stopped)?
            } else if self.all_paused() {
                match self.inbox.recv_timeout(PAUSED_POLL) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => return Ok(()),
                    Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                }
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(()),
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return Err(Stopped),
                }
            };
            self.obey(command);
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
            Command::Run(turn) => self.submit(*turn, now),
            Command::Fork { from, to, done } => {
                self.scheduler.fork(&from, &to, now);
                let _ = done.send(());
            }
            Command::Close { key, done } => {
                let _ = done.send(self.scheduler.close(&key));
            }
            Command::Live { keys, done } => {
                let _ = done.send(keys.iter().map(|key| self.scheduler.live(key)).collect());
            }
            Command::Inspect { key, done } => {
                let _ = done.send(self.scheduler.inspect(&key));
            }
        }
    }

    fn submit(&mut self, turn: Turn, now: Tick) {
        let Turn { submission, generation, events } = turn;
        let id = submission.id;
        match self.scheduler.submit(submission, now) {
            Ok(()) => {
                self.running.insert(
                    id,
                    Running { generation, events, first_token: None, arrived: now, pruning: Duration::ZERO },
                );
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
        for (&id, turn) in &self.running {
            self.scheduler.pause(id, is_full(&turn.events));
        }
    }

    fn fail(&mut self, id: SequenceId, error: TurnError) {
        if let Some(turn) = self.running.remove(&id) {
            send(&turn.events, TurnEvent::Failed(error));
        }
    }

    fn execute(&mut self, plan: &StepPlan) {
        for change in &plan.changes {
            self.change(change);
        }
        if plan.entries.is_empty() {
            return;
        }
        let sequences: Vec<Sequence<'_>> = plan
            .entries
            .iter()
            .zip(self.scheduler.contexts(plan))
            .map(|(entry, (context, positions))| Sequence {
                rows: entry.rows.clone(),
                context,
                positions,
                logits: if entry.sample { LogitRows::Last } else { LogitRows::None },
                observe: entry.observe.clone(),
            })
            .collect();
        let batch = Batch {
            tokens: &plan.tokens,
            positions: &plan.positions,
            slots: &plan.slots,
            sequences: &sequences,
        };
        match self.executor.step(&batch) {
            Ok(logits) => {
                for (observe, recursion) in
                    plan.entries.iter().filter_map(|e| e.observe.as_ref().zip(e.remember))
                {
                    self.executor.remember(observe.memory, recursion);
                }
                self.advance(plan, logits);
            }
            Err(error) => self.fail_step(plan, &error.to_string()),
        }
    }

    fn change(&mut self, change: &RankChange) {
        match change {
            RankChange::Begin(id) => self.executor.begin_memory(*id),
            RankChange::TakeBack(id) => self.executor.take_back_memory(*id),
            RankChange::Fork { from, to } => self.executor.fork_memory(*from, *to),
            RankChange::Forget(id) => self.executor.forget_memory(*id),
            RankChange::Move(row) => self.executor.move_row(row),
        }
    }

    /// Scores a sequence's history, evicts what the policy does not keep, and brings back what the request asks for.
    fn prune(&mut self, id: SequenceId) {
        let started = self.clock.now();
        let scores = self.scheduler.scoring(id).and_then(|scoring| score(&mut self.executor, &scoring));
        self.scheduler.settle(id, scores);
        // What the prune moved to the archive is scored there.
        for change in self.scheduler.take_changes() {
            self.change(&change);
        }
        if let Some(scoring) = self.scheduler.revival(id) {
            let scores = score(&mut self.executor, &scoring);
            let exchanged = self.scheduler.settle_revival(id, scores.as_deref());
            tracing::debug!(sequence = id.0, revived = exchanged.revived.len(), "a revival was decided");
        }
        if let Some(turn) = self.running.get_mut(&id) {
            turn.pruning += self.clock.now().since(started);
        }
    }

    fn fail_step(&mut self, plan: &StepPlan, detail: &str) {
        tracing::error!(detail, rows = plan.rows(), "a step failed");
        let now = self.clock.now();
        for entry in &plan.entries {
            self.scheduler.abort(entry.sequence, now);
            self.fail(entry.sequence, TurnError::Step { detail: detail.to_owned() });
        }
    }

    fn advance(&mut self, plan: &StepPlan, mut logits: Logits) {
        let now = self.clock.now();
        let mut sampled = 0..;
        for entry in &plan.entries {
            let id = entry.sequence;
            let row = if entry.sample { sampled.next() } else { None };
            let (Some(row), Some(turn)) = (row, self.running.get_mut(&id)) else {
                if entry.prune {
                    self.prune(id);
                }
                continue;
            };
            turn.first_token.get_or_insert(now);
            match turn.generation.next(logits.row_mut(row)) {
                Ok((piece, finish)) => {
                    let token = piece.token;
                    // The first token comes from all of the history; the prune comes after it.
                    send(&turn.events, TurnEvent::Token(piece));
                    if entry.prune {
                        self.prune(id);
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
        }
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
        };
        send(&turn.events, TurnEvent::Finished(Box::new(end)));
    }
}

fn score(executor: &mut Executor, scoring: &Scoring<'_>) -> Option<Vec<i64>> {
    // Only the ranks of a group can fail at a score. The event then goes on without one, as where nothing is remembered;
    // the group's next step fails too, and with it all of its turns.
    let scored = executor.score(&scoring.request());
    let scores = scored.inspect_err(|error| tracing::error!(%error, "a score failed")).ok()??;
    if scores.non_finite > 0 {
        tracing::warn!(count = scores.non_finite, "scores were no numbers and count as none");
    }
    Some(scores.values)
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
