//! Reads files whose size has a limit.

use std::fs;
use std::path::Path;

use crate::error::TextError;

/// Largest size of a configuration file or a chat template.
pub(super) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads a file. Returns `None` if it does not exist.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    let read_error = |source| TextError::Read { path: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    if bytes > limit {
        return Err(TextError::FileTooLarge { path: path.to_owned(), bytes, limit });
    }
    fs::read(path).map(Some).map_err(read_error)
}

pub(super) fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| TextError::InvalidFile { path: path.to_owned(), detail: error.to_string() })
}
