//! Groups in which something goes wrong: every rank ends with an error, and none waits beyond the timeout.

use super::script::Type;
use super::*;

/// One call of each kind. The last one makes ranks meet, so that nobody misses what went wrong before.
fn script() -> Vec<Item> {
    vec![
        Item::BeginStep(4),
        Item::AllReduce(Type::F32, 50, Reduce::Sum),
        Item::AllReduce(Type::Bf16, 6_000, Reduce::Sum),
        Item::Gather([3, 0, 7, 0, 0]),
        Item::ReduceToLeader(Type::I64, 4, Reduce::Max),
        Item::Broadcast(Type::F32, 20),
        Item::Barrier,
    ]
}

const CALLS: usize = 6;

/// The errors of all ranks where rank `bad` has `fault` at call `at`; `None` for a rank that panicked.
fn errors(
    transport: Transport,
    timeout: Duration,
    (bad, at, fault): (usize, usize, Fault),
) -> Vec<Option<CollectiveError>> {
    let ranks = transport.open(timeout).into_iter().map(|rank| {
        let at = if rank.rank() == bad { at as u64 } else { u64::MAX };
        Faulty::new(rank, at, fault)
    });
    let results = run(ranks.collect(), |mut rank: Faulty| follow(&mut rank, &script(), 9));
    let error = |result: std::thread::Result<Result<_, _>>| {
        result.ok().map(|result| result.expect_err("no rank ends well"))
    };
    results.into_iter().map(error).collect()
}

/// Every transport with each rank as the bad one at each call.
fn places() -> impl Iterator<Item = (Transport, usize, usize)> {
    let ranks = JOINED.into_iter().flat_map(|t| (0..t.world()).map(move |bad| (t, bad)));
    ranks.flat_map(|(transport, bad)| (0..CALLS).map(move |at| (transport, bad, at)))
}

#[test]
fn another_tag_is_a_mismatch_on_every_rank() {
    for (transport, bad, at) in places() {
        let errors = errors(transport, LONG, (bad, at, Fault::CorruptTag));
        for (rank, error) in errors.iter().enumerate() {
            let Some(CollectiveError::Mismatch { rank: other, ours, theirs }) = error else {
                panic!("{transport:?}, rank {bad} bad at {at}: rank {rank} has {error:?}");
            };
            assert_ne!(*other, rank, "{transport:?}, rank {bad} bad at {at}: {error:?}");
            assert_ne!(ours, theirs, "{transport:?}, rank {bad} bad at {at}: rank {rank}");
        }
    }
}

#[test]
fn a_panic_ends_the_calls_of_the_others_at_once() {
    for (transport, bad, at) in places() {
        let errors = errors(transport, LONG, (bad, at, Fault::Panic));
        for (rank, error) in errors.iter().enumerate() {
            match error {
                None => assert_eq!(rank, bad),
                Some(error) => {
                    let gone = CollectiveError::Gone { rank: bad, reason: "it panicked".to_owned() };
                    assert_eq!(*error, gone, "{transport:?}, rank {bad} bad at {at}: rank {rank}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_ends_the_calls_of_the_others_at_once() {
    for (transport, bad, at) in places() {
        let results = run_all(transport.open(LONG), move |mut rank| {
            // The first item is no call.
            let stop = if rank.rank() == bad { at + 1 } else { script().len() };
            follow(&mut *rank, &script()[..stop], 9).map(|_| ())
        });
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != bad) {
            let gone = CollectiveError::Gone { rank: bad, reason: "it left the group".to_owned() };
            assert_eq!(result, Err(gone), "{transport:?}, rank {bad} left at {at}: rank {rank}");
        }
    }
}

#[test]
fn an_abort_ends_every_rank_with_its_reason() {
    for (transport, bad, at) in places() {
        let results = run_all(transport.open(LONG), move |mut rank| {
            let script = script();
            let (before, after) = script.split_at(if rank.rank() == bad { at + 1 } else { script.len() });
            follow(&mut *rank, before, 9)?;
            rank.abort_handle().abort("told to");
            rank.abort_handle().abort("told again");
            follow(&mut *rank, after, 9).map(|_| ())
        });
        for (rank, result) in results.into_iter().enumerate() {
            let aborted = CollectiveError::Aborted { reason: "told to".to_owned() };
            assert_eq!(result, Err(aborted), "{transport:?}, rank {bad} aborts at {at}: rank {rank}");
        }
    }
}

#[test]
fn a_waiting_call_ends_when_another_thread_aborts() {
    for transport in JOINED {
        let results = run_all(transport.open(LONG), move |mut rank| {
            // Only rank 0 waits for a message; the others never call.
            if rank.rank() > 0 {
                let handle = rank.abort_handle();
                std::thread::spawn(move || handle.abort("from outside")).join().unwrap();
            }
            rank.barrier()
        });
        let aborted = CollectiveError::Aborted { reason: "from outside".to_owned() };
        assert_eq!(results, vec![Err(aborted); transport.world()], "{transport:?}");
    }
}

#[test]
fn a_silent_rank_is_a_timeout_for_the_others() {
    let timeout = Duration::from_millis(100);
    let fault = Fault::Drop { silent: 2 * timeout };
    // All groups at once: they mostly sleep.
    std::thread::scope(|scope| {
        for (transport, bad, at) in places() {
            scope.spawn(move || {
                for (rank, error) in errors(transport, timeout, (bad, at, fault)).into_iter().enumerate() {
                    // On a busy machine another rank may be found late, even before the fault.
                    let timeout = matches!(error, Some(CollectiveError::Timeout { .. }));
                    let own = matches!(error, Some(CollectiveError::Transport { transport: "faulty", .. }));
                    let fits = timeout || rank == bad && own;
                    assert!(fits, "{transport:?}, rank {bad} bad at {at}: rank {rank} has {error:?}");
                }
            });
        }
    });
}

#[test]
fn a_late_rank_changes_nothing() {
    for transport in JOINED {
        let ranks = transport.open(LONG).into_iter();
        // Long enough for the others to fall asleep.
        let ranks = ranks.map(|rank| Faulty::new(rank, 2, Fault::Delay(Duration::from_millis(5))));
        let results = run_all(ranks.collect(), |mut rank: Faulty| follow(&mut rank, &script(), 9));
        assert!(results.iter().all(Result::is_ok), "{transport:?}: {results:?}");
    }
}

#[test]
fn calls_in_another_order_are_a_mismatch_on_every_rank() {
    let sum = |len| Item::AllReduce(Type::F32, len, Reduce::Sum);
    let pairs = [
        (sum(10), Item::Barrier),
        (sum(10), sum(11)),
        (sum(0), Item::Barrier),
        (sum(10), Item::AllReduce(Type::F32, 10, Reduce::Max)),
        // As many bytes as the other one.
        (sum(10), Item::AllReduce(Type::Bf16, 20, Reduce::Sum)),
        (sum(10), Item::ReduceToLeader(Type::F32, 10, Reduce::Sum)),
        (Item::Gather([1, 2, 0, 0, 0]), Item::Gather([2, 1, 0, 0, 0])),
        // More than sockets buffer.
        (sum(3 << 20), Item::Broadcast(Type::F32, 3 << 20)),
        (Item::ReduceToLeader(Type::F32, 3 << 20, Reduce::Sum), Item::Broadcast(Type::F32, 3 << 20)),
        (sum(10), Item::Gather([5, 5, 0, 0, 0])),
    ];
    for transport in JOINED {
        for (most, odd) in &pairs {
            for bad in 0..transport.world() {
                let (most, odd) = (most.clone(), odd.clone());
                let names = format!("{transport:?}, {most:?} but rank {bad} {odd:?}");
                let results = run_all(transport.open(LONG), move |mut rank| {
                    let item = if rank.rank() == bad { &odd } else { &most };
                    follow(&mut *rank, std::slice::from_ref(item), 2)
                });
                for result in results {
                    assert!(matches!(result, Err(CollectiveError::Mismatch { .. })), "{names}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn a_group_that_failed_stays_failed() {
    for transport in JOINED {
        let mut ranks = transport.open(LONG);
        let handle = ranks[1].abort_handle();
        handle.abort("over");
        let results = run_all(ranks.split_off(0), |mut rank| {
            let first = rank.barrier().unwrap_err();
            (0..5).all(|_| rank.all_reduce(Values::F32(&mut [1.0]), Reduce::Sum) == Err(first.clone()))
        });
        assert!(results.iter().all(|&same| same), "{transport:?}");
    }
}
