//! Random faults, by seed: whatever goes wrong, the rules of a history hold, and afterwards everything works again.

use std::time::Duration;

use hawser_testkit::history::{Event, Recorder};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::alone;
use crate::client::Agent;
use crate::cluster::{Cluster, Shape, router};
use crate::faults::Plan;

const AGENTS: u64 = 4;
/// Seeds of one run of all tests.
const SEEDS: u64 = 200;
const FAULTS_FROM: Duration = Duration::from_secs(2);
const HEALED: Duration = Duration::from_secs(20);
/// Longest that one turn is tried.
const TURN_LIMIT: Duration = Duration::from_secs(12);

/// Talks until a turn that began after the healing has ended well, or the time for that is over.
async fn talk(mut agent: Agent, mut rng: StdRng, routers: usize, until: Duration) {
    let mut at = 0;
    loop {
        if rng.random_bool(0.4) {
            at = rng.random_range(0..routers);
        }
        let began = turmoil::elapsed();
        let ended_well = agent.turn(at).await.is_ok();
        let now = turmoil::elapsed();
        if now > until || (ended_well && began >= HEALED) {
            return;
        }
        if !ended_well {
            // What a person would try: another door.
            at = (at + 1) % routers;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..1_500))).await;
    }
}

fn add_agents(cluster: &mut Cluster, seed: u64) {
    let shape = cluster.shape;
    let routers: Vec<String> = (0..shape.routers).map(router).collect();
    let until = HEALED + shape.rules().recovery;
    for i in 0..AGENTS {
        let (recorder, routers): (Recorder, _) = (cluster.recorder.clone(), routers.clone());
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(i));
        cluster.sim.client(format!("agent-{i}"), async move {
            let agent = Agent::new(&format!("session-{i}"), &routers, &recorder, TURN_LIMIT);
            Box::pin(talk(agent, rng, routers.len(), until)).await;
            Ok(())
        });
    }
}

fn simulation(seed: u64) -> String {
    let mut cluster = Cluster::new(seed, Shape::default());
    add_agents(&mut cluster, seed);
    let mut plan = Plan::draw(seed, &cluster, (FAULTS_FROM, HEALED));
    let mut is_healed = false;
    loop {
        plan.apply(&mut cluster);
        if !is_healed && plan.is_over() && cluster.elapsed() >= HEALED {
            is_healed = true;
            cluster.recorder.record(Event::Healed);
        }
        if cluster.step() {
            break;
        }
    }
    cluster.conclude()
}

#[test]
fn whatever_breaks_the_rules_hold_and_everything_works_again() {
    let seeds: Vec<u64> = match alone::wanted() {
        Some(seed) => vec![seed],
        None => (0..alone::count(SEEDS)).collect(),
    };
    let results =
        alone::run("random::whatever_breaks_the_rules_hold_and_everything_works_again", &seeds, simulation);
    if let (Some(seed), Some(result)) = (alone::wanted(), results.first()) {
        println!("seed {seed}: {result}");
    }
}

#[test]
fn a_seed_has_one_history() {
    let seeds = [3, 3, 8, 8];
    let results = alone::run("random::a_seed_has_one_history", &seeds, simulation);
    if let [a, b, c, d] = results.as_slice() {
        assert_eq!((a, c), (b, d));
        assert_ne!(a, c, "seeds differ");
    }
}
