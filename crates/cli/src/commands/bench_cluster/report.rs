//! What a run gives: numbers, what was promised of them, and how both are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::cluster::ROUTER_THREADS;
use super::history::Verdict;
use super::meter::quantile;
use super::plan::Plan;
use super::tally::Tally;
use crate::console::{bold, bytes, count, counted, line};
use crate::table::{Align, Table};

/// One phase of a run: the first turns of all sessions, or the later ones.
#[derive(Debug, Default, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    pub turns: u64,
    pub turns_per_s: f64,
    pub frames: u64,
    pub frames_per_s: f64,
    /// CPU time by the names of threads.
    pub cpu_s: BTreeMap<&'static str, f64>,
    /// Share of the machine's CPU time that all of this took.
    pub load: f64,
    pub router_cpu_us_per_turn: f64,
    /// Frames for a second of one core.
    pub frames_per_router_core_s: f64,
    pub first_token_p50_us: u32,
    pub first_token_p95_us: u32,
    pub first_token_p99_us: u32,
    /// Share of prompt tokens whose rows were there already.
    pub reused: f64,
    /// Sessions claimed meanwhile, the calls that it took, and sessions given up.
    pub store_calls: BTreeMap<&'static str, u64>,
}

/// What a router adds to a warm turn: from sending to the first token, without the leader's own work. Beside it, what
/// anything in between adds that passes bytes on, or calls.
#[derive(Debug, Default, Serialize)]
pub struct Added {
    pub routed_turns: usize,
    pub direct_turns: usize,
    pub passing_turns: usize,
    pub routed_p50_us: u32,
    pub routed_p99_us: u32,
    pub direct_p50_us: u32,
    pub direct_p99_us: u32,
    pub added_p50_us: u32,
    pub added_p99_us: u32,
    pub hop_p50_us: u32,
    pub hop_p99_us: u32,
    pub calling_turns: usize,
    pub call_p50_us: u32,
    pub call_p99_us: u32,
}

/// A promise, and what was found.
#[derive(Debug, Serialize)]
pub struct Check {
    pub what: &'static str,
    pub target: String,
    pub found: String,
    pub met: bool,
}

/// Times to the first token and reuse of one way to place.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    pub strategy: &'static str,
    pub first_token_p50_us: u32,
    pub first_token_p95_us: u32,
    pub reused: f64,
    pub seconds: f64,
    pub errors: u64,
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    pub hawser: &'static str,
    pub cores: usize,
    pub store: &'static str,
    pub plan: Plan,
    pub phases: Vec<Phase>,
    pub added: Option<Added>,
    /// Turns of the group with the fewest and of the one with the most.
    pub turns_per_group: (u64, u64),
    pub same_owner: f64,
    pub session_lost: u64,
    pub errors: BTreeMap<String, u64>,
    pub sessions_given_up: u64,
    pub double_owners: u64,
    pub served_by_strangers: u64,
    pub told: Vec<String>,
    pub router_memory_bytes: Option<u64>,
    pub process_memory_bytes: u64,
    pub threads: usize,
    /// New sessions per second where each is claimed in a transaction of its own.
    pub claimed_singly_per_s: Option<f64>,
    pub compared: Vec<Compared>,
    pub checks: Vec<Check>,
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn per(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Phase {
    pub fn of(
        name: &'static str,
        tally: &Tally,
        took: Duration,
        (all, cpu): (Duration, &BTreeMap<&'static str, Duration>),
    ) -> Self {
        let mut first = tally.first_token.clone();
        first.sort_unstable();
        let seconds = took.as_secs_f64();
        let router_cpu_s = cpu.get(ROUTER_THREADS).copied().unwrap_or_default().as_secs_f64();
        Self {
            name,
            seconds,
            turns: tally.turns,
            turns_per_s: per(tally.turns, seconds),
            frames: tally.frames,
            frames_per_s: per(tally.frames, seconds),
            cpu_s: cpu.iter().map(|(name, time)| (*name, time.as_secs_f64())).collect(),
            load: if seconds > 0.0 { all.as_secs_f64() / (seconds * cores() as f64) } else { 0.0 },
            router_cpu_us_per_turn: router_cpu_s * 1e6 / tally.first_token.len().max(1) as f64,
            frames_per_router_core_s: per(tally.frames, router_cpu_s),
            first_token_p50_us: quantile(&first, 0.5),
            first_token_p95_us: quantile(&first, 0.95),
            first_token_p99_us: quantile(&first, 0.99),
            reused: ratio(tally.reused_tokens, tally.prompt_tokens),
            store_calls: BTreeMap::new(),
        }
    }
}

impl Added {
    pub fn of(tally: &Tally) -> Self {
        let sorted = |times: &Vec<u32>| {
            let mut times = times.clone();
            times.sort_unstable();
            times
        };
        let (routed, direct) = (sorted(&tally.overhead_routed), sorted(&tally.overhead_direct));
        let (passing, calling) = (sorted(&tally.overhead_passing), sorted(&tally.overhead_calling));
        let at = |share| [&routed, &direct, &passing, &calling].map(|times| quantile(times, share));
        let [routed_p50_us, direct_p50_us, passing_p50_us, calling_p50_us] = at(0.5);
        let [routed_p99_us, direct_p99_us, passing_p99_us, calling_p99_us] = at(0.99);
        Self {
            routed_turns: routed.len(),
            direct_turns: direct.len(),
            passing_turns: passing.len(),
            routed_p50_us,
            routed_p99_us,
            direct_p50_us,
            direct_p99_us,
            added_p50_us: routed_p50_us.saturating_sub(direct_p50_us),
            added_p99_us: routed_p99_us.saturating_sub(direct_p99_us),
            hop_p50_us: passing_p50_us.saturating_sub(direct_p50_us),
            hop_p99_us: passing_p99_us.saturating_sub(direct_p99_us),
            calling_turns: calling.len(),
            call_p50_us: calling_p50_us.saturating_sub(direct_p50_us),
            call_p99_us: calling_p99_us.saturating_sub(direct_p99_us),
        }
    }
}

impl Report {
    pub fn new(plan: &Plan, store: &'static str) -> Self {
        Self {
            hawser: env!("CARGO_PKG_VERSION"),
            cores: cores(),
            store,
            plan: plan.clone(),
            phases: Vec::new(),
            added: None,
            turns_per_group: (0, 0),
            same_owner: 0.0,
            session_lost: 0,
            errors: BTreeMap::new(),
            sessions_given_up: 0,
            double_owners: 0,
            served_by_strangers: 0,
            told: Vec::new(),
            router_memory_bytes: None,
            process_memory_bytes: super::meter::resident(),
            threads: super::meter::threads(),
            claimed_singly_per_s: None,
            compared: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Takes over what all streams counted.
    pub fn count(&mut self, tally: &Tally, verdict: Verdict) {
        let turns = || tally.groups.values().copied();
        self.turns_per_group = (turns().min().unwrap_or(0), turns().max().unwrap_or(0));
        self.same_owner = ratio(tally.stayed, tally.stayed + tally.moved);
        self.session_lost = tally.lost;
        self.errors.clone_from(&tally.errors);
        self.sessions_given_up = tally.given_up;
        self.double_owners = verdict.doubles;
        self.served_by_strangers = verdict.strangers;
        self.told = verdict.told;
    }

    pub fn errors_in_all(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Notes a promise.
    pub fn check(&mut self, what: &'static str, target: impl Into<String>, (found, met): (String, bool)) {
        self.checks.push(Check { what, target: target.into(), found, met });
    }

    /// Prints it for people.
    pub fn print(&self) {
        let plan = &self.plan;
        line(bold(format!(
            "{:?} at scale {}: {}, {}, {} of {} by {}; store: {}",
            plan.preset,
            plan.scale,
            counted(plan.routers as u64, "router"),
            counted(plan.groups as u64, "group"),
            counted(plan.sessions as u64, "session"),
            counted(plan.turns.into(), "turn"),
            counted(plan.streams as u64, "stream"),
            self.store,
        )));
        if !self.phases.is_empty() {
            line(self.phase_table());
        }
        for phase in &self.phases {
            let calls = phase.store_calls.iter().filter(|(_, calls)| **calls > 0);
            let calls: Vec<String> = calls.map(|(name, calls)| format!("{name} {}", count(*calls))).collect();
            let calls = if calls.is_empty() { "none".to_owned() } else { calls.join(", ") };
            line(format!("calls of the store, {}: {calls}", phase.name));
            let each = |cpu: f64| cpu * 1e6 / phase.turns.max(1) as f64;
            let cpu = phase.cpu_s.iter().map(|(name, cpu)| format!("{name} {:.0}", each(*cpu)));
            line(format!("µs of CPU per turn, {}: {}", phase.name, cpu.collect::<Vec<_>>().join(", ")));
            line(format!("load, {}: {:.0} % of {} cores", phase.name, phase.load * 100.0, self.cores));
        }
        if let Some(added) = &self.added {
            line(format!(
                "a warm turn's way to its first token, without the leader's work: {} µs through a router and {} µs past it at the median, {} and {} µs at p99",
                added.routed_p50_us, added.direct_p50_us, added.routed_p99_us, added.direct_p99_us
            ));
            line(format!(
                "of that, what any hop adds that only passes bytes on: {} µs at the median, {} µs at p99; that only passes HTTP/2 calls on: {} µs, {} µs",
                added.hop_p50_us, added.hop_p99_us, added.call_p50_us, added.call_p99_us
            ));
        }
        if let Some(singly) = self.claimed_singly_per_s {
            line(format!("with one claim in a transaction: {singly:.0} new sessions per second"));
        }
        self.print_ends();
        if !self.compared.is_empty() {
            line(self.compared_table());
        }
        self.print_checks();
    }

    fn print_ends(&self) {
        if !self.phases.is_empty() {
            let errors: Vec<String> = self.errors.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
            line(format!(
                "same owner {:.2} %; turns per group {} to {}; sessions lost and sent again {}; errors: {}; sessions given up {}",
                self.same_owner * 100.0,
                count(self.turns_per_group.0),
                count(self.turns_per_group.1),
                count(self.session_lost),
                if errors.is_empty() { "none".to_owned() } else { errors.join(", ") },
                self.sessions_given_up,
            ));
            line(format!(
                "double owners {}, turns served by a group without the claim {}",
                self.double_owners, self.served_by_strangers
            ));
            self.told.iter().for_each(|text| line(format!("  {text}")));
        }
        let router = self.router_memory_bytes.map(|router| format!(" (one router: {})", bytes(router)));
        line(format!(
            "memory of all in this process {}{}, {}",
            bytes(self.process_memory_bytes),
            router.unwrap_or_default(),
            counted(self.threads as u64, "thread")
        ));
    }

    fn print_checks(&self) {
        for check in &self.checks {
            let verdict = if check.met { "met   " } else { "MISSED" };
            line(format!("{verdict} {}: {} (target {})", check.what, check.found, check.target));
        }
    }

    fn phase_table(&self) -> Table {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("PHASE", Align::Left),
            ("TURNS", right),
            ("TURNS/S", right),
            ("FRAMES/S", right),
            ("ROUTER µS/TURN", right),
            ("FRAMES/CORE·S", right),
            ("TTFT P50 µS", right),
            ("P95", right),
            ("P99", right),
            ("REUSED", right),
        ]);
        for phase in &self.phases {
            table.row(vec![
                phase.name.to_owned(),
                count(phase.turns),
                format!("{:.0}", phase.turns_per_s),
                format!("{:.0}", phase.frames_per_s),
                format!("{:.0}", phase.router_cpu_us_per_turn),
                format!("{:.0}", phase.frames_per_router_core_s),
                count(phase.first_token_p50_us.into()),
                count(phase.first_token_p95_us.into()),
                count(phase.first_token_p99_us.into()),
                format!("{:.1} %", phase.reused * 100.0),
            ]);
        }
        table
    }

    fn compared_table(&self) -> Table {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("PLACEMENT", Align::Left),
            ("TTFT P50 µS", right),
            ("P95 µS", right),
            ("REUSED", right),
            ("SECONDS", right),
            ("ERRORS", right),
        ]);
        for row in &self.compared {
            table.row(vec![
                row.strategy.to_owned(),
                count(row.first_token_p50_us.into()),
                count(row.first_token_p95_us.into()),
                format!("{:.1} %", row.reused * 100.0),
                format!("{:.1}", row.seconds),
                count(row.errors),
            ]);
        }
        table
    }
}
