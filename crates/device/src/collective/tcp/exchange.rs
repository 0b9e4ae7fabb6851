//! The ways in which frames cross all connections of a rank: to everyone, from everyone, or both at once.
//!
//! Promises that all connections move at the same time, and that the first failure ends the group. Never looks into a
//! payload.

use super::super::CollectiveError;
use super::super::call::Call;
use super::super::failure::Failure;
use super::deadline::{Deadline, Wait, sleep};
use super::frame::Head;
use super::transfer::Transfer;
use super::wires::Wires;

/// Sends `payload` over every wire.
pub(super) fn distribute(
    wires: &Wires,
    call: &Call,
    deadline: &mut Deadline,
    payload: &[u8],
) -> Result<(), CollectiveError> {
    let head = Head::data(wires.me, wires.world, call, payload);
    let transfers = wires.wires.iter().map(|wire| Transfer::send(wire, call, &head, payload));
    each(wires, call, deadline, transfers)
}

/// Receives over each wire what fills its place of `places`, which are in the order of the wires.
pub(super) fn collect<'a>(
    wires: &'a Wires,
    call: &'a Call,
    deadline: &mut Deadline,
    places: impl IntoIterator<Item = &'a mut [u8]>,
) -> Result<(), CollectiveError> {
    let pairs = wires.wires.iter().zip(places);
    let transfers = pairs.map(|(wire, place)| Transfer::receive(wire, call, wires.world, place));
    each(wires, call, deadline, transfers)
}

/// Sends `payload` to the other rank of a group of two, and receives what fills `place`.
pub(super) fn swap(
    wires: &Wires,
    call: &Call,
    deadline: &mut Deadline,
    payload: &[u8],
    place: &mut [u8],
) -> Result<(), CollectiveError> {
    let head = Head::data(wires.me, wires.world, call, payload);
    let transfer = Transfer::receive(&wires.wires[0], call, wires.world, place);
    run(wires, call, deadline, &mut [transfer.and_send(&head, payload)])
}

/// Runs one transfer for each wire.
fn each<'a>(
    wires: &Wires,
    call: &Call,
    deadline: &mut Deadline,
    transfers: impl Iterator<Item = Transfer<'a>>,
) -> Result<(), CollectiveError> {
    // A few words in the allocator's nearest list; the system calls that follow cost far more.
    run(wires, call, deadline, &mut transfers.collect::<Vec<_>>())
}

/// Returns when all transfers are done, or the group is over.
fn run(
    wires: &Wires,
    call: &Call,
    deadline: &mut Deadline,
    transfers: &mut [Transfer<'_>],
) -> Result<(), CollectiveError> {
    let over = |failure: &Failure| Err(failure.seen_by(wires.me, call));
    loop {
        // What was done before the group ended is not looked at: a failure is found in the next call at the latest.
        if let Some(failure) = wires.failure() {
            return over(failure);
        }
        let mut moved = false;
        for transfer in &mut *transfers {
            match transfer.advance(wires) {
                Ok(any) => moved |= any,
                Err(failure) => return over(wires.fail(failure)),
            }
        }
        let Some(unfinished) = transfers.iter().find(|transfer| !transfer.is_done()) else {
            return Ok(());
        };
        if moved {
            deadline.moved();
            continue;
        }
        match deadline.idle() {
            // The rank that is waited for may need this core.
            Wait::TryAgain => std::thread::yield_now(),
            Wait::Sleep(longest) => {
                if let Err(error) = sleep(transfers, longest) {
                    let reason = error.to_string();
                    let error = CollectiveError::Transport { transport: "tcp", reason };
                    return over(wires.fail(Failure { by: wires.me, error }));
                }
            }
            Wait::Over => {
                let (rank, waited) = (unfinished.wire.rank, deadline.timeout());
                let error = CollectiveError::Timeout { rank, waited, call: call.to_string() };
                return over(wires.fail(Failure { by: wires.me, error }));
            }
        }
    }
}
