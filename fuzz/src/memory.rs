//! An allocator that counts the bytes that each thread has allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed. Negative if it freed memory of other threads.
    static NUM_BYTES: Cell<isize> = const { Cell::new(0) };
    /// The maximum of `NUM_BYTES` since [`peak_bytes`] began.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn add(num_bytes: isize) {
    let now = NUM_BYTES.get() + num_bytes;
    NUM_BYTES.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: by the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both allocations exist while the data moves.
        add(new_size.cast_signed());
        add(-layout.size().cast_signed());
        // SAFETY: by the caller's contract.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and returns the most bytes that this thread allocated for it at any one time.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> usize {
    let before = NUM_BYTES.get();
    PEAK.set(before);
    drop(work());
    (PEAK.get() - before).cast_unsigned()
}
