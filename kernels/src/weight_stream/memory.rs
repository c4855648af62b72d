//! The memory of a streamed image: addresses for all of its bytes, and pages only for the pieces that are there.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

/// The image begins at a multiple of this, so that pieces are whole huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Addresses for an image. A piece takes memory from when it is written until it is dropped.
#[derive(Debug)]
pub(super) struct ImageMemory {
    start: NonNull<u8>,
    /// The image's bytes, and those up to the end of its last page.
    len: usize,
    is_locked: bool,
    _map: MmapMut,
}

// SAFETY: the bytes belong to this mapping, and the callers of the unsafe methods keep accesses apart.
unsafe impl Send for ImageMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for ImageMemory {}

impl ImageMemory {
    pub(super) fn reserve(image_bytes: usize) -> io::Result<Self> {
        let len = image_bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let mut map = MmapOptions::new().len(len + HUGE_PAGE_BYTES).no_reserve_swap().map_anon()?;
        let padding = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let start = NonNull::from(&mut map[padding..][..len]).cast();
        let mut memory = Self { start, len, is_locked: false, _map: map };
        memory.prepare();
        Ok(memory)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// # Safety
    /// Nobody writes or drops the bytes while they are borrowed.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "bytes of the image");
        // SAFETY: the range is inside the mapping, and the caller rules out writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// Nobody else reads, writes or drops the bytes while they are borrowed.
    #[allow(clippy::mut_from_ref, reason = "the caller keeps accesses apart")]
    pub(super) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "bytes of the image");
        // SAFETY: the range is inside the mapping, and the caller rules out aliases.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Asks for huge pages, and for pages that are never swapped out. Without the right to lock memory they may be.
    #[cfg(target_os = "linux")]
    fn prepare(&mut self) {
        let start: *mut libc::c_void = self.start.as_ptr().cast();
        // SAFETY: these calls change no content. `self` owns the range, of which no page has been touched.
        unsafe {
            libc::madvise(start, self.len, libc::MADV_HUGEPAGE);
            self.is_locked = libc::mlock2(start, self.len, libc::MLOCK_ONFAULT) == 0;
            // Older systems cannot drop locked pages.
            if self.is_locked && libc::madvise(start, self.len, libc::MADV_DONTNEED_LOCKED) != 0 {
                libc::munlock(start, self.len);
                self.is_locked = false;
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn prepare(&mut self) {}

    /// Gives the memory of a piece back. Its bytes are undefined until they are written again.
    ///
    /// # Safety
    /// Nobody borrows the bytes. `range` is a whole piece.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn drop_piece(&self, range: Range<usize>) {
        let len = range.len().next_multiple_of(HUGE_PAGE_BYTES).min(self.len - range.start);
        let advice = if self.is_locked { libc::MADV_DONTNEED_LOCKED } else { libc::MADV_DONTNEED };
        // SAFETY: the range is inside the mapping, and the caller rules out borrows.
        unsafe { libc::madvise(self.start.as_ptr().add(range.start).cast(), len, advice) };
    }

    /// # Safety
    /// Nobody borrows the bytes.
    #[cfg(not(target_os = "linux"))]
    pub(super) unsafe fn drop_piece(&self, _range: Range<usize>) {}
}
