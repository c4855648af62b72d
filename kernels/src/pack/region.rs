//! The memory that packed weights lie in: allocated here, or a file that several processes map.

use std::ptr::NonNull;

use memmap2::Mmap;

use crate::aligned::{ALIGNMENT_BYTES, AlignedBytes};

/// Bytes that do not change any more, on a boundary of [`ALIGNMENT_BYTES`]. Planes are slices of one that they share.
#[derive(Debug)]
pub(crate) struct Region {
    pointer: NonNull<u8>,
    len: usize,
    /// Holds what `pointer` points into.
    _owner: Owner,
}

#[derive(Debug)]
#[allow(dead_code, reason = "held to be dropped")]
enum Owner {
    Allocated(AlignedBytes),
    Mapped(Mmap),
}

// SAFETY: plain bytes that nobody writes.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// The bytes from `offset` on of a mapped file; `None` unless `offset` is aligned and inside.
    pub(crate) fn of_file(map: Mmap, offset: usize) -> Option<Self> {
        let bytes = map.get(offset..)?;
        if !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES) {
            return None;
        }
        Some(Self { pointer: NonNull::from(bytes).cast(), len: bytes.len(), _owner: Owner::Mapped(map) })
    }

    /// All bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `_owner` keeps `len` initialised bytes there, which nobody writes while it lives. Of a mapped file
        // that is the promise of `weight_cache`: a file under its final name is never written again.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl From<AlignedBytes> for Region {
    fn from(bytes: AlignedBytes) -> Self {
        Self {
            pointer: NonNull::from(bytes.as_slice()).cast(),
            len: bytes.len(),
            _owner: Owner::Allocated(bytes),
        }
    }
}
