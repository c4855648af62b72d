//! The memory of packed weights, which is either allocated or a mapped file.

use std::ptr::NonNull;

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
}

// SAFETY: the bytes are never written.
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
