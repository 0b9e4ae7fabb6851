//! One output array, written by several jobs, each its own ranges.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that jobs share, on their word that they touch disjoint ranges.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: `slice` is the only access and its contract makes concurrent ranges disjoint, so sharing this is handing
// out parts of `&mut [T]` to other threads, which T: Send allows.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: it stands for a `&mut [T]`, which is Send for T: Send.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(items: &'a mut [T]) -> Self {
        Self { start: items.as_mut_ptr(), len: items.len(), borrow: PhantomData }
    }

    /// The items of `range`.
    ///
    /// # Safety
    /// While the result lives, no other range taken from this value may overlap it.
    #[allow(
        clippy::mut_from_ref,
        reason = "disjoint ranges of one exclusive borrow are the point; see Safety"
    )]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} items", self.len);
        // SAFETY: the range lies inside the borrowed slice, and the caller keeps ranges disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
