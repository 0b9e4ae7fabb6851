//! What a test sees of a group's ranks, and where it may disturb them.
//!
//! A probe is given to a formation and called by its ranks, on their threads. Whatever it does, the group promises the
//! same as without it. Never part of a group that serves.

use std::fmt::Debug;

use hawser_device::collective::{Collective, Traffic};

use super::command::Command;
use super::link::Channel;
use super::rank::Rank;

/// One rank in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seat {
    pub epoch: u64,
    /// Rank 0 leads.
    pub rank: usize,
}

/// Looks into a group. What is not implemented does nothing.
pub trait Probe: Send + Sync + Debug {
    /// A rank's end of a transport, before it is used: this one, or one round it.
    fn transport(&self, seat: Seat, channel: Channel, end: Box<dyn Collective>) -> Box<dyn Collective> {
        let _ = (seat, channel);
        end
    }

    /// A follower has heard a command, and is about to run it.
    fn heard(&self, seat: Seat, command: &Command) {
        let _ = (seat, command);
    }

    /// A follower has run a command, and has not compared its tables yet. `commands` is what crossed its link so far.
    fn ran(&self, seat: Seat, rank: &mut Rank, command: &Command, commands: Traffic) {
        let _ = (seat, rank, command, commands);
    }
}

/// No probe.
#[derive(Clone, Copy, Debug)]
pub struct Unprobed;

impl Probe for Unprobed {}
