//! Memory through which host rows go to the device and back.
//!
//! Owns one piece of page-locked host memory and one of device memory of the same size, which grow and never shrink.
//! Promises that host rows are only read or written here while the device is idle, so that a borrowed row never
//! outlives its borrow on the device. Never allocates while it is large enough.

use std::ops::Range;

use super::super::CollectiveError;
use super::calls::{CallError, Calls, DevicePtr, HostPtr};
use super::communicator::Communicator;

/// The smallest size that is allocated.
const LEAST_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Staging {
    host: Option<HostPtr>,
    device: Option<DevicePtr>,
    /// Of each.
    bytes: usize,
}

impl Staging {
    /// Makes room for `bytes`. What was in there is lost if it has to grow.
    pub(super) fn reserve(&mut self, comm: &mut Communicator, bytes: usize) -> Result<(), CollectiveError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let larger = bytes.checked_next_power_of_two().unwrap_or(bytes).max(LEAST_BYTES);
        comm.with(|calls, _| {
            self.release(calls)?;
            // SAFETY: the caller has entered the context.
            unsafe {
                self.host = Some(calls.pin(larger)?);
                self.device = Some(calls.allocate(larger)?);
            }
            self.bytes = larger;
            Ok(())
        })
    }

    /// Where the device has it.
    pub(super) fn device(&self) -> DevicePtr {
        self.device.expect("room was reserved")
    }

    /// The host's side of it. The device must be idle.
    pub(super) fn host(&mut self, range: Range<usize>) -> &mut [u8] {
        self.check(&range);
        let host = self.host.as_mut().expect("room was reserved");
        // SAFETY: the memory has `bytes` bytes, zeroed when it was made, the range lies within them, and `self` is the
        // only one to have it while the device is idle.
        unsafe { std::slice::from_raw_parts_mut(host.0.as_ptr().add(range.start), range.len()) }
    }

    /// Enqueues a copy of `range` to the same place on the device.
    pub(super) fn copy_in(
        &self,
        comm: &mut Communicator,
        range: Range<usize>,
    ) -> Result<(), CollectiveError> {
        self.copy(comm, range, |calls, host, device, bytes, stream| {
            // SAFETY: both sides have `bytes` bytes, and stay until the stream is idle: see `give_back` and `reserve`.
            unsafe { calls.copy_in(device, host, bytes, stream) }
        })
    }

    /// Enqueues a copy of `range` from the same place on the device.
    pub(super) fn copy_out(
        &self,
        comm: &mut Communicator,
        range: Range<usize>,
    ) -> Result<(), CollectiveError> {
        self.copy(comm, range, |calls, host, device, bytes, stream| {
            // SAFETY: as above, and nobody looks at the host's side before the stream is idle.
            unsafe { calls.copy_out(host, device, bytes, stream) }
        })
    }

    fn copy(
        &self,
        comm: &mut Communicator,
        range: Range<usize>,
        enqueue: impl FnOnce(&dyn Calls, HostPtr, DevicePtr, usize, super::calls::Stream) -> Result<(), CallError>,
    ) -> Result<(), CollectiveError> {
        self.check(&range);
        if range.is_empty() {
            return Ok(());
        }
        let host = self.host.expect("room was reserved");
        // SAFETY: the range lies within the memory.
        let host = HostPtr(unsafe { host.0.add(range.start) });
        let device = self.device().plus(range.start);
        comm.with(|calls, stream| enqueue(calls, host, device, range.len(), stream))
    }

    /// Frees everything, once the group has ended and the device has let go of it; else it stays for ever, since the
    /// device may still write there.
    pub(super) fn give_back(&mut self, comm: &mut Communicator) {
        if comm.stop() {
            let _ = comm.with(|calls, _| self.release(calls));
        }
    }

    fn release(&mut self, calls: &dyn Calls) -> Result<(), CallError> {
        self.bytes = 0;
        let (host, device) = (self.host.take(), self.device.take());
        // SAFETY: both are ours, the device is idle, and they were taken, so this is their last use. The second is
        // freed even if the first cannot be.
        let (host, device) = unsafe {
            (
                host.map_or(Ok(()), |host| calls.unpin(host)),
                device.map_or(Ok(()), |device| calls.free(device)),
            )
        };
        host.and(device)
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "a copy stays within its memory");
    }
}
