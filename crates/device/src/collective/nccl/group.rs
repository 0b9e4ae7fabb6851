//! The transport itself: host rows go to the device, through one collective operation, and back.
//!
//! Promises that a rank's rows are written only when the operation has succeeded, and that all ranks enqueue the same
//! operations for the same calls, whatever their own part is. Never keeps a row beyond its call.

use std::sync::Arc;

use hawser_common::clock::Clock;

use super::super::call::{Call, Kind, Numbering, assert_gather};
use super::super::{AbortHandle, Collective, CollectiveError, Reduce, StepTag, Traffic, Values};
use super::calls::{Calls, Op};
use super::communicator::{Communicator, Deadline};
use super::plan::Plan;
use super::staging::Staging;
use super::{Member, NcclOptions, TagCheck, UniqueId};

/// One rank's end of a group over NCCL. It may move to another thread, but is used by one at a time.
#[derive(Debug)]
pub struct Nccl {
    staging: Staging,
    comm: Communicator,
    options: NcclOptions,
    numbering: Numbering,
    traffic: Traffic,
}

impl Nccl {
    /// Joins the group `id`, which all ranks do at about the same time. Blocks until they have.
    ///
    /// # Errors
    /// [`CollectiveError::Transport`] if a library is missing or too old, the device cannot be had, or not all ranks
    /// joined in time.
    pub fn join(
        id: &UniqueId,
        member: Member,
        options: NcclOptions,
        clock: Clock,
    ) -> Result<Self, CollectiveError> {
        Self::join_through(super::load()?, id, member, options, clock)
    }

    pub(super) fn join_through(
        calls: Arc<dyn Calls>,
        id: &UniqueId,
        member: Member,
        options: NcclOptions,
        clock: Clock,
    ) -> Result<Self, CollectiveError> {
        assert!(member.rank < member.world, "rank {} of {}", member.rank, member.world);
        let comm = Communicator::join(calls, clock, member, id, options.device, options.join_timeout)?;
        let (staging, numbering, traffic) = Default::default();
        Ok(Self { staging, comm, options, numbering, traffic })
    }

    /// Begins a call: the device is ours, and all ranks call the same, as far as that is checked.
    fn begin(&mut self, call: &Call) -> Result<Deadline, CollectiveError> {
        self.traffic.calls += 1;
        let deadline = self.comm.deadline(self.options.timeout);
        self.comm.enter()?;
        if self.options.tags == TagCheck::On {
            self.compare(call, deadline)?;
        }
        Ok(deadline)
    }

    /// Gathers every rank's number of its tag.
    fn compare(&mut self, call: &Call, deadline: Deadline) -> Result<(), CollectiveError> {
        let ours = call.number();
        let plan = Plan::gather(self.comm.member(), Kind::I64, 1);
        let all = self.run(&plan, bytemuck::bytes_of(&ours), call, deadline)?;
        let numbers = all.chunks_exact(size_of::<i64>()).map(bytemuck::pod_read_unaligned::<i64>);
        match numbers.enumerate().find(|(_, theirs)| *theirs != ours) {
            None => Ok(()),
            Some((rank, theirs)) => {
                let theirs = format!("something else (its tag has the number {theirs:#018x})");
                Err(self.comm.fail(CollectiveError::Mismatch { rank, ours: call.to_string(), theirs }))
            }
        }
    }

    fn values(&mut self, op: Op, mut data: Values<'_>) -> Result<(), CollectiveError> {
        let call = self.numbering.call(op.into(), &data);
        let deadline = self.begin(&call)?;
        let bytes = data.bytes_mut();
        let plan = Plan::in_place(self.comm.member(), op, call.kind, bytes.len() / call.kind.bytes());
        let result = self.run(&plan, &bytes[plan.input.clone()], &call, deadline)?;
        bytes[plan.output.clone()].copy_from_slice(result);
        self.traffic.messages += u64::from(plan.sent > 0);
        self.traffic.bytes += plan.sent;
        Ok(())
    }

    /// Runs the operation over `own` rows; what comes back stays in the staging memory.
    fn run(
        &mut self,
        plan: &Plan,
        own: &[u8],
        call: &Call,
        deadline: Deadline,
    ) -> Result<&[u8], CollectiveError> {
        // Every rank has nothing to give, or none: lengths are part of the call.
        if plan.room == 0 {
            return Ok(&[]);
        }
        let (comm, staging) = (&mut self.comm, &mut self.staging);
        staging.reserve(comm, plan.room)?;
        let place = staging.host(plan.input.clone());
        place[..own.len()].copy_from_slice(own);
        place[own.len()..].fill(0);
        staging.copy_in(comm, plan.input.clone())?;
        let at = staging.device();
        // SAFETY: the plan's room was reserved, and staging keeps it until the group has stopped. `begin` has entered.
        unsafe { comm.launch(&plan.exchange(at), deadline, call)? };
        staging.copy_out(comm, plan.output.clone())?;
        comm.wait(deadline, call)?;
        Ok(staging.host(plan.output.clone()))
    }
}

impl Collective for Nccl {
    fn rank(&self) -> usize {
        self.comm.member().rank
    }

    fn world(&self) -> usize {
        self.comm.member().world
    }

    fn begin_step(&mut self, step: StepTag) {
        self.numbering.begin_step(step);
    }

    fn all_reduce(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.values(Op::AllReduce(by), data)
    }

    fn reduce_to_leader(&mut self, data: Values<'_>, by: Reduce) -> Result<(), CollectiveError> {
        self.values(Op::ReduceToLeader(by), data)
    }

    fn gather(&mut self, part: &[f32], counts: &[usize], whole: &mut [f32]) -> Result<(), CollectiveError> {
        assert_gather(part, counts, whole, self.rank(), self.world());
        let leads = self.rank() == 0;
        let call = self.numbering.gather(counts);
        let deadline = self.begin(&call)?;
        // NCCL gathers equal parts only: all are as long as the longest, and the ends of the others are dropped.
        let longest = counts.iter().copied().max().unwrap_or(0);
        let mut plan = Plan::gather(self.comm.member(), call.kind, longest);
        if !leads {
            plan.output = 0..0;
        }
        self.traffic.messages += u64::from(plan.sent > 0);
        self.traffic.bytes += plan.sent;
        let padded = self.run(&plan, bytemuck::cast_slice(part), &call, deadline)?;
        if !leads {
            return Ok(());
        }
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(whole);
        for (count, padded) in counts.iter().zip(padded.chunks_exact(plan.own_bytes().max(1))) {
            let (place, behind) = rest.split_at_mut(count * size_of::<f32>());
            place.copy_from_slice(&padded[..place.len()]);
            rest = behind;
        }
        Ok(())
    }

    fn broadcast(&mut self, data: Values<'_>) -> Result<(), CollectiveError> {
        self.values(Op::Broadcast, data)
    }

    /// A sum of one number: no rank has it before all have given theirs.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.numbering.barrier();
        let deadline = self.begin(&call)?;
        let plan = Plan::in_place(self.comm.member(), Op::AllReduce(Reduce::Sum), Kind::I64, 1);
        self.run(&plan, bytemuck::bytes_of(&1_i64), &call, deadline)?;
        Ok(())
    }

    /// The rank's own thread ends the group, at its next look if it waits, else at its next call. The others see an
    /// error of NCCL's or their timeout: NCCL carries no reasons.
    fn abort_handle(&self) -> AbortHandle {
        let ended = self.comm.ended();
        AbortHandle::new(move |reason| ended.because(reason))
    }

    /// Bytes are those handed to NCCL to send, with the padding of a gather; tags are not counted.
    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.staging.give_back(&mut self.comm);
    }
}
