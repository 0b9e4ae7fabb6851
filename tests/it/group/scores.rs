//! R8: one rank's scores, damaged on their way to the leader.

use hawser_common::retention::Aggregation;
use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::Fault;
use hawser_worker::ranks::{Channel, Work};
use hawser_worker::scheduler::Inspection;
use hawser_worker::turn::TurnError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Group, PATIENT, Watch, outcome, prompt, pruning, run_two, serve_two, undisturbed};

/// Where the turn's session is afterwards: the plan's evictions and scores.
fn inspect(group: &Group) -> [Option<Inspection>; 2] {
    ["a", "b"].map(|session| group.inspect(session))
}

#[test]
fn r8_one_flipped_bit_of_one_ranks_scores_is_caught_at_that_prune_or_changes_nothing() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for aggregation in Aggregation::ALL.iter().copied() {
        let keep = pruning(aggregation);
        let (expected, heard) = undisturbed(2, &keep);
        let mut group = Group::start(2, PATIENT, Watch::default());
        let _ = run_two(&mut group, &keep).map(Result::unwrap);
        let kept = inspect(&group);
        drop(group);
        let scored = heard.iter().position(|heard| matches!(heard.command.work, Work::Score(..))).unwrap();
        let call = heard[scored - 1].calls[1];
        let Work::Score(_, scoring) = &heard[scored].command.work else { unreachable!("it scores") };
        // Scores, a count per rank, and the check behind them.
        let numbers = scoring.candidates.len() + 2;
        let all = if aggregation == Aggregation::Max { 2 * numbers } else { numbers + 1 };
        let mut places: Vec<(usize, u32)> = (0..all).map(|element| (element, 62)).collect();
        places.extend((0..20).map(|_| (rng.random_range(0..all), rng.random_range(0..62))));
        let (mut caught, mut harmless) = (0, 0);
        for (element, bit) in places {
            let fault = (1, Channel::Sums, call, Fault::FlipBit { element, bit });
            let mut group = Group::start(2, PATIENT, Watch { fault: Some(fault), ..Watch::default() });
            let ends = run_two(&mut group, &keep);
            if ends.iter().all(Result::is_ok) {
                // Another rank has a larger score there, with and without the flipped bit.
                assert!(
                    aggregation == Aggregation::Max && bit < 62,
                    "{aggregation:?} {fault:?} was not caught"
                );
                assert_eq!(outcome(ends.map(Result::unwrap)), expected, "{fault:?}");
                assert_eq!(inspect(&group), kept, "{fault:?}");
                harmless += 1;
                continue;
            }
            for end in ends {
                let error = end.expect_err("the group failed");
                assert_eq!(error.code(), ErrorCode::Unavailable);
                let TurnError::GroupFailed { reason } = &error else { panic!("{fault:?}: {error}") };
                assert!(reason.contains("scores are damaged"), "{aggregation:?} {fault:?}: {reason}");
            }
            // The follower may hear of the end before it has noted the prune itself.
            assert!(group.watch.heard(1).len() <= scored + 1, "no step ran after the prune");
            let settled = inspect(&group).into_iter().flatten().all(|session| session.prunes.is_empty());
            assert!(settled && group.live("a") == 0 && group.live("b") == 0, "nothing was evicted");
            assert_eq!(serve_two(&mut group, &keep), expected, "{fault:?}");
            assert_eq!(inspect(&group), kept, "{fault:?}");
            caught += 1;
        }
        println!("{aggregation:?}: {caught} caught, {harmless} without effect");
        assert!(caught >= all);
    }
}

/// The smallest change: the lowest bit of the best score.
#[test]
fn r8_the_least_change_of_a_largest_score_is_caught() {
    let keep = pruning(Aggregation::Max);
    let (expected, heard) = undisturbed(2, &keep);
    let scored = heard.iter().position(|heard| matches!(heard.command.work, Work::Score(..))).unwrap();
    let Work::Score(_, scoring) = &heard[scored].command.work else { unreachable!("it scores") };
    let call = heard[scored - 1].calls[1];
    let mut caught = 0;
    for element in 0..scoring.candidates.len() {
        let fault = (1, Channel::Sums, call, Fault::FlipBit { element, bit: 0 });
        let mut group = Group::start(2, PATIENT, Watch { fault: Some(fault), ..Watch::default() });
        match run_two(&mut group, &keep) {
            [Ok(a), Ok(b)] => assert_eq!(outcome([a, b]), expected, "{fault:?}"),
            _ => caught += 1,
        }
    }
    println!("{caught} of {} caught, the others change no maximum", scoring.candidates.len());
    assert!(caught > 0 && prompt(1, 40).len() > scoring.candidates.len());
}
