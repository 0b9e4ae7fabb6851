//! Where the rows of an operation lie in the staging memory, which is the same on every rank.
//!
//! Promises that everything lies within `room`. Pure; never touches memory.

use std::ops::Range;

use super::super::call::Kind;
use super::Member;
use super::calls::{DevicePtr, Exchange, Op};

/// The places of one operation, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    op: Op,
    kind: Kind,
    /// Elements that this rank gives.
    count: usize,
    /// What the operation needs.
    pub room: usize,
    /// Where this rank's elements begin.
    begin: usize,
    /// What is copied to the device.
    pub input: Range<usize>,
    /// What is copied back.
    pub output: Range<usize>,
    /// Payload that leaves this rank.
    pub sent: u64,
}

impl Plan {
    /// For an operation whose result takes the place of what this rank gave.
    pub(super) fn in_place(member: Member, op: Op, kind: Kind, count: usize) -> Self {
        let room = count * kind.bytes();
        let leads = member.rank == 0;
        let (gives, takes) = match op {
            Op::AllReduce(_) | Op::AllGather => (true, true),
            Op::ReduceToLeader(_) => (true, leads),
            Op::Broadcast => (leads, !leads),
        };
        let all = |wanted| 0..if wanted { room } else { 0 };
        let sends = gives && member.world > 1 && !(leads && matches!(op, Op::ReduceToLeader(_)));
        let sent = if sends { room as u64 } else { 0 };
        Self { op, kind, count, room, begin: 0, input: all(gives), output: all(takes), sent }
    }

    /// For a gather of `count` elements from every rank.
    pub(super) fn gather(member: Member, kind: Kind, count: usize) -> Self {
        let own = count * kind.bytes();
        let (begin, room) = (member.rank * own, member.world * own);
        let sent = if member.world > 1 { own as u64 } else { 0 };
        Self { op: Op::AllGather, kind, count, room, begin, input: begin..begin + own, output: 0..room, sent }
    }

    /// Of what this rank gives.
    pub(super) fn own_bytes(&self) -> usize {
        self.count * self.kind.bytes()
    }

    /// The operation over memory that begins at `at`.
    pub(super) fn exchange(&self, at: DevicePtr) -> Exchange {
        let Self { op, kind, count, begin, .. } = *self;
        Exchange { op, kind, count, send: at.plus(begin), receive: at }
    }
}
