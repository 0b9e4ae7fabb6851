//! Memory for weights and KV rows: own mappings, aligned to 2 MiB and advised to use huge pages, because reading
//! hundreds of megabytes per token through 4 KiB pages spends a third of the time on address translation.
//!
//! Promises zeroed memory and a typed error when there is none. Never grows, never moves. Pages are taken from the system
//! when they are first touched, or before that where `make_present` is called.

use std::hint::black_box;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::error::DeviceError;

/// Size and alignment of a huge page in bytes.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed-size, zeroed array in its own mapping. Memory is taken from the system when first touched.
#[derive(Debug)]
pub struct HugeVec<T: Pod> {
    map: Map,
    len: usize,
    items: PhantomData<T>,
}

impl<T: Pod> HugeVec<T> {
    /// `len` zeroed items, aligned to [`HUGE_PAGE_BYTES`].
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`] if the size overflows, [`DeviceError::OutOfMemory`] if the system refuses.
    pub fn zeroed(len: usize) -> Result<Self, DeviceError> {
        const { assert!(align_of::<T>() <= HUGE_PAGE_BYTES) };
        let too_large = DeviceError::TooLarge { items: len, item_bytes: size_of::<T>() };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize / 2);
        let map = Map::new(bytes.ok_or(too_large)?)?;
        Ok(Self { map, len, items: PhantomData })
    }

    /// A copy of `items` in its own mapping.
    ///
    /// # Errors
    /// As [`HugeVec::zeroed`].
    pub fn copied(items: &[T]) -> Result<Self, DeviceError> {
        let mut copy = Self::zeroed(items.len())?;
        copy.copy_from_slice(items);
        Ok(copy)
    }
}

impl<T: Pod> Deref for HugeVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` items, is aligned for T, and any bytes (zeroed at first) are a T: Pod.
        unsafe { std::slice::from_raw_parts(self.map.start.as_ptr().cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for HugeVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.start.as_ptr().cast(), self.len) }
    }
}

/// Smallest page of any system that this runs on.
const SMALL_PAGE_BYTES: usize = 4 << 10;

/// Has the system clear and map all pages of `bytes` now rather than when each is first touched. What they hold stays.
///
/// # Errors
/// The system's, such as that there is no memory: some pages are then present and others not, which changes nothing but
/// when the time is spent.
pub(crate) fn make_present(bytes: &mut [u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match populate(bytes) {
        // A kernel before 5.14, or another system.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            touch(bytes);
            Ok(())
        }
        done => done,
    }
}

/// Writes what is there, once per page: a read would map one page of zeros for all of them.
fn touch(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(SMALL_PAGE_BYTES) {
        page[0] = black_box(page[0]);
    }
    // The last page may begin after the last whole chunk does.
    if let Some(last) = bytes.last_mut() {
        *last = black_box(*last);
    }
}

#[cfg(target_os = "linux")]
fn populate(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: asking for the size of a page has no conditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(SMALL_PAGE_BYTES);
    let skip = bytes.as_ptr().addr() % page;
    let len = (skip + bytes.len()).next_multiple_of(page);
    // SAFETY: the range is that of the pages which hold `bytes`, all of them mapped and writable, and this advice changes
    // no contents, of `bytes` or of what else lies in its first and last page.
    let refused = unsafe {
        let start = bytes.as_mut_ptr().wrapping_sub(skip);
        libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
fn populate(_bytes: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// An anonymous private mapping; `base`/`mapped` is what must be unmapped, `start` the aligned part in use.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    base: *mut libc::c_void,
    mapped: usize,
}

// SAFETY: the mapping is plain memory owned by this value; access goes through `&` and `&mut` of the owner.
unsafe impl Send for Map {}
// SAFETY: as for Send; a shared reference only reads.
unsafe impl Sync for Map {}

impl Map {
    /// `bytes` must be at most `isize::MAX / 2`.
    fn new(bytes: usize) -> Result<Self, DeviceError> {
        // One page more than needed, so that an aligned start exists; untouched pages cost address space only.
        let mapped = bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let reason = std::io::Error::last_os_error().to_string();
            return Err(DeviceError::OutOfMemory { bytes, reason });
        }
        let skip = base.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is below HUGE_PAGE_BYTES, which is at most `mapped`: the result stays inside the mapping.
        let start = unsafe { base.cast::<u8>().add(skip) };
        let start = NonNull::new(start).expect("mmap succeeded, so the address is not null");
        advise_huge_pages(start, bytes);
        Ok(Self { start, base, mapped })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped` are what mmap returned, unmapped once, and no borrow outlives the owner.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// Asks for huge pages. Advice only: a system without them serves the same memory, slower, so a refusal is ignored.
#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    // SAFETY: the range lies inside a mapping of ours, and this advice changes no contents.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable_to_its_last_item() {
        for len in [0, 1, 3, HUGE_PAGE_BYTES / 4, HUGE_PAGE_BYTES / 4 + 1] {
            let mut items = HugeVec::<f32>::zeroed(len).unwrap();
            assert_eq!(items.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            assert!(items.iter().all(|&x| x == 0.0));
            items.fill(7.0);
            assert_eq!(HugeVec::copied(&items).unwrap().iter().sum::<f32>(), 7.0 * len as f32);
        }
    }

    /// Pages of `bytes` that are in memory, and all of them.
    #[cfg(target_os = "linux")]
    fn present(bytes: &[u8]) -> (usize, usize) {
        let mut pages = vec![0u8; bytes.len().div_ceil(SMALL_PAGE_BYTES)];
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the range is mapped, begins with a page, and `pages` has a byte for each of its pages.
        let done = unsafe { libc::mincore(start, bytes.len(), pages.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        (pages.iter().filter(|&&page| page & 1 == 1).count(), pages.len())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn exactly_the_pages_that_were_asked_for_are_made_present_and_keep_what_they_hold() {
        let ways: [fn(&mut [u8]); 2] = [|bytes| make_present(bytes).unwrap(), touch];
        for way in ways {
            let mut items = HugeVec::<u8>::zeroed(8 * HUGE_PAGE_BYTES).unwrap();
            assert_eq!(present(&items).0, 0, "nothing is taken before it is touched");
            let used = 2 * HUGE_PAGE_BYTES + 5..5 * HUGE_PAGE_BYTES - 7;
            way(&mut items[used.start..used.start]);
            assert_eq!(present(&items).0, 0, "nothing was asked for");
            items[used.start] = 9;
            way(&mut items[used]);
            let (before, rest) = items.split_at(2 * HUGE_PAGE_BYTES);
            let (inside, after) = rest.split_at(3 * HUGE_PAGE_BYTES);
            let (there, all) = present(inside);
            assert_eq!((present(before).0, there, present(after).0), (0, all, 0));
            assert_eq!(items.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 9);
        }
    }

    #[test]
    fn absurd_sizes_are_typed_errors() {
        let overflow = HugeVec::<u64>::zeroed(usize::MAX / 4).unwrap_err();
        assert_eq!(overflow, DeviceError::TooLarge { items: usize::MAX / 4, item_bytes: 8 });
        let refused = HugeVec::<u8>::zeroed(isize::MAX as usize / 2).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    }
}
