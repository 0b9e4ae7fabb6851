//! NCCL's functions as they are, found in the library at run time.
//!
//! Types are cudarc's; the functions are looked up here. cudarc would look for `libnccl.so` only, which comes with
//! development packages, would panic when it is not there, and returns codes as an enum, for which a code of a newer
//! release would be undefined behaviour. Promises that a missing library or function is an error. Never unloads: NCCL
//! has threads of its own.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::Library;

use super::super::calls::CallError;

/// A code of NCCL's, which may be newer than our list.
pub(super) type Status = c_uint;

type Reduction = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_uint,
    c_uint,
    ncclComm_t,
    cudaStream_t,
) -> Status;

type RootedReduction = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_uint,
    c_uint,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> Status;

type Broadcast = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_uint,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> Status;

type Gather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, ncclComm_t, cudaStream_t) -> Status;

type Join = unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Status;

/// The functions that we use. Element types and operations are passed as the numbers of cudarc's enums.
#[derive(Debug)]
pub(super) struct Functions {
    pub version: unsafe extern "C" fn(*mut c_int) -> Status,
    pub unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> Status,
    pub join: Join,
    pub async_error: unsafe extern "C" fn(ncclComm_t, *mut Status) -> Status,
    pub abort: unsafe extern "C" fn(ncclComm_t) -> Status,
    pub error_string: unsafe extern "C" fn(Status) -> *const c_char,
    pub last_error: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
    pub all_reduce: Reduction,
    pub reduce: RootedReduction,
    pub broadcast: Broadcast,
    pub all_gather: Gather,
    /// Keeps the functions where they are.
    _library: Library,
}

impl Functions {
    /// Loads the library under the first of its names that is there.
    pub(super) fn load() -> Result<Self, CallError> {
        let library = open(&["libnccl.so.2", "libnccl.so"])?;
        // SAFETY: the types are those of nccl.h, with enums as the integers that they are in C.
        unsafe {
            Ok(Self {
                version: function(&library, "ncclGetVersion")?,
                unique_id: function(&library, "ncclGetUniqueId")?,
                join: function(&library, "ncclCommInitRankConfig")?,
                async_error: function(&library, "ncclCommGetAsyncError")?,
                abort: function(&library, "ncclCommAbort")?,
                error_string: function(&library, "ncclGetErrorString")?,
                last_error: function(&library, "ncclGetLastError")?,
                all_reduce: function(&library, "ncclAllReduce")?,
                reduce: function(&library, "ncclReduce")?,
                broadcast: function(&library, "ncclBroadcast")?,
                all_gather: function(&library, "ncclAllGather")?,
                _library: library,
            })
        }
    }
}

/// Opens the first of these libraries that the loader finds.
pub(super) fn open(names: &[&'static str]) -> Result<Library, CallError> {
    let mut reasons = Vec::with_capacity(names.len());
    for name in names {
        // SAFETY: these are the vendor's libraries; what runs when they are loaded asks nothing of us.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(said(&error)),
        }
    }
    let reason = format!(
        "cannot load {}: is it installed, and in the loader's path? ({})",
        names.join(" or "),
        reasons.join("; ")
    );
    Err(CallError { call: "dlopen", reason })
}

/// What the loader said; the error itself only says which of its functions failed.
pub(super) fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn function<F: Copy>(library: &Library, name: &'static str) -> Result<F, CallError> {
    // SAFETY: the caller answers for the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| CallError {
        call: "dlsym",
        reason: format!("{name} is not in the library: is it too old? ({})", said(&error)),
    })
}
