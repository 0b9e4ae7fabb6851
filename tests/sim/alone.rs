//! A simulation in a process of its own, where everything random comes from the seed: hash maps, jitter, `select!`.
//!
//! In one process a second run would differ from the first: parts of the runtime count how often they were used.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use mad_turmoil::rand::{get_rng, set_rng, try_rng};
use mad_turmoil::time::SimClocksGuard;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Set in the process that runs a simulation: its seed.
const CHILD: &str = "HAWSER_SIM_CHILD";
/// Printed before what a simulation gives back.
const RESULT: &str = "simulated: ";

#[allow(clippy::disallowed_methods, reason = "tests read their own environment")]
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed that `HAWSER_SIM_SEED` asks for.
pub(crate) fn wanted() -> Option<u64> {
    variable("HAWSER_SIM_SEED")
}

/// How many seeds to run: `HAWSER_SIM_SEEDS`, or `default`.
pub(crate) fn count(default: u64) -> u64 {
    variable("HAWSER_SIM_SEEDS").unwrap_or(default)
}

/// Runs `simulation` with each of the seeds, a process each and as many at once as there are cores. `test` is the full
/// name of the test that calls this, which is run again in those processes. Gives what the simulations gave, in order.
///
/// # Panics
/// With the seed and all output of the first that fails.
pub(crate) fn run(test: &str, seeds: &[u64], simulation: fn(u64) -> String) -> Vec<String> {
    if let Some(seed) = variable(CHILD) {
        println!("{RESULT}{}", inside(seed, simulation));
        return Vec::new();
    }
    let next = AtomicU64::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(seeds.len());
    let mut results: Vec<(usize, String)> = thread::scope(|scope| {
        let run = || {
            let mut results = Vec::new();
            while let Some((i, seed)) = usize::try_from(next.fetch_add(1, Ordering::SeqCst))
                .ok()
                .and_then(|i| Some((i, seeds.get(i)?)))
            {
                results.push((i, outside(test, *seed)));
            }
            results
        };
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(run)).collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().expect("a seed failed; its output is above"))
            .collect()
    });
    results.sort_unstable();
    results.into_iter().map(|(_, result)| result).collect()
}

/// One seed in a new process.
fn outside(test: &str, seed: u64) -> String {
    let program = std::env::current_exe().expect("a test knows its program");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, seed.to_string())
        .output()
        .expect("a test can start itself");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = text.lines().find_map(|line| line.split_once(RESULT));
    match result.filter(|_| output.status.success()) {
        Some((_, result)) => result.to_owned(),
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            panic!("seed {seed} of {test} fails; HAWSER_SIM_SEED={seed} runs it alone\n{text}\n{errors}");
        }
    }
}

/// The simulation itself, on a fresh thread: hash maps and generators of a thread are seeded with its first use.
fn inside(seed: u64, simulation: fn(u64) -> String) -> String {
    let rng = StdRng::seed_from_u64(seed);
    match try_rng() {
        Some(mut held) => *held = rng,
        None => set_rng(rng),
    }
    drop(get_rng());
    let run = move || {
        let _clock = SimClocksGuard::init();
        simulation(seed)
    };
    let thread = thread::Builder::new().name("simulation".to_owned()).spawn(run);
    thread.expect("a thread starts").join().expect("the simulation failed")
}
