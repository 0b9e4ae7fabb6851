//! What the owned layer needs from the driver and from NCCL: one function per call, each with a checked result.
//!
//! `cuda` implements it over the real libraries, the tests over a scripted fake, so that everything above it
//! runs on machines without a GPU. Promises nothing about order or ownership; that is the owned layer's task.

use std::fmt::Debug;
use std::ptr::NonNull;

use thiserror::Error;

use super::super::call::{self, Kind};
use super::super::{CollectiveError, Reduce};
use super::TRANSPORT;
use super::unique_id::UniqueId;
use super::version::Version;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call}: {reason}")]
pub(super) struct CallError {
    pub call: &'static str,
    /// The code and what the library says about it.
    pub reason: String,
}

impl From<CallError> for CollectiveError {
    fn from(error: CallError) -> Self {
        Self::Transport { transport: TRANSPORT, reason: error.to_string() }
    }
}

/// How far something has come that goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Pending,
}

/// Something of the driver's or of NCCL's. Only they know what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opaque(pub(super) NonNull<std::ffi::c_void>);

// SAFETY: we never follow the pointer, and both libraries take their handles from any thread. That a communicator is
// used by one thread at a time is kept by the owner, which is not `Sync`.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

/// A device and its primary context, retained once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub device: i32,
    pub handle: Opaque,
}

/// A queue of work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream(pub Opaque);

/// A communicator of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comm(pub Opaque);

/// An address in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address so many bytes further.
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Memory of this process that a device may read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPtr(pub NonNull<u8>);

// SAFETY: it is plain memory; its one owner decides who may look at it.
unsafe impl Send for HostPtr {}

/// What ranks do with their values. The root, where there is one, is rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    AllReduce(Reduce),
    ReduceToLeader(Reduce),
    AllGather,
    Broadcast,
}

impl From<Op> for call::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::AllReduce(by) => Self::AllReduce(by),
            Op::ReduceToLeader(by) => Self::ReduceToLeader(by),
            Op::AllGather => Self::Gather,
            Op::Broadcast => Self::Broadcast,
        }
    }
}

/// One operation over device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub op: Op,
    pub kind: Kind,
    /// Elements that this rank gives.
    pub count: usize,
    pub send: DevicePtr,
    /// May be the same as `send`; for a gather, `send` may lie at this rank's place in it.
    pub receive: DevicePtr,
}

/// The calls. None of them waits for another rank.
///
/// For all `unsafe` ones: handles came from the same value and were not given back since; a context of the right
/// device was entered on this thread; memory stays valid until the stream has done the work.
pub(super) trait Calls: Debug + Send + Sync {
    fn version(&self) -> Result<Version, CallError>;
    fn unique_id(&self) -> Result<UniqueId, CallError>;

    /// Retains the primary context of the device of this number.
    fn open(&self, device: usize) -> Result<Context, CallError>;
    /// Makes the context this thread's own.
    unsafe fn enter(&self, context: Context) -> Result<(), CallError>;
    /// Gives the context back and takes it from this thread.
    unsafe fn close(&self, context: Context) -> Result<(), CallError>;

    unsafe fn create_stream(&self) -> Result<Stream, CallError>;
    unsafe fn destroy_stream(&self, stream: Stream) -> Result<(), CallError>;
    /// Done when the stream has nothing left to do.
    unsafe fn stream_state(&self, stream: Stream) -> Result<Progress, CallError>;

    unsafe fn allocate(&self, bytes: usize) -> Result<DevicePtr, CallError>;
    unsafe fn free(&self, at: DevicePtr) -> Result<(), CallError>;
    /// Page-locked memory of this process, filled with zeros.
    unsafe fn pin(&self, bytes: usize) -> Result<HostPtr, CallError>;
    unsafe fn unpin(&self, at: HostPtr) -> Result<(), CallError>;
    /// Enqueues a copy to the device.
    unsafe fn copy_in(&self, to: DevicePtr, from: HostPtr, bytes: usize, on: Stream)
    -> Result<(), CallError>;
    /// Enqueues a copy from the device.
    unsafe fn copy_out(
        &self,
        to: HostPtr,
        from: DevicePtr,
        bytes: usize,
        on: Stream,
    ) -> Result<(), CallError>;

    /// Begins to join a group; [`Calls::comm_state`] tells when that is done.
    unsafe fn join(&self, id: &UniqueId, rank: usize, world: usize) -> Result<Comm, CallError>;
    /// Pending while NCCL is still busy with the last call; an error that came up since then, if there is one.
    unsafe fn comm_state(&self, comm: Comm) -> Result<Progress, CallError>;
    /// Enqueues an operation. If it is pending, nothing else may be called until `comm_state` is done.
    unsafe fn launch(&self, comm: Comm, on: Stream, exchange: &Exchange) -> Result<Progress, CallError>;
    /// Ends the group on this rank, whatever it does, and frees the communicator.
    unsafe fn abort(&self, comm: Comm) -> Result<(), CallError>;
}
