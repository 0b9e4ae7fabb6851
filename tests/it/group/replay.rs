//! Property 6: plans are a function of what was asked, and ranks are a function of the plans.

use std::sync::Arc;

use hawser_common::retention::{Aggregation, Retention};
use hawser_device::collective::ThreadGroup;
use hawser_model::executor::{Executor, Logits, Scores};
use hawser_worker::ranks::{Command, Outcome, Rank, Seat, Work};

use super::{Group, Heard, PATIENT, Watch, end, prompt, pruning, shards, sizes};

const WORLD: usize = 3;

/// Two sessions of several turns with prunes, of which the first turns run together. Gives the tokens of each turn by
/// its sequence, and the log.
fn session(keep: &Retention) -> (Vec<Vec<u32>>, Vec<Heard>) {
    let mut group = Group::start(WORLD, PATIENT, Watch::default());
    let mut logs = [prompt(1, 40), prompt(2, 33)];
    let first = group.send("first", &[5], 1, &Retention::default());
    group.watch.gate.wait(|gate| gate.reached);
    let a = group.send("a", &logs[0], 6, keep);
    let b = group.send("b", &logs[1], 9, keep);
    group.watch.gate.open();
    let mut turns: Vec<Vec<u32>> = [first, a, b].map(|sent| end(sent).unwrap().tokens).to_vec();
    // An idle driver that is woken says at once which turns have ended, and not with the next turn or after a while.
    group.live("a");
    logs[0].extend_from_slice(&turns[1]);
    logs[1].extend_from_slice(&turns[2]);
    for turn in 0..3 {
        for (log, name) in logs.iter_mut().zip(["a", "b"]) {
            log.extend(prompt(10 + turn, 25));
            let ended = end(group.send(name, log, 5, keep)).unwrap();
            assert!(ended.usage.kept.evicted > 0, "every turn prunes");
            group.live("a");
            log.extend_from_slice(&ended.tokens);
            turns.push(ended.tokens);
        }
    }
    let watch = Arc::clone(&group.watch);
    // Followers have noted everything once they have ended.
    drop(group);
    let heard = watch.heard.lock().unwrap().clone();
    let of = |rank| heard.iter().filter(move |heard| heard.seat == Seat { epoch: 1, rank });
    for (one, other) in of(1).zip(of(2)) {
        assert_eq!(
            (&one.command, one.tables),
            (&other.command, other.tables),
            "followers hear and hold the same"
        );
    }
    let log = of(1).cloned().collect();
    (turns, log)
}

/// What the leader's rank gives to each command of a log, and its tables' digest after each.
fn replay(log: &[Heard]) -> Vec<(i64, Option<Logits>, Option<Scores>)> {
    let run = |mut rank: Rank| {
        let each = |heard: &Heard| {
            let (logits, scores) = match rank.run(&heard.command).unwrap() {
                Outcome::Logits(logits) => (Some(logits), None),
                Outcome::Scores(scores) => (None, scores),
                _ => (None, None),
            };
            (rank.tables().digest(), logits, scores)
        };
        log.iter().map(each).collect::<Vec<_>>()
    };
    let executor = |(shard, end): (_, _)| Executor::in_group(shard, sizes(), Box::new(end)).unwrap();
    let ends = ThreadGroup::new(WORLD, PATIENT).into_iter();
    let ranks: Vec<Rank> =
        shards(WORLD).into_iter().zip(ends).map(|pair| Rank::new(executor(pair), 1)).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| run(rank))).collect();
        let mut all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let tables = |rank: &[(i64, _, _)]| rank.iter().map(|step| step.0).collect::<Vec<_>>();
        assert!(all.iter().all(|rank| tables(rank) == tables(&all[0])), "ranks hold the same");
        all.swap_remove(0)
    })
}

#[test]
fn a_replayed_log_of_plans_gives_equal_tables_and_equal_outputs() {
    for aggregation in Aggregation::ALL.iter().copied() {
        let (turns, log) = session(&pruning(aggregation));
        assert!(log.iter().filter(|heard| matches!(heard.command.work, Work::Score(..))).count() >= 8);
        let replayed = replay(&log);
        let mut tokens = vec![Vec::new(); turns.len()];
        for (heard, (digest, logits, _)) in log.iter().zip(&replayed) {
            assert_eq!(heard.tables, *digest, "step {}", heard.command.step);
            let (Work::Run(plan), Some(logits)) = (&heard.command.work, logits) else { continue };
            for (row, entry) in plan.entries.iter().filter(|entry| entry.sample).enumerate() {
                let best = logits.row(row).iter().enumerate().fold(0, |best, (token, value)| {
                    if *value > logits.row(row)[best] { token } else { best }
                });
                tokens[usize::try_from(entry.sequence.0).unwrap()].push(u32::try_from(best).unwrap());
            }
        }
        assert_eq!(tokens, turns, "{aggregation:?}: the replayed logits name the tokens that were streamed");
        let again = replay(&log);
        assert!(replayed == again, "{aggregation:?}: logits and scores are equal to the bit");
    }
}

#[test]
fn two_runs_with_the_same_inputs_give_equal_plans() {
    let keep = pruning(Aggregation::Sum);
    let ((turns, log), (again, other)) = (session(&keep), session(&keep));
    assert_eq!(turns, again);
    // A beat comes when nothing else did for a while, which depends on the machine, and takes a number.
    let hash = |command: &Command| Command { step: 0, compares: false, ..command.clone() }.encode().1;
    let hashes = |log: &[Heard]| {
        let works = log.iter().map(|heard| &heard.command).filter(|command| command.work != Work::Beat);
        works.map(hash).collect::<Vec<_>>()
    };
    assert!(log.len() > 40);
    assert_eq!(hashes(&log), hashes(&other));
}
