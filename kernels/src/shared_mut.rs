//! A mutable slice that several threads write in disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` that may be copied to every thread of a pool; each access promises what the borrow checker cannot see.
///
/// Holds the exclusive borrow for `'a`, so nobody outside reaches the slice meanwhile. Between threads the user keeps
/// the rule "no element is written while another thread reads or writes it", with a barrier between phases.
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

// SAFETY: the only ways to the elements are the unsafe methods below, whose callers rule out data races; moving or
// sharing access to `T` between threads is sound for `T: Send + Sync`.
unsafe impl<T: Send + Sync> Send for SharedMut<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the exclusive borrow of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First element. Valid for `len` elements under the rule of this type.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.pointer
    }

    /// A part, as a shared-mutable slice of its own. Panics if `range` is out of bounds.
    pub fn part(&self, range: Range<usize>) -> SharedMut<'a, T> {
        self.check(&range);
        // SAFETY: `range` lies inside the slice.
        SharedMut { pointer: unsafe { self.pointer.add(range.start) }, len: range.len(), borrow: PhantomData }
    }

    /// A part for writing. Panics if `range` is out of bounds.
    ///
    /// # Safety
    /// While the returned slice lives, no other thread and no other slice from `self` reads or writes `range`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: inside the borrowed slice; the caller rules out aliases.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.len()) }
    }

    /// A part for reading. Panics if `range` is out of bounds.
    ///
    /// # Safety
    /// While the returned slice lives, nobody writes `range`.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: inside the borrowed slice; the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.pointer.add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside of 0..{}", self.len);
    }
}
