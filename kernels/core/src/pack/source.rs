//! Weights in the formats and the order of their files.

use super::{Format, PackError};

/// Returns the bytes of a weight, or `None` if its owner cannot produce them and keeps the reason.
pub type ReadBytes = Box<dyn Fn() -> Option<Vec<u8>> + Send + Sync>;

/// The bytes of a weight before it is packed.
pub enum SourceBytes {
    Owned(Vec<u8>),
    /// Bytes that exist only once they are needed, which they are not if the packed weight is in the cache.
    Later(ReadBytes),
    /// Borrowed bytes; see [`SourceBytes::borrow`].
    Borrowed {
        bytes: &'static [u8],
        /// True if the bytes are pages of a file mapped read-only, which may be dropped from memory once they are
        /// packed.
        is_mapped: bool,
    },
}

impl SourceBytes {
    /// Borrows bytes without copying them.
    ///
    /// # Safety
    /// `bytes` must stay valid and unchanged while the result lives. With `is_mapped` they must be part of a file
    /// mapping that is never written through.
    pub unsafe fn borrow(bytes: &[u8], is_mapped: bool) -> Self {
        // SAFETY: the caller keeps the bytes valid while the result lives.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        Self::Borrowed { bytes, is_mapped }
    }

    /// Returns the bytes, of which there are none yet if they come later.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Later(_) => &[],
            Self::Borrowed { bytes, .. } => bytes,
        }
    }

    /// Drops the whole pages of `range` from this process's memory if the bytes are a mapped file. A later access reads
    /// them from the file again.
    pub fn drop_pages(&self, range: std::ops::Range<usize>) {
        if let Self::Borrowed { bytes, is_mapped: true } = self {
            drop_pages(&bytes[range]);
        }
    }
}

/// Drops the whole pages of `bytes`, which are part of a file mapping.
#[cfg(target_os = "linux")]
fn drop_pages(bytes: &[u8]) {
    // SAFETY: the call only takes a number.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let padding = bytes.as_ptr().align_offset(page_bytes);
    let Some(whole) = bytes.get(padding..) else { return };
    let len = whole.len() / page_bytes * page_bytes;
    if len > 0 {
        // SAFETY: the pages are part of a file mapping that is never written through (`borrow`), so reading them again
        // gives the same bytes.
        unsafe { libc::madvise(whole.as_ptr().cast_mut().cast(), len, libc::MADV_DONTNEED) };
    }
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_bytes: &[u8]) {}

/// The rows of a weight, in the order that the model needs.
#[derive(Debug, Clone, Copy)]
pub struct SourceRows<'a> {
    bytes: &'a [u8],
    num_rows: usize,
    row_bytes: usize,
    interleaved_heads: Option<InterleavedHeads>,
}

/// An order in which a file may store the rows of each head: 0, h, 1, h + 1, ..., where h is half of `rotary_size`. The
/// rows behind the first `rotary_size` are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterleavedHeads {
    pub head_size: usize,
    pub rotary_size: usize,
}

impl InterleavedHeads {
    /// Fails unless `num_rows` rows are whole heads, of which an even number of rows is rotated.
    pub fn check(self, num_rows: usize) -> Result<(), PackError> {
        let Self { head_size, rotary_size } = self;
        let is_even = rotary_size != 0 && rotary_size.is_multiple_of(2) && rotary_size <= head_size;
        if !is_even || !num_rows.is_multiple_of(head_size) {
            return Err(PackError::Heads { num_rows, head_size, rotary_size });
        }
        Ok(())
    }

    /// The index in the file of row `row` of the model.
    pub fn stored(self, row: usize) -> usize {
        let (within, half) = (row % self.head_size, self.rotary_size / 2);
        if within < self.rotary_size { row - within + 2 * (within % half) + within / half } else { row }
    }
}

impl<'a> SourceRows<'a> {
    /// Creates the rows. Fails unless `bytes` has the size of a weight `[out_features, in_features]`.
    pub fn new(
        format: Format,
        bytes: &'a [u8],
        out_features: usize,
        in_features: usize,
    ) -> Result<Self, PackError> {
        let row_bytes = format.check(bytes.len(), out_features, in_features)?;
        Ok(Self { bytes, num_rows: out_features, row_bytes, interleaved_heads: None })
    }

    /// Declares that the file stores the rows in this order, as many do with query and key weights.
    /// [`SourceRows::row`] undoes it.
    pub fn interleaved(self, heads: InterleavedHeads) -> Result<Self, PackError> {
        heads.check(self.num_rows)?;
        Ok(Self { interleaved_heads: Some(heads), ..self })
    }

    /// The same rows, converted to another format in the order of the file.
    pub fn converted(self, format: Format, bytes: &'a [u8], num_columns: usize) -> Result<Self, PackError> {
        Ok(Self {
            interleaved_heads: self.interleaved_heads,
            ..Self::new(format, bytes, self.num_rows, num_columns)?
        })
    }

    /// All bytes, in the order of the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    pub fn row(&self, row: usize) -> &'a [u8] {
        let stored = self.interleaved_heads.map_or(row, |heads| heads.stored(row));
        &self.bytes[stored * self.row_bytes..][..self.row_bytes]
    }

    /// Returns row `row` of several concatenated weights. Panics if they have fewer rows.
    pub fn of_joined(parts: &[SourceRows<'a>], row: usize) -> &'a [u8] {
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
