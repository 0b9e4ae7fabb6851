//! What a group measures of its work, and the watch over one turn.
//!
//! Times are those of the driver's clock. Never labels by session or tenant.

use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::{Capacity, Owner};
use hawser_common::telemetry::{
    Counter, CounterBy, Gauge, GaugeBy, Histogram, LONG_S, Label as _, Meter, Metric, Outcome, SHORT_S, Span,
    SpanKind, Telemetry, TraceParent,
};
use hawser_common::{ErrorCode, SessionId, label, metrics};

use crate::turn::{Timeline, TurnEnd};

label! {
    /// Where the rows of a prompt's tokens came from.
    pub(crate) enum Source: "source" {
        /// The session had them.
        Own = "own",
        /// Computed for another session that begins alike.
        Shared = "shared",
        /// Nobody had them.
        Missed = "missed",
    }
}

label! {
    /// What a slot is doing.
    pub(crate) enum SlotState: "state" {
        Free = "free",
        /// Held by a session that runs or waits.
        Live = "live",
        /// Held by idle sessions or for sharing: it may be taken.
        Idle = "idle",
        /// Beside the pool: a copy of an evicted row.
        Archived = "archived",
    }
}

label! {
    /// Which way a session went.
    pub enum Moved: "direction" {
        In = "in",
        Out = "out",
    }
}

label! {
    /// How a move that began at this group ended.
    pub enum MoveEnd: "outcome" {
        /// Another group has the session, since this one drains.
        Drained = "drained",
        /// Another group has the session, since it was less loaded.
        Rebalanced = "rebalanced",
        /// The session stays: it was refused, or it failed, or a turn came.
        Stayed = "stayed",
        /// The group drains, and no other took the session.
        GivenUp = "given_up",
        /// The claim was released, and the other group did not say that it has it.
        Lost = "lost",
    }
}

metrics! {
    TURNS =
        Metric::counter("hawser.worker.turns", "{turn}", "Turns by how they ended at the group.").by("outcome");
    TURN_TIME = Metric::histogram(
        "hawser.worker.turn_duration",
        "s",
        LONG_S,
        "From a turn's arrival at the group to its last frame.",
    );
    FIRST_TOKEN = Metric::histogram(
        "hawser.worker.time_to_first_token",
        "s",
        LONG_S,
        "From a turn's arrival at the group to its first token.",
    );
    BETWEEN = Metric::histogram(
        "hawser.worker.inter_token_latency",
        "s",
        SHORT_S,
        "Between two tokens of one turn, pauses for slow readers included.",
    );
    QUEUE_WAIT = Metric::histogram(
        "hawser.worker.queue_wait",
        "s",
        LONG_S,
        "From a turn's arrival at the leader to its admission.",
    );
    PRUNE_TIME = Metric::histogram(
        "hawser.worker.prune_duration",
        "s",
        SHORT_S,
        "Time of one prune: scoring and evicting.",
    );
    STEP_TIME =
        Metric::histogram("hawser.worker.step_duration", "s", SHORT_S, "Time of one step of all ranks.");
    STEP_ROWS = Metric::histogram(
        "hawser.worker.step_rows",
        "{row}",
        &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0],
        "Rows of one step.",
    );
    RUNNING = Metric::gauge("hawser.worker.running", "{turn}", "Turns that run.");
    QUEUED = Metric::gauge("hawser.worker.queued", "{turn}", "Turns that wait for admission.");
    SESSIONS =
        Metric::gauge("hawser.worker.idle_sessions", "{session}", "Sessions that keep rows between turns.");
    SLOTS =
        Metric::gauge("hawser.worker.slots", "{slot}", "Slots of KV rows, by what they are doing.").by("state");
    RECLAIMED = Metric::gauge(
        "hawser.worker.reclaimed_slots",
        "{slot}",
        "What the group's sessions would hold more if nothing of them had been pruned.",
    );
    RESERVED = Metric::gauge(
        "hawser.worker.reserved_slots",
        "{slot}",
        "What prompts of running and waiting requests have yet to take, as far as retention keeps them.",
    );
    UP = Metric::gauge("hawser.worker.up", "", "1 while all ranks are there, else 0.");
    PROMPT = Metric::counter(
        "hawser.worker.prompt_tokens",
        "{token}",
        "Tokens of prompts, by where their rows came from: the hits of the prefix cache, and what missed it.",
    )
    .by("source");
    GENERATED = Metric::counter("hawser.worker.generated_tokens", "{token}", "Tokens generated.");
    EVICTED =
        Metric::counter("hawser.worker.evicted_tokens", "{token}", "Positions that prunes evicted.");
    FREED =
        Metric::counter("hawser.worker.freed_slots", "{slot}", "Slots that prunes gave back to the pool.");
    REVIVED =
        Metric::counter("hawser.worker.revived_tokens", "{token}", "Positions that came back.");
    REFILLED = Metric::counter(
        "hawser.worker.refilled_tokens",
        "{token}",
        "Positions that came back and were computed again for it.",
    );
    REFILL_ROWS = Metric::counter(
        "hawser.worker.refill_rows",
        "{token}",
        "Tokens run again so that positions could come back, those that were only seen included.",
    );
    ROWS_READ =
        Metric::counter("hawser.worker.kv_rows_read", "{row}", "Positions whose rows decode steps read.");
    ROWS_FULL = Metric::counter(
        "hawser.worker.kv_rows_full",
        "{row}",
        "Positions that the same steps would have read with nothing evicted.",
    );
    MOVED = Metric::counter(
        "hawser.worker.moved_sessions",
        "{session}",
        "Sessions handed over to or from another group.",
    )
    .by("direction");
    MOVES =
        Metric::counter("hawser.worker.moves", "{move}", "Moves of sessions that began here, by how they ended.")
            .by("outcome");
}

/// Instruments of a group. Cheap to clone; the default ones do nothing.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    turns: CounterBy<Outcome>,
    turn_time: Histogram,
    first_token: Histogram,
    between: Histogram,
    queue_wait: Histogram,
    prune_time: Histogram,
    step_time: Histogram,
    step_rows: Histogram,
    running: Gauge,
    queued: Gauge,
    sessions: Gauge,
    slots: GaugeBy<SlotState>,
    reclaimed: Gauge,
    reserved: Gauge,
    up: Gauge,
    prompt: CounterBy<Source>,
    generated: Counter,
    evicted: Counter,
    freed: Counter,
    revived: Counter,
    refilled: Counter,
    refill_rows: Counter,
    rows_read: Counter,
    rows_full: Counter,
    moved: CounterBy<Moved>,
    moves: CounterBy<MoveEnd>,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self::new(&Meter::default())
    }
}

impl WorkerMetrics {
    /// Of the group that `meter` stands for.
    #[must_use]
    pub fn new(meter: &Meter) -> Self {
        Self {
            turns: meter.counter_by(&TURNS),
            turn_time: meter.histogram(&TURN_TIME),
            first_token: meter.histogram(&FIRST_TOKEN),
            between: meter.histogram(&BETWEEN),
            queue_wait: meter.histogram(&QUEUE_WAIT),
            prune_time: meter.histogram(&PRUNE_TIME),
            step_time: meter.histogram(&STEP_TIME),
            step_rows: meter.histogram(&STEP_ROWS),
            running: meter.gauge(&RUNNING),
            queued: meter.gauge(&QUEUED),
            sessions: meter.gauge(&SESSIONS),
            slots: meter.gauge_by(&SLOTS),
            reclaimed: meter.gauge(&RECLAIMED),
            reserved: meter.gauge(&RESERVED),
            up: meter.gauge(&UP),
            prompt: meter.counter_by(&PROMPT),
            generated: meter.counter(&GENERATED),
            evicted: meter.counter(&EVICTED),
            freed: meter.counter(&FREED),
            revived: meter.counter(&REVIVED),
            refilled: meter.counter(&REFILLED),
            refill_rows: meter.counter(&REFILL_ROWS),
            rows_read: meter.counter(&ROWS_READ),
            rows_full: meter.counter(&ROWS_FULL),
            moved: meter.counter_by(&MOVED),
            moves: meter.counter_by(&MOVES),
        }
    }

    /// What the group has left.
    pub(crate) fn pool(&self, capacity: &Capacity, archived: usize) {
        self.slots.set_count(SlotState::Free, capacity.slots_free);
        self.slots.set_count(SlotState::Idle, capacity.slots_idle);
        self.slots.set_count(SlotState::Live, capacity.slots_live());
        self.slots.set_count(SlotState::Archived, archived as u64);
        self.reclaimed.set_count(capacity.slots_reclaimed);
        self.reserved.set_count(capacity.slots_reserved);
        self.sessions.set_count(capacity.sessions);
        self.running.set(capacity.running);
        self.queued.set(capacity.queued);
    }

    pub(crate) fn up(&self, is_up: bool) {
        self.up.set(u8::from(is_up));
    }

    /// One step of all ranks.
    pub(crate) fn step(&self, rows: usize, took: Duration) {
        self.step_rows.count(rows as u64);
        self.step_time.time(took);
    }

    /// A token that came `after` the one before.
    pub(crate) fn next_token(&self, after: Duration) {
        self.between.time(after);
    }

    pub(crate) fn pruned(&self, took: Duration) {
        self.prune_time.time(took);
    }

    /// A session was handed over.
    pub fn moved(&self, direction: Moved) {
        self.moved.add(direction, 1);
    }

    /// A move that began here has ended.
    pub fn move_ended(&self, end: MoveEnd) {
        self.moves.add(end, 1);
        match end {
            MoveEnd::Drained | MoveEnd::Rebalanced => self.moved(Moved::Out),
            MoveEnd::Stayed | MoveEnd::GivenUp | MoveEnd::Lost => {}
        }
    }

    fn finished(&self, end: &TurnEnd) {
        let usage = &end.usage;
        self.queue_wait.time(end.queued);
        self.prompt.add(Source::Own, usage.reused.saturating_sub(usage.shared) as u64);
        self.prompt.add(Source::Shared, usage.shared as u64);
        self.prompt.add(Source::Missed, usage.prompt.saturating_sub(usage.reused) as u64);
        self.generated.add(usage.generated as u64);
        self.evicted.add(usage.kept.evicted as u64);
        self.freed.add(usage.kept.freed as u64);
        self.revived.add(usage.kept.revived as u64);
        self.refilled.add(usage.kept.refilled as u64);
        self.refill_rows.add(usage.kept.refill_rows as u64);
        self.rows_read.add(usage.kept.rows_read);
        self.rows_full.add(usage.kept.rows_full);
    }
}

fn lines(parent: &TraceParent) -> tracing::Span {
    let empty = tracing::field::Empty;
    let lines = tracing::span!(
        tracing::Level::WARN,
        "turn",
        session = empty,
        group = empty,
        epoch = empty,
        trace = empty
    );
    if let Some(trace) = parent.trace_id() {
        lines.record("trace", trace);
    }
    lines
}

/// One turn under watch at its leader, from its arrival to its last frame. Counted once, however it ends; one that
/// nobody ended was given up by its reader.
#[derive(Debug)]
pub(crate) struct TurnWatch {
    metrics: WorkerMetrics,
    clock: Clock,
    arrived: Tick,
    span: Span,
    /// Log lines of this turn stand in it.
    lines: tracing::Span,
    is_ended: bool,
}

impl TurnWatch {
    /// A turn that arrived just now, called from `parent`.
    pub(crate) fn start(
        telemetry: &Telemetry,
        metrics: &WorkerMetrics,
        parent: &TraceParent,
        clock: &Clock,
    ) -> Self {
        let arrived = clock.now();
        let span = telemetry.tracer.span("hawser.turn", SpanKind::Server, parent, clock.wall(arrived));
        let lines = lines(span.parent());
        Self { metrics: metrics.clone(), clock: clock.clone(), arrived, span, lines, is_ended: false }
    }

    /// When the request came.
    pub(crate) fn arrived(&self) -> Tick {
        self.arrived
    }

    /// What spans of ranks hang under.
    pub(crate) fn parent(&self) -> &TraceParent {
        self.span.parent()
    }

    /// The span that log lines of this turn stand in.
    pub(crate) fn lines(&self) -> tracing::Span {
        self.lines.clone()
    }

    /// What it is about.
    pub(crate) fn about(&mut self, session: Option<&SessionId>, owner: &Owner) {
        let lines = &self.lines;
        if let Some(session) = session {
            lines.record("session", session.as_str());
            self.span.text("hawser.session", session);
        }
        lines.record("group", owner.group.as_str());
        lines.record("epoch", owner.epoch.0);
        self.span.text("hawser.group", &owner.group);
        self.span.number("hawser.epoch", owner.epoch.0);
    }

    /// The number that the scheduler knows it by.
    pub(crate) fn request(&mut self, id: u64) {
        self.span.number("hawser.request", id);
    }

    /// It went well.
    pub(crate) fn finished(&mut self, end: &TurnEnd) {
        self.metrics.finished(end);
        self.metrics.first_token.time(end.timeline.first_token.since(self.arrived));
        self.describe(end);
        self.end(Outcome::Ok);
    }

    pub(crate) fn failed(&mut self, code: ErrorCode, reason: impl std::fmt::Display) {
        self.span.failed(code, reason);
        self.end(Outcome::Failed(code));
    }

    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.is_ended, true) {
            tracing::debug!(parent: &self.lines, outcome = outcome.name(), "turn ended");
            self.metrics.turns.add(outcome, 1);
            self.metrics.turn_time.time(self.clock.now().since(self.arrived));
        }
    }

    /// The parts of the turn, as the driver timed them.
    fn describe(&mut self, end: &TurnEnd) {
        if !self.span.is_recording() {
            return;
        }
        let usage = &end.usage;
        self.span.number("hawser.prompt_tokens", usage.prompt as u64);
        self.span.number("hawser.generated_tokens", usage.generated as u64);
        let Timeline { arrived, first_token, ended, prunes } = &end.timeline;
        // One reading of the wall clock for all of them: parts do not overlap by its jitter.
        let (now, wall) = (self.clock.now(), self.clock.wall(self.clock.now()));
        let at = |tick: Tick| wall.checked_sub(now.since(tick)).unwrap_or(wall);
        let admitted = arrived.after(end.queued);
        drop(self.span.child("queue", at(*arrived), at(admitted)));
        let mut prefill = self.span.child("prefill", at(admitted), at(*first_token));
        prefill.number("hawser.reused_tokens", usage.reused as u64);
        prefill.number("hawser.shared_tokens", usage.shared as u64);
        prefill.number("hawser.prefilled_tokens", usage.prompt.saturating_sub(usage.reused) as u64);
        drop(prefill);
        for prune in prunes {
            let mut span = self.span.child("prune", at(prune.from), at(prune.to));
            span.number("hawser.evicted_tokens", prune.evicted as u64);
            span.number("hawser.revived_tokens", prune.revived as u64);
        }
        let mut decode = self.span.child("decode", at(*first_token), at(*ended));
        decode.number("hawser.kv_rows_read", usage.kept.rows_read);
        decode.number("hawser.kv_rows_full", usage.kept.rows_full);
        decode.number("hawser.refilled_tokens", usage.kept.refilled as u64);
        decode.number("hawser.refill_rows", usage.kept.refill_rows as u64);
    }
}

impl Drop for TurnWatch {
    fn drop(&mut self) {
        if !self.is_ended {
            self.span.failed(ErrorCode::Cancelled, "the reader gave the turn up");
            self.end(Outcome::Failed(ErrorCode::Cancelled));
        }
    }
}
