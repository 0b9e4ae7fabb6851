//! The life of a communicator: joining, waits, aborts, and what is given back.

use std::sync::Arc;

use super::super::calls::{CallError, Progress};
use super::super::{Member, Nccl, TagCheck, Version};
use super::fake::Fake;
use super::{alone, rank};
use crate::collective::{Collective, CollectiveError, Reduce, Values};

const TWO: Member = Member { rank: 0, world: 2 };
const ONE: Member = Member { rank: 0, world: 1 };

fn broken(reason: &str) -> Result<Progress, CallError> {
    Err(CallError { call: "comm_state", reason: reason.to_owned() })
}

fn join(fake: &Arc<Fake>, member: Member) -> Result<Nccl, CollectiveError> {
    rank(fake, member, TagCheck::Off)
}

/// The reason of an error of the transport's own.
fn reason(error: CollectiveError) -> String {
    let CollectiveError::Transport { transport: "NCCL", reason } = error else {
        panic!("another error: {error}");
    };
    reason
}

fn sum(nccl: &mut Nccl, data: &mut [f32]) -> Result<(), CollectiveError> {
    nccl.all_reduce(Values::F32(data), Reduce::Sum)
}

/// Aborted once, nothing left on the device.
fn assert_over(fake: &Fake) {
    assert_eq!(fake.times("abort"), 1, "{:?}", fake.log());
    fake.assert_nothing_left();
}

#[test]
fn joining_waits_until_the_communicator_is_ready() {
    let fake = alone(1);
    fake.script(|script| script.states.extend(vec![Ok(Progress::Pending); 8]));
    let nccl = join(&fake, ONE).unwrap();
    assert_eq!(fake.times("comm_state"), 9);
    assert_eq!(fake.times("abort"), 0);
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn joining_ends_at_its_deadline() {
    let fake = alone(2);
    fake.script(|script| script.never_ready = true);
    let reason = reason(join(&fake, TWO).unwrap_err());
    assert_eq!(reason, "a rank of 2 was silent for 10s in the start of the group");
    assert_over(&fake);
}

#[test]
fn joining_ends_at_an_error() {
    let fake = alone(2);
    fake.script(|script| script.states.extend([Ok(Progress::Pending), broken("no route")]));
    assert_eq!(reason(join(&fake, TWO).unwrap_err()), "comm_state: no route");
    assert_over(&fake);
}

#[test]
fn an_old_library_is_refused_before_anything_is_opened() {
    let fake = alone(1);
    fake.script(|script| script.version = Some(Version { major: 2, minor: 17, patch: 1 }));
    let reason = reason(join(&fake, ONE).unwrap_err());
    assert!(reason.contains("2.17.1") && reason.contains("2.18.0"), "{reason}");
    assert_eq!(fake.log(), ["version"]);
}

#[test]
fn a_silent_rank_ends_the_group_at_the_timeout() {
    let fake = alone(3);
    let mut nccl = join(&fake, Member { rank: 0, world: 3 }).unwrap();
    let mut data = [1.5, 2.5];
    let first = reason(sum(&mut nccl, &mut data).unwrap_err());
    assert!(first.starts_with("a rank of 3 was silent for "), "{first}");
    assert!(first.ends_with("in all_reduce(sum) of 2 f32, call 0 of step 0 in epoch 0"), "{first}");
    assert_eq!(data, [1.5, 2.5]);
    // The group is over: nothing is launched any more, and the next call says why.
    let Err(CollectiveError::Aborted { reason }) = nccl.barrier() else {
        panic!("the group goes on");
    };
    assert!(reason.contains(&first), "{reason}");
    assert_eq!(fake.times("launch"), 1);
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn an_error_of_nccls_ends_a_wait() {
    let fake = alone(2);
    let mut nccl = join(&fake, TWO).unwrap();
    fake.script(|script| script.states.extend([Ok(Progress::Done), broken("remote error")]));
    let mut data = [1.0];
    assert_eq!(reason(sum(&mut nccl, &mut data).unwrap_err()), "comm_state: remote error");
    assert_eq!(fake.times("abort"), 1);
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn an_idle_stream_is_no_success_if_nccl_has_an_error() {
    let fake = alone(1);
    let mut nccl = join(&fake, ONE).unwrap();
    fake.script(|script| script.states.push_back(broken("the kernel gave up")));
    let mut data = [1.0];
    assert_eq!(reason(sum(&mut nccl, &mut data).unwrap_err()), "comm_state: the kernel gave up");
}

#[test]
fn a_handle_on_another_thread_ends_a_wait() {
    let fake = alone(2);
    let mut nccl = join(&fake, TWO).unwrap();
    let handle = nccl.abort_handle();
    let mut looks = 0;
    // The clock stands still from here on, so only the handle can end the wait.
    fake.at_each_look(move || {
        looks += 1;
        if looks == 5 {
            let handle = handle.clone();
            std::thread::spawn(move || handle.abort("drained")).join().unwrap();
        }
    });
    let aborted = CollectiveError::Aborted { reason: "drained".to_owned() };
    assert_eq!(sum(&mut nccl, &mut [1.0]), Err(aborted.clone()));
    assert_eq!(fake.times("abort"), 1);
    nccl.abort_handle().abort("again");
    assert_eq!(nccl.barrier(), Err(aborted));
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn a_handle_ends_a_group_that_does_not_wait_at_its_next_call() {
    let fake = alone(1);
    let mut nccl = join(&fake, ONE).unwrap();
    nccl.abort_handle().abort("early");
    assert_eq!(nccl.barrier(), Err(CollectiveError::Aborted { reason: "early".to_owned() }));
    assert_eq!((fake.times("launch"), fake.times("abort")), (0, 1));
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn a_launch_that_nccl_takes_its_time_for_is_waited_for() {
    let fake = alone(1);
    let mut nccl = join(&fake, ONE).unwrap();
    fake.script(|script| {
        script.pending_launches = 1;
        script.states.extend(vec![Ok(Progress::Pending); 3]);
    });
    let before = fake.log().len();
    let mut data = [4.0];
    sum(&mut nccl, &mut data).unwrap();
    assert_eq!(data, [4.0]);
    let states = ["comm_state"; 4];
    let expected =
        [&["enter", "pin", "allocate", "copy_in", "launch"], &states[..], &["copy_out", "stream_state"]];
    assert_eq!(fake.log()[before..][..11], expected.concat());
}

#[test]
fn a_launch_that_is_never_taken_ends_at_the_timeout() {
    let fake = alone(1);
    let mut nccl = join(&fake, ONE).unwrap();
    fake.script(|script| (script.pending_launches, script.never_ready) = (1, true));
    assert!(reason(sum(&mut nccl, &mut [1.0]).unwrap_err()).contains("silent for 5s"));
    drop(nccl);
    assert_over(&fake);
}

#[test]
fn a_device_that_does_not_let_go_keeps_its_memory() {
    let fake = alone(2);
    let mut nccl = join(&fake, TWO).unwrap();
    fake.script(|script| script.never_quiet = true);
    sum(&mut nccl, &mut [1.0]).unwrap_err();
    drop(nccl);
    assert_eq!(fake.times("abort"), 1);
    let left = ["comm", "pinned", "device", "stream", "context"].map(|kind| fake.live(kind));
    assert_eq!(left, [0, 1, 1, 1, 1]);
}

#[test]
fn a_group_may_move_to_another_thread_but_is_not_shared() {
    // Two of these traits would fit a type that is Sync, and the compiler could not choose.
    trait NotSync<A> {
        fn check() {}
    }
    impl<T: ?Sized> NotSync<()> for T {}
    impl<T: ?Sized + Sync> NotSync<u8> for T {}
    <Nccl as NotSync<_>>::check();

    let fake = alone(1);
    let mut nccl = join(&fake, ONE).unwrap();
    sum(&mut nccl, &mut [1.0]).unwrap();
    // The fake asserts that every thread has entered the context.
    std::thread::spawn(move || nccl.barrier()).join().unwrap().unwrap();
    assert_over(&fake);
}

/// Joins and makes two calls, the second with larger rows.
fn short_life(fake: &Arc<Fake>) -> Result<(), CollectiveError> {
    let mut nccl = join(fake, ONE)?;
    sum(&mut nccl, &mut [1.0; 10])?;
    sum(&mut nccl, &mut vec![1.0; 100_000])
}

#[test]
fn whatever_call_fails_the_group_is_aborted_once_and_gives_back_what_it_has() {
    let whole = alone(1);
    short_life(&whole).unwrap();
    assert_over(&whole);
    let mut seen = 0;
    for call in whole.log().iter().collect::<std::collections::BTreeSet<_>>() {
        for nth in 0..whole.times(call) {
            let fake = alone(1);
            fake.script(|script| script.fails = Some((call, nth)));
            let result = short_life(&fake);
            assert_eq!(fake.times("abort"), usize::from(fake.times("pin") > 0 || joined(&fake)));
            assert_eq!(fake.live("comm"), 0, "{call} {nth}");
            let Err(error) = result else { continue };
            seen += 1;
            assert_eq!(reason(error), format!("{call}: as the script says"));
            // What cannot be freed stays; everything else is given back.
            if !["unpin", "free"].contains(call) {
                fake.assert_nothing_left();
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

/// Whether NCCL gave out a communicator: only then was its state asked for.
fn joined(fake: &Fake) -> bool {
    fake.times("comm_state") > 0
}
