//! A follower: hears commands and carries them out until the leader ends the group or something fails.

use super::command::Work;
use super::link::Link;
use super::rank::{Rank, RankError};

/// Follows the leader. Returns when it ends the group in good order.
///
/// # Errors
/// [`RankError`]: the group is over. What the rank holds is of no use to another epoch.
pub fn follow(rank: &mut Rank, link: &mut Link) -> Result<(), RankError> {
    loop {
        let command = link.receive(rank.epoch(), rank.next_step())?;
        rank.run(&command)?;
        link.compare(&command, rank)?;
        if command.work == Work::End {
            return Ok(());
        }
    }
}
