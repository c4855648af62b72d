//! A mutable slice whose disjoint parts are written by several threads.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` that can be copied to every thread of a pool.
///
/// It holds the exclusive borrow for `'a`, so code outside cannot access the slice during that time. Callers must
/// ensure that no element is written while another thread reads or writes it, for example with a barrier between
/// phases.
#[derive(Debug)]
pub struct SharedMut<'a, T> {
    pointer: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: elements are accessed only through unsafe code, whose authors rule out data races. Moving or sharing access
// to `T` between threads is sound for `T: Send + Sync`.
unsafe impl<T: Send + Sync> Send for SharedMut<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A pointer to the first element, valid for `len` elements under the rules of this type.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.pointer
    }

    /// Returns the part `range`. Panics if `range` is out of bounds.
    pub fn part(&self, range: Range<usize>) -> SharedMut<'a, T> {
        self.check(&range);
        // SAFETY: `range` lies inside the slice.
        SharedMut { pointer: unsafe { self.pointer.add(range.start) }, len: range.len(), borrow: PhantomData }
    }

    /// Returns the part `range` for writing. Panics if `range` is out of bounds.
    ///
    /// # Safety
    /// While the returned slice lives, no other thread and no other slice of the same memory may read or write `range`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: the range is inside the borrowed slice, and the caller rules out aliases.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.len()) }
    }

    /// Returns the part `range` for reading. Panics if `range` is out of bounds.
    ///
    /// # Safety
    /// While the returned slice lives, `range` may not be written.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: the range is inside the borrowed slice, and the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.pointer.add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside of 0..{}", self.len);
    }
}
