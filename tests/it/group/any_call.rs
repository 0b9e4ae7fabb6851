//! E11, property 10: whatever goes wrong at whichever call between ranks, every request ends with an error, nothing
//! hangs, and the next request is served as if nothing had been.

use std::sync::Mutex;
use std::time::Duration;

use hawser_common::retention::Aggregation;
use hawser_common::{Coded, ErrorCode};
use hawser_device::collective::Fault;
use hawser_worker::ranks::{Channel, Work};
use hawser_worker::turn::TurnError;

use super::{Group, Heard, Outcome, PATIENT, Watch, pruning, run_two, serve_two, undisturbed};

/// Short enough for hundreds of silent ranks, and longer than a step.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How long a rank is silent. One that comes back is so late that on a busy machine, too, nobody still waits for it.
const SILENT: Duration = Duration::from_millis(450);
const LATE: Duration = Duration::from_millis(1_800);
/// Groups at a time: those with a silent rank mostly sleep.
const AT_ONCE: usize = 16;

/// The calls of one prefill step, one decode step and the prunes between them: the number of each transport's first and
/// the one behind its last.
fn calls(heard: &[Heard]) -> [(Channel, std::ops::Range<u64>); 2] {
    let kind = |at: usize| match &heard[at].command.work {
        Work::Run(plan) if plan.rows() > plan.entries.len() => "prefill",
        Work::Run(_) => "decode",
        Work::Score(..) => "score",
        _ => "other",
    };
    let kinds: Vec<&str> = (0..heard.len()).map(kind).collect();
    assert_eq!(kinds[..5], ["decode", "prefill", "score", "score", "decode"], "{kinds:?}");
    // The comparison of tables is the last call of its command.
    let link = |at: usize| heard[at].calls[0] + u64::from(heard[at].command.compares);
    let sums = |at: usize| heard[at].calls[1];
    [(Channel::Commands, link(0)..link(4)), (Channel::Sums, sums(0)..sums(4))]
}

/// Whether the fault came: on a busy machine a group with a short timeout may fail before both turns are there, and
/// serve them in an epoch without a fault.
fn check(case: (usize, Channel, u64, Fault), expected: &Outcome) -> bool {
    let keep = pruning(Aggregation::Sum);
    let silent = matches!(case.3, Fault::Delay(_) | Fault::Drop { .. });
    let timeout = if silent { TIMEOUT } else { PATIENT };
    let mut group = Group::start(2, timeout, Watch { fault: Some(case), ..Watch::default() });
    let ends = run_two(&mut group, &keep);
    // In any later epoch: forming may fail in the same way.
    let failed_before = || group.watch.heard.lock().unwrap().iter().any(|heard| heard.seat.epoch > 1);
    if silent && ends.iter().any(Result::is_ok) && failed_before() {
        return false;
    }
    for (turn, end) in ends.into_iter().enumerate() {
        match end {
            Ok(end) => panic!("{case:?}: turn {turn} ended well: {end:?}"),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::Unavailable, "{case:?}: {error}");
                // On a busy machine a group with a short timeout may fail before a turn comes.
                let down = silent && matches!(error, TurnError::GroupDown);
                assert!(down || matches!(error, TurnError::GroupFailed { .. }), "{case:?}: {error}");
            }
        }
    }
    assert_eq!(serve_two(&mut group, &keep), *expected, "{case:?}");
    true
}

#[test]
fn e11_a_fault_at_any_call_ends_every_request_and_the_next_ones_are_served() {
    let (expected, heard) = undisturbed(2, &pruning(Aggregation::Sum));
    let faults = [Fault::Delay(LATE), Fault::Drop { silent: SILENT }, Fault::CorruptTag, Fault::Panic];
    let mut cases = Vec::new();
    for (channel, calls) in calls(&heard) {
        println!("{channel:?}: calls {calls:?}");
        for call in calls {
            for rank in [0, 1] {
                cases.extend(faults.map(|fault| (rank, channel, call, fault)));
            }
        }
    }
    println!("{} cases", cases.len());
    let cases = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let case = cases.lock().unwrap().pop();
                    let Some(case) = case else { return };
                    assert!((0..20).any(|_| check(case, &expected)), "{case:?}: never came to the fault");
                }
            });
        }
    });
}
