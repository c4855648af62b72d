//! Weights as their files hold them.

use super::{Format, PackError};

/// Bytes of a weight on their way to the kernels.
#[derive(Debug)]
pub enum SourceBytes {
    Owned(Vec<u8>),
    /// Borrowed from somebody who keeps them: see [`SourceBytes::borrow`].
    Borrowed {
        /// The bytes.
        bytes: &'static [u8],
        /// They are pages of a file mapped read-only, which may be dropped from memory once they are packed.
        is_mapped: bool,
    },
}

impl SourceBytes {
    /// Bytes that are not copied.
    ///
    /// # Safety
    /// `bytes` must stay there, unchanged, for as long as the result lives; with `is_mapped` they must lie in a mapping
    /// of a file through which nobody writes.
    pub unsafe fn borrow(bytes: &[u8], is_mapped: bool) -> Self {
        // SAFETY: the caller keeps the bytes for as long as anybody can reach them through the result.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        Self::Borrowed { bytes, is_mapped }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Borrowed { bytes, .. } => bytes,
        }
    }

    /// Says that the bytes of `range` are not needed for now: whole pages of a mapped file leave this process's memory,
    /// and are read from the file again if they are looked at after all.
    pub fn drop_pages(&self, range: std::ops::Range<usize>) {
        if let Self::Borrowed { bytes, is_mapped: true } = self {
            drop_pages(&bytes[range]);
        }
    }
}

/// Drops the whole pages of `bytes`, a part of a file's mapping.
#[cfg(target_os = "linux")]
fn drop_pages(bytes: &[u8]) {
    // SAFETY: takes a number, touches no memory.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let padding = bytes.as_ptr().align_offset(page_bytes);
    let Some(whole) = bytes.get(padding..) else { return };
    let len = whole.len() / page_bytes * page_bytes;
    if len > 0 {
        // SAFETY: the pages are of a file's mapping that nobody writes through (`borrow`), so reading them again gives
        // the same bytes; advice that is refused changes nothing.
        unsafe { libc::madvise(whole.as_ptr().cast_mut().cast(), len, libc::MADV_DONTNEED) };
    }
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_bytes: &[u8]) {}

/// The rows of one weight, in the order in which the model wants them.
#[derive(Debug, Clone, Copy)]
pub struct SourceRows<'a> {
    bytes: &'a [u8],
    num_rows: usize,
    row_bytes: usize,
    /// Rows of a head, if the two halves of each head are interleaved in the file.
    interleaved_head: Option<usize>,
}

impl<'a> SourceRows<'a> {
    /// Checks that `bytes` are the rows of a weight [out_features, in_features].
    pub fn new(
        format: Format,
        bytes: &'a [u8],
        out_features: usize,
        in_features: usize,
    ) -> Result<Self, PackError> {
        let row_bytes = format.check(bytes.len(), out_features, in_features)?;
        Ok(Self { bytes, num_rows: out_features, row_bytes, interleaved_head: None })
    }

    /// The same rows, of which each `head_size` are stored as 0, h, 1, h + 1, ... with h half of that: the conversion
    /// to GGUF stores queries and keys so. `row` gives them in the order 0, 1, 2, ...
    pub fn interleaved(self, head_size: usize) -> Result<Self, PackError> {
        check_heads(self.num_rows, head_size)?;
        Ok(Self { interleaved_head: Some(head_size), ..self })
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// The bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let stored = self.interleaved_head.map_or(row, |head_size| interleaved_row(row, head_size));
        &self.bytes[stored * self.row_bytes..][..self.row_bytes]
    }

    /// Row `row` of several weights back to back. Panics if they have fewer.
    pub(crate) fn of_joined(parts: &[SourceRows<'a>], row: usize) -> &'a [u8] {
        let mut row = row;
        for part in parts {
            if row < part.num_rows {
                return part.row(row);
            }
            row -= part.num_rows;
        }
        panic!("row {row} behind the last part")
    }
}

/// Fails unless `num_rows` rows are heads of `head_size` rows, with two halves each.
pub(crate) fn check_heads(num_rows: usize, head_size: usize) -> Result<(), PackError> {
    if head_size == 0 || !head_size.is_multiple_of(2) || !num_rows.is_multiple_of(head_size) {
        return Err(PackError::Heads { num_rows, head_size });
    }
    Ok(())
}

/// Where a file with interleaved halves has row `row`.
pub(crate) fn interleaved_row(row: usize, head_size: usize) -> usize {
    let (head, within) = (row / head_size, row % head_size);
    let half = head_size / 2;
    head * head_size + 2 * (within % half) + within / half
}
