//! Byte buffers on cache-line boundaries.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

/// Alignment of every buffer in bytes: a cache line, and the widest vector.
pub const ALIGNMENT_BYTES: usize = 64;

/// From this size on a buffer asks for huge pages: weights are read front to back, and TLB misses cost bandwidth.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An owned, zeroed buffer of bytes whose start is a multiple of [`ALIGNMENT_BYTES`].
#[derive(Debug)]
pub struct AlignedBytes {
    pointer: NonNull<u8>,
    len: usize,
    /// Where a large buffer lies: zero already, so that it becomes resident only where it is written.
    map: Option<MmapMut>,
}

// SAFETY: owns plain bytes.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes. Aborts if memory is out, as every allocation of the standard library does.
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

    /// A mapping of its own, one huge page longer so that it can begin at one.
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

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: owned, initialised, `len` long.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    /// The bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised, `len` long, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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

/// Gives `NonNull::dangling` the alignment that callers may rely on.
#[repr(align(64))]
struct Line;

#[cfg(target_os = "linux")]
fn advise_huge_pages(pointer: *mut u8, len: usize) {
    // SAFETY: the range is ours, and the advice changes no content. Refusal (old kernel, huge pages off) is fine.
    unsafe { libc::madvise(pointer.cast(), len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_pointer: *mut u8, _len: usize) {}

/// A cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct FloatLine([f32; LINE]);

/// Floats of a [`FloatLine`].
const LINE: usize = ALIGNMENT_BYTES / size_of::<f32>();

/// Floats that begin at a multiple of [`ALIGNMENT_BYTES`]: no vector of them crosses a cache line.
#[derive(Debug, Default)]
pub struct AlignedFloats {
    lines: Vec<FloatLine>,
    len: usize,
}

impl AlignedFloats {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![FloatLine([0.0; LINE]); len.div_ceil(LINE)], len }
    }
}

impl std::ops::Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a line is its floats and nothing else.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: a line is its floats and nothing else.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
