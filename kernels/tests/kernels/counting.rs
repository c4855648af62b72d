//! An allocator that counts, which each program of tests declares for itself.

use std::alloc::{GlobalAlloc, Layout, System};

/// Calls a function at each allocation, and passes all calls on to the system's allocator.
pub struct Counting(pub fn());

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: the conditions are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the conditions are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        (self.0)();
        // SAFETY: the conditions are the same.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
