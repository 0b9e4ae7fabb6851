//! What a router measures of its work, and the watch over one turn.
//!
//! Never looks into frames, and never labels by session or tenant.

use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::{Clock, Tick};
use hawser_common::group::Owner;
use hawser_common::telemetry::{
    Counter, CounterBy, Histogram, LONG_S, Label as _, Level, LevelGuard, Meter, Metric, Outcome, SHORT_S,
    Span, SpanKind, Telemetry, TraceParent,
};
use hawser_common::{Coded, ErrorCode, SessionId, label, metrics};

use crate::admission::Admission;
use crate::error::RouteError;
use crate::view::View;

label! {
    /// Why a call was offered again.
    pub(crate) enum Retry: "cause" {
        /// The group refused it or could not be reached, and another may take it.
        Refused = "refused",
        /// The session's owner does not answer.
        Waited = "waited",
    }
}

metrics! {
    TURNS =
        Metric::counter("hawser.router.turns", "{turn}", "Turns by how they ended for the client.").by("outcome");
    CALLS =
        Metric::counter("hawser.router.calls", "{call}", "Calls other than turns by how they ended.")
            .by("outcome");
    TURN_TIME = Metric::histogram(
        "hawser.router.turn_duration",
        "s",
        LONG_S,
        "From a turn's arrival at the router to the end of its stream.",
    );
    FIRST_FRAME = Metric::histogram(
        "hawser.router.time_to_first_frame",
        "s",
        LONG_S,
        "From a turn's arrival at the router to the worker's first frame.",
    );
    ADDED = Metric::histogram(
        "hawser.router.added_latency",
        "s",
        SHORT_S,
        "What finding a group added to a call: all but the time in which groups were asked.",
    );
    RETRIES =
        Metric::counter("hawser.router.retries", "{try}", "Calls that were offered again, by why.").by("cause");
    REDIRECTS = Metric::counter(
        "hawser.router.redirects",
        "{call}",
        "Calls that a group passed on to the session's owner.",
    );
    FRAMES = Metric::counter("hawser.router.frames", "{frame}", "Frames relayed to clients.");
    OPEN =
        Metric::gauge("hawser.router.open_streams", "{stream}", "Streams of turns that are open.");
    IN_FLIGHT = Metric::gauge("hawser.router.in_flight", "{call}", "Calls in flight.");
    SESSIONS =
        Metric::gauge("hawser.router.sessions_known", "{session}", "Sessions whose owner is remembered.");
    GROUPS = Metric::gauge("hawser.router.groups_known", "{group}", "Groups that are registered.");
    LISTINGS = Metric::counter(
        "hawser.router.watch_listings",
        "{listing}",
        "Snapshots of the store that were taken over: one at the start, each further one a re-listing.",
    );
    BREAKS =
        Metric::counter("hawser.router.watch_breaks", "{break}", "Times that the store could not be watched.");
    AGE = Metric::gauge(
        "hawser.router.watch_age",
        "s",
        "Time since the store was last heard; groups publish every ten seconds at least.",
    );
}

/// Instruments of a router. Clones share them: every turn takes one along.
#[derive(Clone, Debug)]
pub(crate) struct RouterMetrics(Arc<Instruments>);

#[derive(Debug)]
struct Instruments {
    turns: CounterBy<Outcome>,
    calls: CounterBy<Outcome>,
    turn_time: Histogram,
    first_frame: Histogram,
    added: Histogram,
    retries: CounterBy<Retry>,
    redirects: Counter,
    frames: Counter,
    open: Level,
    listings: Counter,
    breaks: Counter,
}

impl RouterMetrics {
    pub(crate) fn new(meter: &Meter) -> Self {
        Self(Arc::new(Instruments {
            turns: meter.counter_by(&TURNS),
            calls: meter.counter_by(&CALLS),
            turn_time: meter.histogram(&TURN_TIME),
            first_frame: meter.histogram(&FIRST_FRAME),
            added: meter.histogram(&ADDED),
            retries: meter.counter_by(&RETRIES),
            redirects: meter.counter(&REDIRECTS),
            frames: meter.counter(&FRAMES),
            open: meter.level(&OPEN),
            listings: meter.counter(&LISTINGS),
            breaks: meter.counter(&BREAKS),
        }))
    }

    /// A group took a call; `added` is what finding it took besides asking.
    pub(crate) fn placed(&self, added: Duration) {
        self.0.added.time(added);
    }

    pub(crate) fn retried(&self, cause: Retry) {
        self.0.retries.add(cause, 1);
    }

    pub(crate) fn redirected(&self) {
        self.0.redirects.add(1);
    }

    pub(crate) fn called(&self, ended: Result<(), ErrorCode>) {
        self.0.calls.add(outcome(ended), 1);
    }

    pub(crate) fn listed(&self) {
        self.0.listings.add(1);
    }

    pub(crate) fn lost_the_store(&self) {
        self.0.breaks.add(1);
    }
}

fn outcome(ended: Result<(), ErrorCode>) -> Outcome {
    ended.map_or_else(Outcome::Failed, |()| Outcome::Ok)
}

/// Shows what is looked up when somebody wants to know.
pub(crate) fn observe(meter: &Meter, view: &Arc<View>, admission: &Admission) {
    // What a meter holds on to, it holds for ever: a router that has stopped is not among it.
    let of_view = |look: fn(&View) -> Option<f64>| {
        let view = Arc::downgrade(view);
        move || view.upgrade().and_then(|view| look(&view))
    };
    meter.observe(&SESSIONS, of_view(|view| Some(view.sessions_known() as f64)));
    meter.observe(&GROUPS, of_view(|view| Some(view.groups_known() as f64)));
    meter.observe(&AGE, of_view(|view| view.heard_ago().map(|age| age.as_secs_f64())));
    let (alive, admission) = (Arc::downgrade(view), admission.clone());
    meter.observe(&IN_FLIGHT, move || alive.upgrade().map(|_| admission.in_flight() as f64));
}

fn lines(parent: &TraceParent) -> tracing::Span {
    let empty = tracing::field::Empty;
    let lines = tracing::span!(tracing::Level::WARN, "turn", session = empty, trace = empty);
    if let Some(trace) = parent.trace_id() {
        lines.record("trace", trace);
    }
    lines
}

/// One turn under watch, from its arrival to the end of its stream. Counted once, however it ends; one that nobody
/// ended was given up by its client.
#[derive(Debug)]
pub(crate) struct TurnWatch {
    metrics: RouterMetrics,
    clock: Clock,
    arrived: Tick,
    span: Span,
    /// Log lines of this turn stand in it.
    lines: tracing::Span,
    open: Option<LevelGuard>,
    is_ended: bool,
}

impl TurnWatch {
    /// A turn that arrived just now, called from `parent`.
    pub(crate) fn start(
        telemetry: &Telemetry,
        metrics: &RouterMetrics,
        parent: &TraceParent,
        clock: &Clock,
    ) -> Self {
        let arrived = clock.now();
        let span = telemetry.tracer.span("hawser.route", SpanKind::Server, parent, clock.wall(arrived));
        let (metrics, clock, lines) = (metrics.clone(), clock.clone(), lines(span.parent()));
        Self { metrics, clock, arrived, span, lines, open: None, is_ended: false }
    }

    /// What a worker is told of the trace.
    pub(crate) fn parent(&self) -> &TraceParent {
        self.span.parent()
    }

    /// The span that log lines of this turn stand in.
    pub(crate) fn lines(&self) -> tracing::Span {
        self.lines.clone()
    }

    /// Which session it is of.
    pub(crate) fn session(&mut self, session: Option<&SessionId>) {
        if let Some(session) = session {
            self.lines.record("session", session.as_str());
            self.span.text("hawser.session", session);
        }
    }

    /// A group took it, and its first frame is there.
    pub(crate) fn opened(&mut self, owner: &Owner) {
        self.metrics.0.first_frame.time(self.clock.now().since(self.arrived));
        self.open = Some(self.metrics.0.open.enter());
        self.span.text("hawser.group", &owner.group);
        self.span.number("hawser.epoch", owner.epoch.0);
    }

    pub(crate) fn frame(&self) {
        self.metrics.0.frames.add(1);
    }

    /// The stream ended, or never began.
    pub(crate) fn ended(&mut self, error: Option<&RouteError>, frames: u64) {
        self.open = None;
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        self.span.number("hawser.frames", frames);
        if let Some(error) = error {
            self.span.failed(error.code(), error);
        }
        self.count(error.map_or(Ok(()), |error| Err(error.code())));
    }

    fn count(&self, ended: Result<(), ErrorCode>) {
        let outcome = outcome(ended);
        tracing::debug!(parent: &self.lines, outcome = outcome.name(), "turn ended");
        self.metrics.0.turns.add(outcome, 1);
        self.metrics.0.turn_time.time(self.clock.now().since(self.arrived));
    }
}

impl Drop for TurnWatch {
    fn drop(&mut self) {
        if !self.is_ended {
            self.span.failed(ErrorCode::Cancelled, "the client gave the turn up");
            self.count(Err(ErrorCode::Cancelled));
        }
    }
}
