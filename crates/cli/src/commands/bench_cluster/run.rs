//! The runs: start a cluster, drive it, read the counters, judge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_client::Client;
use hawser_common::clock::Clock;
use hawser_common::group::{Capacity, GroupRecord};
use hawser_common::tasks::Tasks;
use hawser_common::{Epoch, GroupId, SessionId, SessionKey, TenantId};
use hawser_placement::{LeaseId, Store};
use hawser_router::Strategy;
use hawser_worker::WorkerHandle;

use super::cluster::{Cluster, GRACE, GROUP_THREADS, Groups, ROUTER_THREADS, STORE_THREADS, runtime};
use super::drive::{Leaders, Load, leader};
use super::meter::{cpu, cpu_by, resident, threads};
use super::passing::{PASSING_THREADS, call_on, pass};
use super::plan::{Plan, Preset};
use super::report::{Added, Compared, Phase, Report};
use super::tally::Tally;
use crate::console::error;

const CLIENT_THREADS: &str = "bench-client";
/// Threads whose CPU time is told apart; the drivers of the groups have a name of their own.
const PARTS: [&str; 5] = [ROUTER_THREADS, GROUP_THREADS, "hawser-driver", STORE_THREADS, CLIENT_THREADS];
const POLL: Duration = Duration::from_millis(10);
/// Longest wait for a router to hear of every session.
const HEARD: Duration = Duration::from_secs(120);
/// Longest that groups of a run without turns hold.
const LEASE: Duration = Duration::from_secs(600);

/// Runs what `plan` says.
pub fn run(plan: &Plan, etcd: &[String]) -> anyhow::Result<Report> {
    match plan.preset {
        Preset::Memory => memory(plan, etcd),
        Preset::Sticky => sticky(plan, etcd),
        Preset::Warm | Preset::Frames | Preset::Churn => {
            let (mut report, _) = driven(plan, etcd)?;
            judge(&mut report);
            Ok(report)
        }
        Preset::Claims => claims(plan, etcd),
    }
}

fn store_name(etcd: &[String]) -> &'static str {
    if etcd.is_empty() { "embedded, served over gRPC" } else { "etcd" }
}

/// New sessions as the cluster claims them, many in a transaction; then a fifth of them, each in one of its own.
fn claims(plan: &Plan, etcd: &[String]) -> anyhow::Result<Report> {
    let (mut report, _) = driven(plan, etcd)?;
    judge(&mut report);
    error("one claim in a transaction:");
    let sessions = plan.sessions.div_ceil(5);
    let (singly, _) = driven(&Plan { claims_singly: true, sessions, ..plan.clone() }, etcd)?;
    report.claimed_singly_per_s = singly.phases.first().map(|phase| phase.turns_per_s);
    Ok(report)
}

/// The turns of a plan, in two phases: the first of every session, then all others.
fn driven(plan: &Plan, etcd: &[String]) -> anyhow::Result<(Report, Tally)> {
    let clock = Clock::system();
    let mut cluster = Cluster::start(plan, etcd, &clock)?;
    error(format!("starting {} simulated groups …", plan.groups));
    cluster.start_groups(plan.groups)?;
    let clients = runtime(CLIENT_THREADS, 2)?;
    let (between, passing) = (runtime(PASSING_THREADS, 1)?, Tasks::new());
    let leaders = between.block_on(leaders(plan, &cluster, &passing))?;
    let load = clients.block_on(connect(plan, &cluster, leaders))?;
    let mut report = Report::new(plan, store_name(etcd));
    let mut total = Tally::default();
    let phases = [("first turns", 1), ("later turns", plan.turns)];
    for (name, turns) in phases.into_iter().take(if plan.turns > 1 { 2 } else { 1 }) {
        error(format!("{name} …"));
        let churns = (turns > 1).then_some(plan.churn).flatten();
        let churning = churns.map(|churn| start_churn(&mut cluster, &load, churn.groups));
        let before = (clock.now(), cpu_by(&PARTS), cluster.groups.calls.snapshot());
        let all_before = cpu();
        let tally = clients.block_on(load.run(turns));
        let took = clock.now().since(before.0);
        let all = cpu().saturating_sub(all_before);
        let mut by_part = cpu_by(&PARTS);
        for (name, before) in before.1 {
            let now = by_part.entry(name).or_default();
            *now = now.saturating_sub(before);
        }
        let mut phase = Phase::of(name, &tally, took, (all, &by_part));
        let calls = cluster.groups.calls.snapshot();
        phase.store_calls =
            calls.into_iter().map(|(name, calls)| (name, calls - before.2.get(name).unwrap_or(&0))).collect();
        report.phases.push(phase);
        if turns > 1 {
            report.added = plan.direct.then(|| Added::of(&tally));
        }
        total.add(tally);
        if let Some(churning) = churning {
            let workers = clients.block_on(churning).context("the churn ended early")??;
            cluster.workers.extend(workers);
        }
    }
    (report.process_memory_bytes, report.threads) = (resident(), threads());
    report.count(&total, cluster.groups.history.verdict());
    drop(load);
    clients.shutdown_background();
    between.block_on(passing.shutdown(GRACE));
    between.shutdown_background();
    cluster.stop(GRACE);
    Ok((report, total))
}

/// Ways to the leaders past the routers, where the plan goes by them.
async fn leaders(plan: &Plan, cluster: &Cluster, passing: &Tasks) -> anyhow::Result<Leaders> {
    let mut leaders = Leaders::default();
    for worker in cluster.workers.iter().filter(|_| plan.direct) {
        let (group, address) = (worker.group().to_string(), worker.addr());
        leaders.straight.insert(group.clone(), leader(address)?);
        leaders.passing.insert(group.clone(), leader(pass(address, passing).await?)?);
        leaders.calling.insert(group, leader(call_on(address, passing)?)?);
    }
    Ok(leaders)
}

async fn connect(plan: &Plan, cluster: &Cluster, leaders: Leaders) -> anyhow::Result<Arc<Load>> {
    let mut clients = Vec::new();
    for _ in 0..plan.connections {
        for router in &cluster.routers {
            clients.push(Client::connect(&format!("http://{}", router.addr())).await?);
        }
    }
    let shared = (Arc::clone(&cluster.groups.history), cluster.clock.clone());
    Ok(Arc::new(Load::new(plan, clients, leaders, shared)?))
}

type Churning = tokio::task::JoinHandle<anyhow::Result<Vec<WorkerHandle>>>;

/// The first groups leave one by one as the run goes on, and for each another one comes.
fn start_churn(cluster: &mut Cluster, load: &Arc<Load>, count: usize) -> Churning {
    let leaving: Vec<WorkerHandle> = cluster.workers.drain(..count.min(cluster.workers.len())).collect();
    let (groups, load) = (cluster.groups.clone(), Arc::clone(load));
    let tasks = Tasks::new();
    let _runtime = cluster.group_runtime.enter();
    tasks.spawn(churn(groups, load, leaving))
}

async fn churn(
    groups: Groups,
    load: Arc<Load>,
    leaving: Vec<WorkerHandle>,
) -> anyhow::Result<Vec<WorkerHandle>> {
    let sessions = load.plan.sessions as u64;
    let all = sessions * u64::from(load.plan.turns);
    let (count, mut came) = (leaving.len() as u64, Vec::new());
    let (tasks, mut ends) = (Tasks::new(), Vec::new());
    for (index, worker) in (0u64..).zip(leaving) {
        // Spread over the later turns, with some before the first and after the last.
        let due = sessions + (all - sessions) * (index + 1) / (count + 2);
        let until = load.clock.now().after(HEARD);
        while load.done.load(Ordering::Relaxed) < due && load.clock.now() < until {
            tokio::time::sleep(POLL).await;
        }
        let number = load.plan.groups + usize::try_from(index).unwrap_or(0);
        came.push(groups.start(number).await?);
        // It hands its sessions over, while the next one may begin to leave.
        ends.push(tasks.spawn(worker.shutdown(GRACE)));
    }
    for end in ends {
        end.await.context("a group that leaves")?;
    }
    Ok(came)
}

/// What a router holds once it knows every session: the growth of this process by one more router.
fn memory(plan: &Plan, etcd: &[String]) -> anyhow::Result<Report> {
    let clock = Clock::system();
    let mut cluster = Cluster::start(plan, etcd, &clock)?;
    let store = cluster.store()?;
    error(format!("claiming {} sessions for {} groups …", plan.sessions, plan.groups));
    let began = clock.now();
    cluster.group_runtime.block_on(fill(plan, store.as_ref()))?;
    let took = clock.now().since(began);
    let mut grown = None;
    for more in [false, true] {
        let before = resident();
        if more {
            cluster.add_router(plan)?;
        }
        let router = cluster.routers.last().context("a cluster has a router")?;
        let heard = async {
            while router.sessions() < plan.sessions {
                tokio::time::sleep(POLL).await;
            }
        };
        let heard = cluster.group_runtime.block_on(async { tokio::time::timeout(HEARD, heard).await });
        if heard.is_err() {
            bail!("a router knows {} of {} sessions after {HEARD:?}", router.sessions(), plan.sessions);
        }
        grown = more.then(|| resident().saturating_sub(before));
    }
    let mut report = Report::new(plan, store_name(etcd));
    report.router_memory_bytes = grown;
    let rate = plan.sessions as f64 / took.as_secs_f64();
    report.check("sessions claimed", "all", (format!("{} at {rate:.0}/s", plan.sessions), true));
    let limit = 512 << 20;
    let router = grown.unwrap_or(0);
    report.check("memory of a router", "below 512 MiB", (crate::console::bytes(router), router < limit));
    let all = report.process_memory_bytes;
    report.check("memory of store and routers", "below 512 MiB", (crate::console::bytes(all), all < limit));
    cluster.stop(GRACE);
    Ok(report)
}

async fn fill(plan: &Plan, store: &dyn Store) -> anyhow::Result<()> {
    let tenant = TenantId::single();
    let each = plan.sessions.div_ceil(plan.groups);
    for group in 0..plan.groups {
        let id = GroupId::parse(&format!("group-{group:05}"))?;
        let record = GroupRecord {
            id: id.clone(),
            model: "simulated".to_owned(),
            address: format!("http://127.0.0.1:{}", 1 + group % 60_000),
            tp: 1,
            epoch: Epoch(0),
            capacity: Capacity::default(),
            draining: false,
        };
        let lease: LeaseId = store.grant(LEASE).await?.id;
        store.register(lease, record).await?;
        let numbers = (group * each)..((group + 1) * each).min(plan.sessions);
        let session = |number| {
            let session = SessionId::parse(&format!("s-{number:032x}"))?;
            Ok(SessionKey { tenant: tenant.clone(), session })
        };
        let sessions: anyhow::Result<Vec<SessionKey>> = numbers.map(session).collect();
        for part in sessions?.chunks(hawser_placement::MAX_BATCH) {
            store.claim(lease, &id, part.to_vec()).await?;
        }
    }
    Ok(())
}

/// The same load under each way to place, the router's own last.
fn sticky(plan: &Plan, etcd: &[String]) -> anyhow::Result<Report> {
    let mut compared = Vec::new();
    let mut own = None;
    for (name, strategy) in [
        ("round robin", Strategy::RoundRobin),
        ("least loaded", Strategy::LeastLoaded),
        ("sticky", Strategy::Hashed),
        ("hawser", Strategy::Balanced),
    ] {
        error(format!("{name}:"));
        let (report, tally) = driven(&Plan { strategy, ..plan.clone() }, etcd)?;
        let all = Phase::of(name, &tally, Duration::ZERO, (Duration::ZERO, &BTreeMap::new()));
        compared.push(Compared {
            strategy: name,
            first_token_p50_us: all.first_token_p50_us,
            first_token_p95_us: all.first_token_p95_us,
            reused: all.reused,
            seconds: report.phases.iter().map(|phase| phase.seconds).sum(),
            errors: report.errors_in_all(),
        });
        own = Some(report);
    }
    let (Some(mut report), Some((ours, others))) = (own, compared.split_last()) else {
        bail!("nothing was compared");
    };
    let best = others.iter().map(|other| other.first_token_p95_us).min().unwrap_or(0);
    let (found, limit) = (ours.first_token_p95_us, f64::from(best) * 1.05);
    let target = format!("at most 1.05 of the best other, {best} µs");
    report.check("p95 time to first token", target, (format!("{found} µs"), f64::from(found) <= limit));
    let sticky = others.last().map_or(0.0, |sticky| sticky.reused);
    // A thousandth is less than a turn of a session makes.
    let met = ours.reused >= sticky - 0.001;
    let target = format!("at least sticky's, {:.1} %", sticky * 100.0);
    report.check("prompt tokens reused", target, (format!("{:.1} %", ours.reused * 100.0), met));
    report.compared = compared;
    Ok(report)
}

/// What a preset promises.
fn judge(report: &mut Report) {
    let (first, last) = match report.phases.as_slice() {
        [] => return,
        [only] => (only, only),
        [first, .., last] => (first, last),
    };
    let (sessions, frames) = (first.turns_per_s, last.frames_per_router_core_s);
    let claims = last.store_calls.get("claim").unwrap_or(&0) + last.store_calls.get("release").unwrap_or(&0);
    match report.plan.preset {
        Preset::Warm => {
            let (p50, p99) =
                report.added.as_ref().map_or((0, 0), |added| (added.added_p50_us, added.added_p99_us));
            report.check("added at the median", "below 150 µs", (format!("{p50} µs"), p50 < 150));
            report.check("added at p99", "below 1,000 µs", (format!("{p99} µs"), p99 < 1_000));
            report.check("claims on warm turns", "none", (claims.to_string(), claims == 0));
        }
        Preset::Frames => {
            let found = (format!("{frames:.0}"), frames >= 30_000.0);
            report.check("frames per second and router core", "at least 30,000", found);
            let streams = report.plan.streams;
            report.check("streams open", "at least 1,000", (streams.to_string(), streams >= 1_000));
        }
        Preset::Claims => {
            let found = (format!("{sessions:.0}"), sessions >= 5_000.0);
            report.check("new sessions per second", "at least 5,000", found);
        }
        Preset::Churn => {
            let errors = report.errors_in_all();
            report.check("errors but lost sessions", "none", (errors.to_string(), errors == 0));
            let same = report.same_owner;
            report.check("same owner", "at least 96 %", (format!("{:.2} %", same * 100.0), same >= 0.96));
        }
        Preset::Memory | Preset::Sticky => {}
    }
    let double = report.double_owners;
    report.check("double owners", "none", (double.to_string(), double == 0));
}
