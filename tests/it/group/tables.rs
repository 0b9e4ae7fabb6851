//! Tables of slots that differ between ranks are found: at every prune in a debug build, and every 64 steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hawser_common::Position;
use hawser_common::clock::Clock;
use hawser_common::retention::{Aggregation, Retention};
use hawser_worker::ranks::{Command, Rank, TableChange, Tables, Work};
use hawser_worker::scheduler::SequenceId;
use hawser_worker::turn::TurnError;

use super::{Group, LIMIT, PATIENT, Watch, end, prompt, pruning, run_two, serve_two, undisturbed};

/// Takes one row out of a rank's table.
fn lose_a_row(rank: &mut Rank, sequence: SequenceId) {
    let gone = vec![Position(2)];
    rank.tables_mut().apply(&TableChange::Patch { sequence, gone, new: Vec::new() });
}

/// The step that an error names.
fn step_of(error: &TurnError) -> u64 {
    let TurnError::GroupFailed { reason } = error else { panic!("{error}") };
    let (_, step) = reason.split_once("tables of the ranks differ after step ").expect(reason);
    step.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect(reason)
}

#[test]
fn a_table_that_changed_by_itself_is_found_within_64_steps() {
    let keep = Retention::default();
    for at in [2, 63, 64, 65, 100] {
        let disturb = move |rank: &mut Rank, command: &Command| {
            if command.step == at {
                lose_a_row(rank, SequenceId(0));
            }
        };
        let mut group =
            Group::start(2, PATIENT, Watch { disturb: Some(Box::new(disturb)), ..Watch::default() });
        group.watch.gate.open();
        let error = end(group.send("a", &prompt(1, 40), 200, &keep)).expect_err("a table differs");
        assert_eq!(step_of(&error), u64::next_multiple_of(at, 64), "{error}");
        assert_eq!(group.served("a", &prompt(1, 40), 200, &keep).tokens.len(), 200);
    }
}

#[test]
fn a_table_that_changed_by_itself_is_found_at_the_next_prune() {
    let keep = pruning(Aggregation::Sum);
    let (expected, heard) = undisturbed(2, &keep);
    let prunes: Vec<u64> = heard
        .iter()
        .filter(|heard| match &heard.command.work {
            Work::Score(..) => true,
            // What was evicted has reached the tables.
            Work::Run(plan) => plan.tables.iter().any(|change| matches!(change, TableChange::Patch { .. })),
            _ => false,
        })
        .map(|heard| heard.command.step)
        .collect();
    assert_eq!(prunes.len(), 3, "two scores, and one step in which both sessions' tables change");
    let debug = cfg!(debug_assertions);
    assert!(
        heard.iter().all(|heard| heard.command.compares == (debug && prunes.contains(&heard.command.step)))
    );
    for at in prunes.into_iter().filter(|_| debug) {
        let disturb = move |rank: &mut Rank, command: &Command| {
            if command.step == at {
                lose_a_row(rank, SequenceId(1));
            }
        };
        let mut group =
            Group::start(2, PATIENT, Watch { disturb: Some(Box::new(disturb)), ..Watch::default() });
        for end in run_two(&mut group, &keep) {
            assert_eq!(step_of(&end.expect_err("a table differs")), at);
        }
        assert_eq!(serve_two(&mut group, &keep), expected);
    }
}

/// A group that serves one turn after the other for months must not keep the tables of all of them.
#[test]
fn ranks_hold_no_tables_of_turns_that_have_ended() {
    let latest = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&latest);
    let disturb = move |rank: &mut Rank, _: &Command| {
        seen.store(rank.tables().digest().cast_unsigned(), Ordering::SeqCst);
    };
    let mut group = Group::start(2, PATIENT, Watch { disturb: Some(Box::new(disturb)), ..Watch::default() });
    group.watch.gate.open();
    for turn in 0..3 {
        group.served("a", &prompt(turn, 40), 4, &Retention::default());
        let clock = Clock::system();
        while latest.load(Ordering::SeqCst) != Tables::default().digest().cast_unsigned() {
            assert!(clock.now().0 < LIMIT, "a table of an ended turn stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A claim that is not won while its turn runs already: the turn ends, and nothing is left of what it computed.
#[test]
fn a_session_that_is_closed_while_its_turn_runs_leaves_nothing() {
    let mut group = Group::start(2, PATIENT, Watch::default());
    group.watch.gate.open();
    let mut turn = group.send("a", &prompt(1, 60), 500, &Retention::default());
    let clock = Clock::system();
    while turn.try_recv().is_err() {
        assert!(clock.now().0 < LIMIT, "no token comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(group.live("a") > 0, "it has rows");
    let freed = super::block_on(group.driver().close(super::key("a"))).unwrap();
    assert!(freed > 0);
    assert_eq!(group.live("a"), 0);
    while let Ok(_) | Err(tokio::sync::mpsc::error::TryRecvError::Empty) = turn.try_recv() {
        assert!(clock.now().0 < LIMIT, "the turn goes on");
    }
    let capacity = super::block_on(group.driver().weigh()).unwrap().capacity;
    assert_eq!((capacity.sessions, capacity.running), (0, 0), "{capacity:?}");
    assert!(capacity.slots_idle <= 2, "only its system message is left for others: {capacity:?}");
}
