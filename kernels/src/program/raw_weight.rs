//! Weights as they are given to the builder.

use super::ProgramError;
use crate::pack::{Format, InterleavedHeads, PackError, SourceBytes, SourceRows};

/// A weight in its file's format.
pub(super) struct RawWeight {
    /// The format in which it is packed.
    pub(super) format: Format,
    /// The format of the bytes; another one only for matrices that packing quantises.
    pub(super) stored: Format,
    pub(super) bytes: SourceBytes,
    pub(super) shape: Vec<usize>,
    /// The order of the rows in the file, if it is not the model's.
    pub(super) interleaved_heads: Option<InterleavedHeads>,
}

impl RawWeight {
    /// Gets the bytes if they come later. `weight` is this weight's id.
    pub(super) fn read(&mut self, weight: usize) -> Result<(), ProgramError> {
        self.read_for_now(weight).map(|_| ())
    }

    /// Like [`RawWeight::read`]. Returns the source of bytes that came later, which gets them again after they are
    /// dropped.
    pub(super) fn read_for_now(&mut self, weight: usize) -> Result<Option<SourceBytes>, ProgramError> {
        let SourceBytes::Later(read) = &self.bytes else { return Ok(None) };
        let bytes = SourceBytes::Owned(read().ok_or(ProgramError::Unread { weight })?);
        let source = std::mem::replace(&mut self.bytes, bytes);
        self.check().map_err(|source| ProgramError::Weight { weight, source })?;
        Ok(Some(source))
    }

    /// Checks the number of bytes.
    pub(super) fn check(&self) -> Result<(), PackError> {
        let (rows, columns) = match *self.shape {
            [rows, columns] => (rows, columns),
            _ => (1, self.shape[0]),
        };
        self.stored.check(self.bytes.as_slice().len(), rows, columns).map(|_| ())
    }

    /// The rows of a matrix, in the model's order.
    pub(super) fn rows(&self) -> Result<SourceRows<'_>, PackError> {
        let rows = SourceRows::new(self.stored, self.bytes.as_slice(), self.shape[0], self.shape[1])?;
        self.interleaved_heads.map_or(Ok(rows), |heads| rows.interleaved(heads))
    }
}
