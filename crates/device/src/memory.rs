//! Memory for weights and KV rows: own mappings, aligned to 2 MiB and advised to use huge pages, because reading
//! hundreds of megabytes per token through 4 KiB pages spends a third of the time on address translation.
//!
//! Promises zeroed memory and a typed error when there is none. Never grows, never moves.

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

    #[test]
    fn absurd_sizes_are_typed_errors() {
        let overflow = HugeVec::<u64>::zeroed(usize::MAX / 4).unwrap_err();
        assert_eq!(overflow, DeviceError::TooLarge { items: usize::MAX / 4, item_bytes: 8 });
        let refused = HugeVec::<u8>::zeroed(isize::MAX as usize / 2).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    }
}
