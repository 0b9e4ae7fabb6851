//! Ranks that are threads of one process.
//!
//! Each rank puts its values where the others can read them, waits until all have done so, compares the calls, and
//! adds the values in the order of the ranks. A long sum in a group of more than two is cut into pieces: each rank
//! adds one piece, and then all pieces are shared. Promises the same bits on every rank, and that a rank which is
//! dropped or panics ends the calls of all others at once. Never reads another rank's own memory: what is read lies
//! in the group, so a rank may leave at any time.

use std::sync::Arc;
use std::time::Duration;

use crate::threads::split;

use super::call::{Call, Numbering, Op, assert_gather};
use super::element::{Buffer, Element, Fold, blocks, copy, with_elements};
use super::failure::Failure;
use super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};

mod group;
use group::Group;

/// From this many elements on, more than two ranks share the work of a sum. Below it a second wait costs more.
const SHARED_LEN: usize = 4096;
/// Pieces are cut on multiples of this many elements: no two ranks write one cache line.
const PIECE_ALIGN: usize = 64;

/// Where groups of threads begin.
#[derive(Debug)]
pub enum ThreadGroup {}

impl ThreadGroup {
    /// The ranks of a new group, in order. No call waits longer than `timeout` for another rank.
    #[must_use]
    #[allow(clippy::new_ret_no_self, reason = "a group exists only as its ranks")]
    pub fn new(world: usize, timeout: Duration) -> Vec<ThreadRank> {
        let group = Arc::new(Group::new(world, timeout));
        (0..world).map(|rank| ThreadRank::new(Arc::clone(&group), rank)).collect()
    }
}

/// One rank of a group of threads. Dropping it ends the group.
#[derive(Debug)]
pub struct ThreadRank {
    group: Arc<Group>,
    rank: usize,
    numbering: Numbering,
    /// Phases that this rank has ended. A call has one or two; equal calls have the same number.
    phase: u64,
    traffic: Traffic,
    scratch: Buffer,
}

impl ThreadRank {
    fn new(group: Arc<Group>, rank: usize) -> Self {
        let (numbering, traffic, scratch) = Default::default();
        Self { group, rank, numbering, phase: 0, traffic, scratch }
    }

    /// The buffers of the current call. The next call uses the other ones, so what slower ranks still read stays.
    fn side(&self) -> usize {
        (self.traffic.calls % 2) as usize
    }

    /// Shows `sent` to the other ranks and returns when all of them are in the same call.
    fn meet(&mut self, call: &Call, sent: &[u8]) -> Result<(), CollectiveError> {
        if let Some(failure) = self.group.failure() {
            return Err(failure.seen_by(self.rank, call));
        }
        self.traffic.calls += 1;
        self.traffic.messages += 1;
        self.traffic.bytes += sent.len() as u64;
        self.group.put(self.rank, self.side(), call, sent);
        self.end_phase(call)?;
        for other in (0..self.group.world()).filter(|&other| other != self.rank) {
            let theirs = self.group.sent(other, self.side()).call();
            if theirs != Some(*call) {
                let theirs = theirs.map_or_else(|| "nothing".to_owned(), |theirs| theirs.to_string());
                let failure = Failure::mismatch(self.rank, call, other, theirs);
                return Err(self.group.fail(failure).seen_by(self.rank, call));
            }
        }
        Ok(())
    }

    fn end_phase(&mut self, call: &Call) -> Result<(), CollectiveError> {
        self.phase += 1;
        self.group.arrive(self.rank, self.phase);
        self.group.wait(self.rank, self.phase, call)
    }

    fn all_reduce_of<T: Element>(
        &mut self,
        call: &Call,
        data: &mut [T],
        by: Reduce,
    ) -> Result<(), CollectiveError> {
        self.meet(call, bytemuck::cast_slice(data))?;
        let world = self.group.world();
        if world <= 2 || data.len() < SHARED_LEN {
            self.fold(0, data, by);
            return Ok(());
        }
        let piece = |rank| split(call.len as usize, world, rank, PIECE_ALIGN);
        let own = piece(self.rank);
        self.fold(own.start, &mut data[own.clone()], by);
        let sum = bytemuck::cast_slice(&data[own]);
        self.group.put_sum(self.rank, self.side(), sum);
        self.traffic.messages += 1;
        self.traffic.bytes += sum.len() as u64;
        self.end_phase(call)?;
        for rank in (0..world).filter(|&rank| rank != self.rank) {
            copy(&mut data[piece(rank)], self.group.sum(rank, self.side()).values());
        }
        Ok(())
    }

    /// Leaves in `data` the reduction of what all ranks sent, from element `start` on.
    fn fold<T: Element>(&mut self, start: usize, data: &mut [T], by: Reduce) {
        let side = self.side();
        for block in blocks(0..data.len()) {
            let mut fold = Fold::new(&mut self.scratch, block.len(), by);
            for rank in 0..self.group.world() {
                let sent = self.group.sent(rank, side);
                fold.take(&sent.values()[start + block.start..start + block.end]);
            }
            fold.finish(&mut data[block]);
        }
    }
}

impl Collective for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.group.world()
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
        self.meet(&call, data.bytes())?;
        if self.rank == 0 {
            with_elements!(data, data => self.fold(0, data, by));
        }
        Ok(())
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        assert_gather(part, counts, whole, self.rank, self.group.world());
        let call = self.numbering.gather(counts);
        if self.rank > 0 {
            return self.meet(&call, bytemuck::cast_slice(part));
        }
        self.meet(&call, &[])?;
        let (own, mut rest) = whole.split_at_mut(part.len());
        copy(own, part);
        for (rank, &count) in counts.iter().enumerate().skip(1) {
            let (into, behind) = rest.split_at_mut(count);
            copy(into, self.group.sent(rank, self.side()).values());
            rest = behind;
        }
        Ok(())
    }

    fn broadcast(&mut self, mut data: Values<'_>) -> Result<(), CollectiveError> {
        let call = self.numbering.call(Op::Broadcast, &data);
        if self.rank == 0 {
            return self.meet(&call, data.bytes());
        }
        self.meet(&call, &[])?;
        copy(data.bytes_mut(), self.group.sent(0, self.side()).values());
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.numbering.barrier();
        self.meet(&call, &[])
    }

    fn abort_handle(&self) -> AbortHandle {
        let (group, rank) = (Arc::clone(&self.group), self.rank);
        AbortHandle::new(move |reason| {
            group.fail(Failure::aborted(rank, reason));
        })
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.group.fail(Failure::left(self.rank));
    }
}
