//! The memory of packed weights: allocated, a mapped file, or filled while it is in use.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::Mmap;

use crate::aligned::{ALIGNMENT_BYTES, AlignedBytes};

/// Immutable bytes, aligned to [`ALIGNMENT_BYTES`]. The planes of weights share a region.
#[derive(Debug)]
pub struct Region {
    pointer: NonNull<u8>,
    len: usize,
    /// Keeps the memory at `pointer` alive.
    _owner: Owner,
}

#[derive(Debug)]
#[allow(dead_code, reason = "held to be dropped")]
enum Owner {
    Allocated(AlignedBytes),
    Mapped(Mmap),
    Shared(Arc<dyn Any + Send + Sync>),
}

// SAFETY: the bytes are never written while they are borrowed.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of the bytes of a mapped file from `offset` on. Returns `None` if `offset` is not aligned or is
    /// beyond the end of the file.
    pub fn of_file(map: Mmap, offset: usize) -> Option<Self> {
        let bytes = map.get(offset..)?;
        if !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES) {
            return None;
        }
        Some(Self { pointer: NonNull::from(bytes).cast(), len: bytes.len(), _owner: Owner::Mapped(map) })
    }

    /// Creates a region of `len` bytes at `pointer` that are filled and dropped while the region is in use.
    ///
    /// # Safety
    /// `owner` keeps the bytes readable, and nobody writes to bytes that are borrowed from [`Region::slice`]. Nobody
    /// may call [`Region::as_slice`].
    pub unsafe fn of_shared(pointer: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { pointer, len, _owner: Owner::Shared(owner) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Borrows some of the bytes, and no others.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "bytes of the region");
        // SAFETY: as for `as_slice`; the bytes are inside the region.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(range.start), range.len()) }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `_owner` keeps `len` initialised bytes alive, which are never written. For mapped files,
        // `weight_cache` guarantees it: it never modifies a file that has its final name.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl From<AlignedBytes> for Region {
    fn from(bytes: AlignedBytes) -> Self {
        Self {
            pointer: NonNull::from(bytes.as_slice()).cast(),
            len: bytes.as_slice().len(),
            _owner: Owner::Allocated(bytes),
        }
    }
}
