//! Buffers of bytes and floats that are aligned to cache lines.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

/// Alignment of every buffer in bytes: the size of a cache line and of the widest vector.
pub const ALIGNMENT_BYTES: usize = 64;

/// Buffers of at least this size use huge pages. Weights are read front to back, and TLB misses cost bandwidth.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An owned, zeroed buffer of bytes whose start is a multiple of [`ALIGNMENT_BYTES`].
#[derive(Debug)]
pub struct AlignedBytes {
    pointer: NonNull<u8>,
    len: usize,
    /// The mapping of a large buffer. It becomes resident only where it is written.
    map: Option<MmapMut>,
}

// SAFETY: the buffer owns its bytes, which are not bound to a thread.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `len` zero bytes. Aborts if memory is exhausted, like the allocations of the standard library.
    pub fn zeroed(len: usize) -> Self {
        if len >= HUGE_PAGE_BYTES {
            return Self::mapped(len);
        }
        if len == 0 {
            return Self { pointer: NonNull::<Line>::dangling().cast(), len, map: None };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Self { pointer, len, map: None }
    }

    /// Maps `len` bytes that begin at a huge page boundary.
    fn mapped(len: usize) -> Self {
        let padded = len.saturating_add(HUGE_PAGE_BYTES);
        let map = MmapOptions::new().len(padded).map_anon();
        let Ok(mut map) = map else { handle_alloc_error(Self::layout(HUGE_PAGE_BYTES)) };
        let padding = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let pointer = NonNull::from(&mut map[padding..][..len]).cast();
        advise_huge_pages(pointer.as_ptr(), len);
        Self { pointer, len, map: Some(map) }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT_BYTES).expect("a buffer is smaller than the address space")
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are owned, initialised and `len` long.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are owned, initialised, `len` long and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 && self.map.is_none() {
            // SAFETY: allocated with this layout in `zeroed`.
            unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.len)) }
        }
    }
}

/// Gives `NonNull::dangling` the alignment that this module promises.
#[repr(align(64))]
struct Line;

#[cfg(target_os = "linux")]
fn advise_huge_pages(pointer: *mut u8, len: usize) {
    // SAFETY: the range is owned by the caller, and the advice changes no content. Refusal is harmless.
    unsafe { libc::madvise(pointer.cast(), len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_pointer: *mut u8, _len: usize) {}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct FloatLine([f32; LINE]);

const LINE: usize = ALIGNMENT_BYTES / size_of::<f32>();

/// A slice of f32 that begins at a multiple of [`ALIGNMENT_BYTES`], so aligned vectors never cross a cache line.
#[derive(Debug, Default)]
pub struct AlignedFloats {
    lines: Vec<FloatLine>,
    len: usize,
}

impl AlignedFloats {
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![FloatLine([0.0; LINE]); len.div_ceil(LINE)], len }
    }
}

impl std::ops::Deref for AlignedFloats {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: a line consists of its floats without padding, and `len` of them are in the lines.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedFloats {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: a line consists of its floats without padding, and `len` of them are in the lines.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
