//! Cases of one fault each: P8, P9, P10, P11.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_testkit::Script;
use hawser_testkit::history::{End, Entry, Event};

use crate::alone;
use crate::client::{Agent, connect};
use crate::cluster::{Cluster, Shape, router, worker};
use crate::faults::{Fault, Plan};

/// The workers' default.
const TTL: Duration = Duration::from_secs(10);
const BROKEN: Duration = Duration::from_secs(8);
const SECOND: Duration = Duration::from_secs(1);

fn shape() -> Shape {
    Shape { ttl: TTL, limit: Duration::from_secs(300), ..Shape::default() }
}

/// Agents that talk until `until`, and until a turn that began then has ended well.
fn add_agents(cluster: &mut Cluster, count: usize, until: Duration) {
    let routers: Vec<String> = (0..cluster.shape.routers).map(router).collect();
    let give_up = until + cluster.shape.rules().recovery;
    for i in 0..count {
        let (recorder, routers) = (cluster.recorder.clone(), routers.clone());
        cluster.sim.client(format!("agent-{i}"), async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let mut agent = Agent::new(&format!("session-{i}"), &routers, &recorder, TTL * 2);
            loop {
                let began = turmoil::elapsed();
                let ended_well = agent.turn(i % routers.len()).await.is_ok();
                let now = turmoil::elapsed();
                if now > give_up || (ended_well && began >= until) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
}

/// Runs with one fault; gives the history once the rules hold.
fn broken(mut cluster: Cluster, fault: Fault, length: Duration) -> Vec<Entry> {
    let mut plan = Plan::of(fault, BROKEN, BROKEN + length);
    let mut is_healed = false;
    loop {
        plan.apply(&mut cluster);
        if !is_healed && plan.is_over() {
            is_healed = true;
            cluster.recorder.record(Event::Healed);
        }
        if cluster.step() {
            break;
        }
    }
    cluster.conclude();
    cluster.history()
}

/// How often each group has registered.
fn registrations(history: &[Entry]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in history {
        if let Event::Registered { owner } = &entry.event {
            *counts.entry(owner.group.to_string()).or_default() += 1;
        }
    }
    counts
}

fn ends(history: &[Entry], from: Duration, to: Duration) -> (usize, usize) {
    let within = history.iter().filter(|entry| entry.at.0 >= from && entry.at.0 < to);
    let ends = within.filter_map(|entry| match &entry.event {
        Event::Ended { end, .. } => Some(matches!(end, End::Finished { .. })),
        _ => None,
    });
    ends.fold((0, 0), |(well, failed), is_well| if is_well { (well + 1, failed) } else { (well, failed + 1) })
}

fn paused(seed: u64, length: Duration) -> String {
    let mut cluster = Cluster::new(seed, shape());
    add_agents(&mut cluster, 6, BROKEN + length);
    let history = broken(cluster, Fault::PauseStore, length);
    // The last renewal lies at most a third of the lease's time back, and a tenth is kept as a margin.
    let relied_on = TTL * 5 / 10;
    let (well, failed) = ends(&history, BROKEN, BROKEN + length.min(relied_on));
    assert!(
        well > 0 && failed == 0,
        "{well} turns end well and {failed} do not while the lease is known to be valid"
    );
    format!("{:?}, {failed} failed", registrations(&history))
}

#[test]
fn p8_an_etcd_that_stands_still_for_seconds_is_not_noticed() {
    let simulation = |seed| paused(seed, Duration::from_secs(3));
    let test = "outages::p8_an_etcd_that_stands_still_for_seconds_is_not_noticed";
    for result in alone::run(test, &[1, 2, 3], simulation) {
        assert_eq!(result, r#"{"worker-0": 1, "worker-1": 1, "worker-2": 1}, 0 failed"#);
    }
}

#[test]
fn p8_an_etcd_that_stands_still_for_long_is_survived_by_registering_again() {
    let test = "outages::p8_an_etcd_that_stands_still_for_long_is_survived_by_registering_again";
    let simulation =
        |seed| paused(seed, [5, 20, 60].map(Duration::from_secs)[usize::try_from(seed % 3).unwrap()]);
    for (seed, result) in alone::run(test, &[0, 1, 2], simulation).into_iter().enumerate() {
        // Five seconds may or may not be too long for a lease of ten; more is.
        let again = r#"{"worker-0": 2, "worker-1": 2, "worker-2": 2}, 0 failed"#;
        assert!(seed == 0 || result == again, "{result}");
    }
}

fn many_workers(seed: u64) -> Cluster {
    let shape = Shape {
        workers: 50,
        routers: 1,
        tick: Duration::from_millis(10),
        latency: Duration::from_millis(20),
        ..shape()
    };
    let mut cluster = Cluster::new(seed, shape);
    add_agents(&mut cluster, 2, Duration::from_secs(45));
    cluster
}

fn store_down(seed: u64) -> String {
    let history = broken(many_workers(seed), Fault::Crash("etcd".to_owned()), Duration::from_secs(30));
    let gone = history.iter().filter(|entry| matches!(entry.event, Event::Gone { .. })).count();
    format!("{gone} gone, {} registrations", registrations(&history).values().sum::<usize>())
}

#[test]
fn p9_a_store_that_is_down_for_half_a_minute_costs_fifty_workers_no_lease() {
    let test = "outages::p9_a_store_that_is_down_for_half_a_minute_costs_fifty_workers_no_lease";
    for result in alone::run(test, &[1, 2], store_down) {
        assert_eq!(result, "0 gone, 50 registrations");
    }
}

/// The most registrations within a tenth of a second after leases have ended by themselves.
fn store_unreachable(seed: u64) -> String {
    let history = broken(many_workers(seed), Fault::PauseStore, Duration::from_secs(30));
    let again = BROKEN + Duration::from_secs(30);
    let times: Vec<Duration> = history
        .iter()
        .filter(|entry| entry.at.0 >= again && matches!(entry.event, Event::Registered { .. }))
        .map(|entry| entry.at.0)
        .collect();
    let at_once =
        |from: &Duration| times.iter().filter(|time| *time >= from && **time < *from + SECOND / 10).count();
    let most = times.iter().map(at_once).max().unwrap_or(0);
    let last = times.last().copied().unwrap_or_default().saturating_sub(again);
    assert_eq!(times.len(), 50);
    assert!(most <= 20, "{most} of 50 register within a tenth of a second");
    assert!(last <= TTL, "the last one registers {last:?} after the store is back");
    format!("at most {most} within 100 ms, the last after {last:?}")
}

#[test]
fn p9_workers_that_lost_their_leases_register_again_one_by_one() {
    let test = "outages::p9_workers_that_lost_their_leases_register_again_one_by_one";
    for result in alone::run(test, &[1, 2], store_unreachable) {
        println!("{result}");
    }
}

/// Long turns, so that some run while the lease of their worker ends.
fn cut_off(seed: u64) -> String {
    let script = Script { tokens: 300, prefill: Duration::from_millis(50), step: Duration::from_millis(50) };
    let mut cluster = Cluster::new(seed, Shape { script, ..shape() });
    let healed = BROKEN + Duration::from_secs(40);
    add_agents(&mut cluster, 15, healed);
    let history = broken(cluster, Fault::Cut(worker(0), "etcd".to_owned()), healed - BROKEN);
    let by_cut = |event: &Event| match event {
        Event::Sent { owner, .. } | Event::Served { owner, .. } => owner.group.as_str() == worker(0),
        _ => false,
    };
    let mine = history.iter().filter(|entry| by_cut(&entry.event) && entry.at.0 < healed);
    let last = mine.map(|entry| entry.at.0).max().unwrap_or_default();
    assert!(last > BROKEN, "nothing ran at the worker that is cut off; the test shows nothing");
    assert!(last <= BROKEN + TTL + SECOND, "a worker that was cut off at {BROKEN:?} serves until {last:?}");
    let elsewhere = history.iter().any(|entry| match &entry.event {
        Event::Claimed { owner, .. } => entry.at.0 > BROKEN && owner.group.as_str() != worker(0),
        _ => false,
    });
    assert!(elsewhere, "its sessions go on elsewhere");
    format!("serves until {:?} after the cut", last - BROKEN)
}

#[test]
fn p10_a_worker_that_is_cut_off_stops_before_another_begins() {
    let test = "outages::p10_a_worker_that_is_cut_off_stops_before_another_begins";
    for result in alone::run(test, &[1, 2, 3], cut_off) {
        println!("{result}");
    }
}

/// A worker dies, and no watch is told.
fn untold(seed: u64) -> String {
    let mut cluster = Cluster::new(seed, shape());
    let (sender, seen) = std::sync::mpsc::sync_channel(1_000);
    cluster.sim.client("operator", async move {
        let client = connect(&router(0));
        while turmoil::elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(SECOND / 2).await;
            if let Ok(groups) = client.list_groups().await {
                let ids: Vec<String> = groups.into_iter().map(|group| group.id).collect();
                sender.send((turmoil::elapsed(), ids)).expect("somebody listens");
            }
        }
        Ok(())
    });
    cluster.etcd.lose_deletions(true);
    cluster.run_until(BROKEN);
    cluster.sim.crash(worker(0));
    cluster.finish();
    let gone_at = cluster.history().into_iter().find(|entry| matches!(entry.event, Event::Gone { .. }));
    let gone_at = gone_at.expect("its lease ends").at.0;
    let last = seen.try_iter().filter(|(_, ids)| ids.contains(&worker(0))).map(|(at, _)| at).last();
    let known = last.expect("it was known").saturating_sub(gone_at);
    assert!(known <= TTL * 2, "a group whose end was missed is known for {known:?} after it");
    format!("{known:?}")
}

#[test]
fn p11_a_group_whose_end_was_missed_is_gone_within_two_leases() {
    let test = "outages::p11_a_group_whose_end_was_missed_is_gone_within_two_leases";
    for result in alone::run(test, &[1, 2, 3], untold) {
        println!("{result}");
    }
}
