//! E9: a plan that is damaged on its way to one rank, and clocks that disagree.

use std::time::Duration;

use hawser_common::clock::Clock;
use hawser_common::retention::{Aggregation, Retention};
use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::Fault;
use hawser_worker::ranks::{Channel, Seat};
use hawser_worker::turn::TurnError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Group, PATIENT, Watch, outcome, prompt, pruning, run_two, serve_two, undisturbed};

/// Words of a message before the command itself: its announcement and its checksum.
const HEAD: usize = 2;

/// Ranks wait for each other for minutes here: what is found is found at once, by the rank that heard it.
#[test]
fn e9_one_bit_of_one_ranks_plan_flipped_in_flight_ends_every_request() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let keep = pruning(Aggregation::Sum);
    let (expected, heard) = undisturbed(2, &keep);
    for (at, command) in heard.iter().enumerate().skip(1).take(4) {
        // The calls of the commands before it.
        let before = &heard[at - 1];
        let call = before.calls[0] + u64::from(before.command.compares);
        let words = HEAD + command.command.encode().0.len() / 8;
        let random = std::iter::repeat_with(|| (rng.random_range(0..words), rng.random_range(0..64)));
        let places: Vec<(usize, u32)> = [(0, 0), (0, 63), (1, 7)].into_iter().chain(random.take(5)).collect();
        for (element, bit) in places {
            let fault = (1, Channel::Commands, call, Fault::FlipReceived { element, bit });
            let mut group = Group::start(2, PATIENT, Watch { fault: Some(fault), ..Watch::default() });
            for end in run_two(&mut group, &keep) {
                let error = end.expect_err("a plan was damaged");
                assert_eq!(error.code(), ErrorCode::Unavailable, "{fault:?}: {error}");
                let TurnError::GroupFailed { reason } = &error else { panic!("{fault:?}: {error}") };
                let clear = reason.contains("rank 1: a plan is damaged")
                    || reason.contains("rank 1: a command announces its length");
                assert!(clear, "{fault:?}: {reason}");
            }
            assert_eq!(serve_two(&mut group, &keep), expected, "{fault:?}");
            assert!(!group.watch.heard(2).is_empty(), "a new epoch serves");
        }
    }
}

/// Followers take no time from the leader, and the leader none from them: a leader whose clock is days ahead, stands
/// still or jumps gives the same tokens. (A follower in another process with another clock: `ranks`.)
#[test]
fn e9_a_clock_that_disagrees_changes_nothing() {
    let keep = pruning(Aggregation::Sum);
    let (expected, _) = undisturbed(2, &keep);
    let mut group = Group::start(2, PATIENT, Watch::default());
    group.clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(outcome(run_two(&mut group, &keep).map(Result::unwrap)), expected);
    let alone = group.served("long", &prompt(9, 30), 60, &Retention::default()).tokens;
    let turn = group.send("jumps", &prompt(9, 30), 60, &Retention::default());
    let clock = Clock::system();
    while clock.now().0 < Duration::from_millis(30) {
        group.clock.advance(Duration::from_secs(100));
        std::thread::yield_now();
    }
    assert_eq!(super::end(turn).unwrap().tokens, alone);
    let seats: Vec<Seat> = group.watch.heard.lock().unwrap().iter().map(|heard| heard.seat).collect();
    assert!(seats.iter().all(|seat| seat.epoch == 1), "the first epoch has served all of it");
}
