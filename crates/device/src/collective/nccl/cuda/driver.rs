//! The calls of the CUDA driver that we need, each with its code turned into an error.
//!
//! The functions are cudarc's, which finds them at its first use and panics if it cannot. So [`probe`] looks for all of
//! them first. Only the driver is used, not the runtime library: NCCL brings its own. Never keeps a handle.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::super::calls::{CallError, Context, DevicePtr, HostPtr, Opaque, Progress, Stream};
use super::raw;

/// Every function of the driver that is called here or by cudarc's errors.
const FUNCTIONS: [&str; 17] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Makes sure that the driver and its functions are there, and starts it.
pub(super) fn probe() -> Result<(), CallError> {
    static PROBED: OnceLock<()> = OnceLock::new();
    if PROBED.get().is_some() {
        return Ok(());
    }
    // cudarc looks for both names too.
    let library = raw::open(&["libcuda.so.1", "libcuda.so"])?;
    for name in FUNCTIONS {
        // SAFETY: the function is only looked for, never called through this type.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.map_err(|error| CallError {
            call: "dlsym",
            reason: format!("{name} is not in the CUDA driver: is it too old? ({})", raw::said(&error)),
        })?;
    }
    // SAFETY: the function is there, and takes no pointers.
    checked("cuInit", unsafe { sys::cuInit(0) })?;
    PROBED.get_or_init(|| ());
    Ok(())
}

fn checked(call: &'static str, code: sys::CUresult) -> Result<(), CallError> {
    code.result().map_err(|error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let text = text.unwrap_or_else(|_| "no text for this code".to_owned());
        CallError { call, reason: format!("{text} ({:?}, code {})", error.0, error.0 as u32) }
    })
}

/// Calls a function that writes one value.
fn written<T>(call: &'static str, function: impl FnOnce(*mut T) -> sys::CUresult) -> Result<T, CallError> {
    let mut value = MaybeUninit::uninit();
    checked(call, function(value.as_mut_ptr()))?;
    // SAFETY: the driver writes it before it reports success.
    Ok(unsafe { value.assume_init() })
}

fn not_null<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>, CallError> {
    NonNull::new(pointer).ok_or_else(|| CallError { call, reason: "success, but a null pointer".to_owned() })
}

fn stream_of(stream: Stream) -> sys::CUstream {
    stream.0.0.as_ptr().cast()
}

pub(super) fn open(device: usize) -> Result<Context, CallError> {
    // SAFETY: the driver was started by `probe`, and writes to one value each.
    unsafe {
        let count = written("cuDeviceGetCount", |count| sys::cuDeviceGetCount(count))?;
        let number = i32::try_from(device).ok().filter(|number| *number < count);
        let number = number.ok_or_else(|| CallError {
            call: "cuDeviceGet",
            reason: format!("there is no device {device}: CUDA shows {count} to this process"),
        })?;
        let device = written("cuDeviceGet", |device| sys::cuDeviceGet(device, number))?;
        let context = written("cuDevicePrimaryCtxRetain", |new| sys::cuDevicePrimaryCtxRetain(new, device))?;
        let handle = Opaque(not_null("cuDevicePrimaryCtxRetain", context.cast::<c_void>())?);
        Ok(Context { device, handle })
    }
}

/// # Safety
/// The context was retained and not released since.
pub(super) unsafe fn enter(context: Context) -> Result<(), CallError> {
    // SAFETY: by the caller.
    checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.handle.0.as_ptr().cast()) })
}

/// # Safety
/// The context was retained and is not used after this.
pub(super) unsafe fn close(context: Context) -> Result<(), CallError> {
    // SAFETY: by the caller; the thread lets go of the context first, since it may die with this release.
    unsafe {
        checked("cuCtxSetCurrent", sys::cuCtxSetCurrent(ptr::null_mut()))?;
        checked("cuDevicePrimaryCtxRelease", sys::cuDevicePrimaryCtxRelease_v2(context.device))
    }
}

/// # Safety
/// A context was entered; so for all that follow, which also need what they are given to be live.
pub(super) unsafe fn create_stream() -> Result<Stream, CallError> {
    // It must not wait for whatever else uses the default stream of this device.
    let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: by the caller.
    let stream = written("cuStreamCreate", |new| unsafe { sys::cuStreamCreate(new, flags) })?;
    Ok(Stream(Opaque(not_null("cuStreamCreate", stream.cast::<c_void>())?)))
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn destroy_stream(stream: Stream) -> Result<(), CallError> {
    // SAFETY: by the caller.
    checked("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(stream_of(stream)) })
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn stream_state(stream: Stream) -> Result<Progress, CallError> {
    // SAFETY: by the caller.
    match unsafe { sys::cuStreamQuery(stream_of(stream)) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
        code => checked("cuStreamQuery", code).map(|()| Progress::Done),
    }
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn allocate(bytes: usize) -> Result<DevicePtr, CallError> {
    // SAFETY: by the caller.
    written("cuMemAlloc", |new| unsafe { sys::cuMemAlloc_v2(new, bytes) }).map(DevicePtr)
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn free(at: DevicePtr) -> Result<(), CallError> {
    // SAFETY: by the caller.
    checked("cuMemFree", unsafe { sys::cuMemFree_v2(at.0) })
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn pin(bytes: usize) -> Result<HostPtr, CallError> {
    // SAFETY: by the caller; the memory is new, and has this many bytes.
    unsafe {
        let new = written("cuMemAllocHost", |new| sys::cuMemAllocHost_v2(new, bytes))?;
        let at = not_null("cuMemAllocHost", new.cast::<u8>())?;
        at.write_bytes(0, bytes);
        Ok(HostPtr(at))
    }
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn unpin(at: HostPtr) -> Result<(), CallError> {
    // SAFETY: by the caller.
    checked("cuMemFreeHost", unsafe { sys::cuMemFreeHost(at.0.as_ptr().cast()) })
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn copy_in(
    to: DevicePtr,
    from: HostPtr,
    bytes: usize,
    on: Stream,
) -> Result<(), CallError> {
    let from = from.0.as_ptr().cast_const().cast();
    // SAFETY: by the caller.
    let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from, bytes, stream_of(on)) };
    checked("cuMemcpyHtoDAsync", code)
}

/// # Safety
/// As [`create_stream`].
pub(super) unsafe fn copy_out(
    to: HostPtr,
    from: DevicePtr,
    bytes: usize,
    on: Stream,
) -> Result<(), CallError> {
    // SAFETY: by the caller.
    let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.0.as_ptr().cast(), from.0, bytes, stream_of(on)) };
    checked("cuMemcpyDtoHAsync", code)
}
