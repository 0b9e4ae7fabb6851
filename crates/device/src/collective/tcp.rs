//! Ranks that are processes, joined by TCP connections, in plain text or TLS: rank 0 is the hub and has one to each
//! other rank.
//!
//! In a group of two both ranks send their values and add them, each on its own. In a larger one each rank sends to
//! the hub, which adds and answers. Either way values are added in the order of the ranks, and in every call a frame,
//! if only a header, goes both ways over every connection: so all ranks find out in the same call what went wrong.
//! Promises that damaged bytes, a frame of another call or another length, a closed connection and silence each give
//! their own error.
//! Never connects, never resends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, Numbering, Op, assert_gather};
use super::element::{Buffer, Element, Fold, blocks, copy, with_elements};
use super::failure::Failure;
use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

mod connection;
mod deadline;
mod exchange;
mod frame;
mod ready;
mod tls;
mod transfer;
mod wires;

pub use connection::{Connection, ConnectionError};
pub use tls::{RankTls, RankTlsError};

use deadline::Deadline;
use exchange::{collect, distribute, swap};
use wires::{Wire, Wires};

/// One rank of a group over TCP. Dropping it ends the group.
#[derive(Debug)]
pub struct TcpRank {
    wires: Arc<Wires>,
    timeout: Duration,
    numbering: Numbering,
    traffic: Traffic,
    /// What came over each wire.
    inboxes: Vec<Buffer>,
    scratch: Buffer,
}

/// How a rank takes part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// One of two: both do the same.
    Peer,
    Hub,
    Spoke,
}

impl TcpRank {
    /// Rank 0, connected with ranks 1, 2, … in this order. No call takes longer than `timeout`.
    ///
    /// # Errors
    /// Too many of them.
    pub fn hub(connections: Vec<Connection>, timeout: Duration) -> io::Result<Self> {
        let world = connections.len() + 1;
        let wires = connections.into_iter().enumerate().map(|(i, connection)| Wire::new(i + 1, connection));
        Self::new(0, world, wires.collect(), timeout)
    }

    /// Rank `rank` of `world`, connected with rank 0. No call takes longer than `timeout`.
    ///
    /// # Errors
    /// A rank that no such group has.
    pub fn spoke(rank: usize, world: usize, connection: Connection, timeout: Duration) -> io::Result<Self> {
        if rank == 0 || rank >= world {
            let reason = format!("rank {rank} of {world} is no spoke: it must be between 0 and {world}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Self::new(rank, world, vec![Wire::new(0, connection)], timeout)
    }

    fn new(rank: usize, world: usize, wires: Vec<Wire>, timeout: Duration) -> io::Result<Self> {
        if u16::try_from(world).is_err() {
            let reason = format!("a group of {world} ranks is larger than 65,535");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let inboxes = wires.iter().map(|_| Buffer::default()).collect();
        let wires = Arc::new(Wires::new(rank, world, wires));
        let (numbering, traffic, scratch) = Default::default();
        Ok(Self { wires, timeout, numbering, traffic, inboxes, scratch })
    }

    fn role(&self) -> Role {
        match (self.wires.world, self.wires.me) {
            (2, _) => Role::Peer,
            (_, 0) => Role::Hub,
            _ => Role::Spoke,
        }
    }

    /// Begins a call in which this rank sends `bytes` of payload over each of `wires`.
    fn begin(&mut self, wires: usize, bytes: usize) -> Deadline {
        self.traffic.calls += 1;
        // A frame goes over every wire, if only a header.
        self.traffic.messages += self.wires.wires.len() as u64;
        self.traffic.bytes += (wires * bytes) as u64;
        Deadline::new(self.timeout)
    }

    fn all_reduce_of<T: Element>(
        &mut self,
        call: &Call,
        data: &mut [T],
        by: Reduce,
    ) -> Result<(), CollectiveError> {
        let mut deadline = self.begin(self.wires.wires.len(), size_of_val(data));
        let wires = &self.wires;
        match self.role() {
            Role::Peer => {
                let inbox = self.inboxes[0].room(size_of_val(data));
                swap(wires, call, &mut deadline, bytemuck::cast_slice(data), inbox)?;
                self.fold(data, by);
            }
            Role::Hub => {
                let inboxes = self.inboxes.iter_mut().map(|inbox| inbox.room(size_of_val(data)));
                collect(wires, call, &mut deadline, inboxes)?;
                self.fold(data, by);
                distribute(&self.wires, call, &mut deadline, bytemuck::cast_slice(data))?;
            }
            Role::Spoke => {
                distribute(wires, call, &mut deadline, bytemuck::cast_slice(data))?;
                collect(wires, call, &mut deadline, [bytemuck::cast_slice_mut(data)])?;
            }
        }
        Ok(())
    }

    fn reduce_to_leader_of<T: Element>(
        &mut self,
        call: &Call,
        data: &mut [T],
        by: Reduce,
    ) -> Result<(), CollectiveError> {
        let hub = self.wires.me == 0;
        let mut deadline = self.begin(usize::from(!hub), size_of_val(data));
        let wires = &self.wires;
        match (self.role(), hub) {
            (Role::Peer, true) => {
                let inbox = self.inboxes[0].room(size_of_val(data));
                swap(wires, call, &mut deadline, &[], inbox)?;
                self.fold(data, by);
            }
            (Role::Peer, false) => {
                swap(wires, call, &mut deadline, bytemuck::cast_slice(data), &mut [])?;
            }
            (Role::Hub, _) => {
                let inboxes = self.inboxes.iter_mut().map(|inbox| inbox.room(size_of_val(data)));
                collect(wires, call, &mut deadline, inboxes)?;
                self.fold(data, by);
                distribute(&self.wires, call, &mut deadline, &[])?;
            }
            (Role::Spoke, _) => {
                distribute(wires, call, &mut deadline, bytemuck::cast_slice(data))?;
                collect(wires, call, &mut deadline, headers())?;
            }
        }
        Ok(())
    }

    /// Leaves in `data` the reduction of it and of what came from the other ranks.
    fn fold<T: Element>(&mut self, data: &mut [T], by: Reduce) {
        for block in blocks(0..data.len()) {
            let mut fold = Fold::new(&mut self.scratch, block.len(), by);
            // The wires are in the order of their ranks.
            let below = self.wires.wires.iter().filter(|wire| wire.rank < self.wires.me).count();
            for inbox in &self.inboxes[..below] {
                fold.take(&inbox.values()[block.clone()]);
            }
            fold.take(&data[block.clone()]);
            for inbox in &self.inboxes[below..] {
                fold.take(&inbox.values()[block.clone()]);
            }
            fold.finish(&mut data[block]);
        }
    }
}

/// Places for frames without payload.
fn headers<'a>() -> impl Iterator<Item = &'a mut [u8]> {
    std::iter::repeat_with(Default::default)
}

impl Collective for TcpRank {
    fn rank(&self) -> usize {
        self.wires.me
    }

    fn world(&self) -> usize {
        self.wires.world
    }

    fn begin_step(&mut self, step: StepTag) {
        self.numbering.begin_step(step);
    }

    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        let call = self.numbering.call(Op::AllReduce(by), &data);
        with_elements!(data, data => self.all_reduce_of(&call, data, by))
    }

    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        let call = self.numbering.call(Op::ReduceToLeader(by), &data);
        with_elements!(data, data => self.reduce_to_leader_of(&call, data, by))
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        let (me, world) = (self.wires.me, self.wires.world);
        assert_gather(part, counts, whole, me, world);
        let call = self.numbering.gather(counts);
        let role = self.role();
        let mut deadline = self.begin(usize::from(me > 0), size_of_val(part));
        let (wires, deadline) = (&self.wires, &mut deadline);
        match (role, me) {
            (Role::Peer, 0) => {
                let (own, other) = whole.split_at_mut(part.len());
                copy(own, part);
                swap(wires, &call, deadline, &[], bytemuck::cast_slice_mut(other))
            }
            (Role::Peer, _) => swap(wires, &call, deadline, bytemuck::cast_slice(part), &mut []),
            (Role::Hub, _) => {
                let (own, mut rest) = whole.split_at_mut(part.len());
                copy(own, part);
                let place = |&count| rest.split_off_mut(..count).expect("the counts add up");
                let others = counts[1..].iter().map(place).map(bytemuck::cast_slice_mut);
                collect(wires, &call, deadline, others)?;
                distribute(wires, &call, deadline, &[])
            }
            (Role::Spoke, _) => {
                distribute(wires, &call, deadline, bytemuck::cast_slice(part))?;
                collect(wires, &call, deadline, headers())
            }
        }
    }

    fn broadcast(&mut self, mut data: Values<'_>) -> Result<(), CollectiveError> {
        let call = self.numbering.call(Op::Broadcast, &data);
        let hub = self.wires.me == 0;
        let wires = if hub { self.wires.wires.len() } else { 0 };
        let mut deadline = self.begin(wires, data.bytes().len());
        let (wires, deadline) = (&self.wires, &mut deadline);
        match (self.role(), hub) {
            (Role::Peer, true) => swap(wires, &call, deadline, data.bytes(), &mut []),
            (Role::Peer, false) => swap(wires, &call, deadline, &[], data.bytes_mut()),
            (Role::Hub, _) => {
                collect(wires, &call, deadline, headers())?;
                distribute(wires, &call, deadline, data.bytes())
            }
            (Role::Spoke, _) => {
                distribute(wires, &call, deadline, &[])?;
                collect(wires, &call, deadline, [data.bytes_mut()])
            }
        }
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.numbering.barrier();
        self.all_reduce_of::<f32>(&call, &mut [], Reduce::Sum)
    }

    fn abort_handle(&self) -> AbortHandle {
        let wires = Arc::clone(&self.wires);
        AbortHandle::new(move |reason| {
            wires.fail(Failure::aborted(wires.me, reason));
        })
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Drop for TcpRank {
    fn drop(&mut self) {
        self.wires.fail(Failure::left(self.wires.me));
    }
}
