//! The calls of [`super::calls`] over the real libraries.
//!
//! Promises that every code of theirs becomes a result, with what NCCL says about it. Never keeps a handle, and never
//! waits: groups are started without blocking.

mod driver;
mod raw;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

use super::super::Reduce;
use super::super::call::Kind;
use super::calls::{
    CallError, Calls, Comm, Context, DevicePtr, Exchange, HostPtr, Op, Opaque, Progress, Stream,
};
use super::unique_id::UniqueId;
use super::version::Version;
use raw::{Functions, Status};

/// The driver and NCCL, both there.
#[derive(Debug)]
struct Libraries {
    nccl: Functions,
}

/// Finds both libraries; once they are found they stay.
pub(super) fn load() -> Result<Arc<dyn Calls>, CallError> {
    static LOADED: OnceLock<Arc<Libraries>> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(Arc::<Libraries>::clone(loaded));
    }
    driver::probe()?;
    let loaded = Arc::new(Libraries { nccl: Functions::load()? });
    Ok(Arc::<Libraries>::clone(LOADED.get_or_init(|| loaded)))
}

/// In a configuration of NCCL's: by this it knows that the fields were filled in.
const MAGIC: c_uint = 0xcafe_beef;
/// The release whose fields the configuration has, 2.24.0; later ones keep their defaults for theirs.
const CONFIG_VERSION: c_uint = 22_400;
/// A field that is left to NCCL.
const UNSET: c_int = c_int::MIN;

fn without_blocking() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: ptr::null(),
        splitShare: UNSET,
    }
}

fn type_of(kind: Kind) -> c_uint {
    let code = match kind {
        Kind::F32 => ncclDataType_t::ncclFloat32,
        Kind::Bf16 => ncclDataType_t::ncclBfloat16,
        Kind::I64 => ncclDataType_t::ncclInt64,
        Kind::F64 => ncclDataType_t::ncclFloat64,
    };
    code as c_uint
}

fn reduction(by: Reduce) -> c_uint {
    let code = match by {
        Reduce::Sum => ncclRedOp_t::ncclSum,
        Reduce::Max => ncclRedOp_t::ncclMax,
    };
    code as c_uint
}

fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns texts that end with a zero and stay.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

impl Libraries {
    fn progress(&self, call: &'static str, status: Status) -> Result<Progress, CallError> {
        const SUCCESS: Status = ncclResult_t::ncclSuccess as Status;
        const IN_PROGRESS: Status = ncclResult_t::ncclInProgress as Status;
        match status {
            SUCCESS => Ok(Progress::Done),
            IN_PROGRESS => Ok(Progress::Pending),
            _ => Err(self.error(call, status)),
        }
    }

    /// What NCCL says: the meaning of the code, and its last warning, which may be an older one.
    fn error(&self, call: &'static str, status: Status) -> CallError {
        // SAFETY: both take any value; the communicator is not used.
        let (meaning, last) =
            unsafe { ((self.nccl.error_string)(status), (self.nccl.last_error)(ptr::null_mut())) };
        let (meaning, last) = (text(meaning), text(last));
        let last = if last.is_empty() { last } else { format!("; last warning: {}", last.trim()) };
        CallError { call, reason: format!("{meaning} (code {status}){last}") }
    }
}

fn comm_of(comm: Comm) -> ncclComm_t {
    comm.0.0.as_ptr().cast()
}

/// As an argument of NCCL's, which wants a number in C's type.
fn small(call: &'static str, number: usize) -> Result<c_int, CallError> {
    c_int::try_from(number)
        .map_err(|_| CallError { call, reason: format!("{number} ranks are more than NCCL can count") })
}

impl Calls for Libraries {
    fn version(&self) -> Result<Version, CallError> {
        let mut code = 0;
        // SAFETY: it writes one number.
        self.progress("ncclGetVersion", unsafe { (self.nccl.version)(&raw mut code) })?;
        Ok(Version::from_code(u32::try_from(code).unwrap_or(0)))
    }

    fn unique_id(&self) -> Result<UniqueId, CallError> {
        let mut id = MaybeUninit::<ncclUniqueId>::uninit();
        // SAFETY: it writes the whole id before it reports success.
        let id = unsafe {
            self.progress("ncclGetUniqueId", (self.nccl.unique_id)(id.as_mut_ptr()))?;
            id.assume_init()
        };
        Ok(UniqueId::from(id.internal.map(|byte| c_char::to_ne_bytes(byte)[0])))
    }

    fn open(&self, device: usize) -> Result<Context, CallError> {
        driver::open(device)
    }

    unsafe fn enter(&self, context: Context) -> Result<(), CallError> {
        // SAFETY: by the caller, as for all that follow.
        unsafe { driver::enter(context) }
    }

    unsafe fn close(&self, context: Context) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::close(context) }
    }

    unsafe fn create_stream(&self) -> Result<Stream, CallError> {
        // SAFETY: by the caller.
        unsafe { driver::create_stream() }
    }

    unsafe fn destroy_stream(&self, stream: Stream) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::destroy_stream(stream) }
    }

    unsafe fn stream_state(&self, stream: Stream) -> Result<Progress, CallError> {
        // SAFETY: by the caller.
        unsafe { driver::stream_state(stream) }
    }

    unsafe fn allocate(&self, bytes: usize) -> Result<DevicePtr, CallError> {
        // SAFETY: by the caller.
        unsafe { driver::allocate(bytes) }
    }

    unsafe fn free(&self, at: DevicePtr) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::free(at) }
    }

    unsafe fn pin(&self, bytes: usize) -> Result<HostPtr, CallError> {
        // SAFETY: by the caller.
        unsafe { driver::pin(bytes) }
    }

    unsafe fn unpin(&self, at: HostPtr) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::unpin(at) }
    }

    unsafe fn copy_in(
        &self,
        to: DevicePtr,
        from: HostPtr,
        bytes: usize,
        on: Stream,
    ) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::copy_in(to, from, bytes, on) }
    }

    unsafe fn copy_out(
        &self,
        to: HostPtr,
        from: DevicePtr,
        bytes: usize,
        on: Stream,
    ) -> Result<(), CallError> {
        // SAFETY: by the caller.
        unsafe { driver::copy_out(to, from, bytes, on) }
    }

    unsafe fn join(&self, id: &UniqueId, rank: usize, world: usize) -> Result<Comm, CallError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let (rank, world) = (small(CALL, rank)?, small(CALL, world)?);
        let id = ncclUniqueId { internal: id.as_bytes().map(|byte| c_char::from_ne_bytes([byte])) };
        let mut config = without_blocking();
        let mut comm = ptr::null_mut();
        // SAFETY: both pointers are to values of ours, which NCCL does not keep.
        let status = unsafe { (self.nccl.join)(&raw mut comm, world, id, rank, &raw mut config) };
        let begun = self.progress(CALL, status);
        let Some(handle) = NonNull::new(comm) else {
            begun?;
            return Err(CallError { call: CALL, reason: "success, but a null pointer".to_owned() });
        };
        if begun.is_err() {
            // SAFETY: NCCL made it and nobody else has it.
            unsafe { (self.nccl.abort)(comm) };
        }
        begun.map(|_| Comm(Opaque(handle.cast())))
    }

    unsafe fn comm_state(&self, comm: Comm) -> Result<Progress, CallError> {
        let mut state: Status = 0;
        // SAFETY: by the caller; it writes one number.
        let asked = unsafe { (self.nccl.async_error)(comm_of(comm), &raw mut state) };
        self.progress("ncclCommGetAsyncError", asked)?;
        self.progress("NCCL's own threads", state)
    }

    unsafe fn launch(&self, comm: Comm, on: Stream, exchange: &Exchange) -> Result<Progress, CallError> {
        const ROOT: c_int = 0;
        let send = ptr::without_provenance(device_address(exchange.send));
        let receive = ptr::without_provenance_mut(device_address(exchange.receive));
        let (count, kind) = (exchange.count, type_of(exchange.kind));
        let (comm, stream) = (comm_of(comm), cudaStream_t::from(on.0.0.as_ptr().cast()));
        let nccl = &self.nccl;
        // SAFETY: by the caller: live handles, and memory for `count` elements, or `world` times as many.
        let (call, status) = unsafe {
            match exchange.op {
                Op::AllReduce(by) => {
                    let by = reduction(by);
                    ("ncclAllReduce", (nccl.all_reduce)(send, receive, count, kind, by, comm, stream))
                }
                Op::ReduceToLeader(by) => {
                    let by = reduction(by);
                    ("ncclReduce", (nccl.reduce)(send, receive, count, kind, by, ROOT, comm, stream))
                }
                Op::Broadcast => {
                    ("ncclBroadcast", (nccl.broadcast)(send, receive, count, kind, ROOT, comm, stream))
                }
                Op::AllGather => {
                    ("ncclAllGather", (nccl.all_gather)(send, receive, count, kind, comm, stream))
                }
            }
        };
        self.progress(call, status)
    }

    unsafe fn abort(&self, comm: Comm) -> Result<(), CallError> {
        // SAFETY: by the caller.
        self.progress("ncclCommAbort", unsafe { (self.nccl.abort)(comm_of(comm)) }).map(|_| ())
    }
}

/// A device's addresses have as many bits as ours.
fn device_address(at: DevicePtr) -> usize {
    usize::try_from(at.0).expect("CUDA runs on machines of 64 bits")
}
