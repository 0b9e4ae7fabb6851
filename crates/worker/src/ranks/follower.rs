//! A follower: hears commands and carries them out until the leader ends the group or something fails.

use hawser_device::collective::AbortHandle;

use super::command::Work;
use super::link::Link;
use super::probe::{Probe, Seat};
use super::rank::{Rank, RankError};

/// Follows the leader. Returns when it ends the group in good order; after an error the group is ended, with the reason
/// for the other ranks. `sums` ends the group in which the executors add up.
///
/// # Errors
/// [`RankError`]: the group is over. What the rank holds is of no use to another epoch.
pub fn follow(
    rank: &mut Rank,
    link: &mut Link,
    sums: &AbortHandle,
    probe: &dyn Probe,
) -> Result<(), RankError> {
    let followed = obey(rank, link, probe);
    if let Err(error) = &followed {
        let reason = format!("rank {}: {error}", link.rank());
        link.abort_handle().abort(&reason);
        sums.abort(&reason);
    }
    followed
}

fn obey(rank: &mut Rank, link: &mut Link, probe: &dyn Probe) -> Result<(), RankError> {
    let seat = Seat { epoch: rank.epoch(), rank: link.rank() };
    loop {
        let command = link.receive(rank.epoch(), rank.next_step())?;
        probe.heard(seat, &command);
        rank.run(&command)?;
        probe.ran(seat, rank, &command, link.traffic());
        link.compare(&command, rank)?;
        if command.work == Work::End {
            return Ok(());
        }
    }
}
