//! P1: where sessions go, when everybody asks at once.

use std::time::Duration;

use hawser_common::group::Owner;
use hawser_testkit::Script;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::alone;
use crate::client::Agent;
use crate::cluster::{Cluster, Shape, router};

const SESSIONS: usize = 1_000;
const TURNS: usize = 10;
/// Hosts that the sessions' clients share.
const HOSTS: usize = 10;
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// When two of three routers are killed.
const KILLED: Duration = Duration::from_secs(60);

/// Everything that one session does, and the owners that it saw.
async fn session(name: String, recorder: hawser_testkit::history::Recorder, mut rng: StdRng) -> Vec<Owner> {
    let routers: Vec<String> = (0..3).map(router).collect();
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..20_000))).await;
    // The first turn is raced on all three.
    let mut racers: Vec<Agent> =
        (0..3).map(|i| Agent::racing(&name, i, &routers, &recorder, TURN_LIMIT)).collect();
    let [a, b, c] = racers.as_mut_slice() else { return Vec::new() };
    let (a, b, c) = tokio::join!(a.turn(0), b.turn(1), c.turn(2));
    let mut owners: Vec<Owner> = [a, b, c].into_iter().flatten().collect();
    assert_eq!(owners.len(), 3, "a first turn of {name} fails");
    let mut agent = Agent::new(&name, &routers, &recorder, TURN_LIMIT);
    for _ in 1..TURNS {
        owners.push(agent.turn(rng.random_range(0..3)).await.expect("nothing is broken"));
    }
    tokio::time::sleep(KILLED.saturating_sub(turmoil::elapsed()) + Duration::from_secs(1)).await;
    for _ in 0..2 {
        owners.push(agent.turn(0).await.expect("one router is enough"));
    }
    owners
}

fn simulation(seed: u64) -> String {
    let shape = Shape {
        workers: 4,
        ttl: Duration::from_secs(10),
        script: Script { tokens: 2, prefill: Duration::from_millis(20), step: Duration::from_millis(10) },
        limit: Duration::from_secs(300),
        ..Shape::default()
    };
    let mut cluster = Cluster::new(seed, shape);
    for host in 0..HOSTS {
        let recorder = cluster.recorder.clone();
        cluster.sim.client(format!("agents-{host}"), async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let names = (0..SESSIONS / HOSTS).map(|i| format!("session-{host}-{i}"));
            let sessions = names.enumerate().map(|(i, name)| {
                let rng = StdRng::seed_from_u64(seed.wrapping_mul(7919) + (host * SESSIONS + i) as u64);
                session(name, recorder.clone(), rng)
            });
            for owners in futures_util::future::join_all(sessions).await {
                assert!(
                    owners.windows(2).all(|pair| pair[0] == pair[1]),
                    "a session sees several owners: {owners:?}"
                );
            }
            Ok(())
        });
    }
    cluster.run_until(KILLED);
    for i in 1..3 {
        cluster.note(format!("{} is killed", router(i)));
        cluster.sim.crash(router(i));
    }
    cluster.finish();
    cluster.conclude()
}

#[test]
fn p1_every_session_sees_one_worker_whichever_router_it_asks() {
    let test = "placing::p1_every_session_sees_one_worker_whichever_router_it_asks";
    for result in alone::run(test, &[alone::wanted().unwrap_or(1)], simulation) {
        println!("{result}");
        // Three first turns, nine more, and two by the router that is left.
        assert!(result.contains(&format!("{} turns finished", SESSIONS * (3 + TURNS - 1 + 2))), "{result}");
    }
}
