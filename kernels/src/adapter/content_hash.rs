//! Hashes the tensors of an adapter's file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub offset: u64,
    pub num_bytes: usize,
    /// The bits, as 2 or 4 bytes, that are all set in elements that are not finite. Others are not looked at.
    pub exponent: Vec<u8>,
}

/// Hashes `prefix` and the tensors with BLAKE3. Returns the hash as hexadecimal digits, and the index of the first
/// tensor with an element that is not finite. Reads each byte once.
pub fn hash_tensors(
    file: &File,
    prefix: &[u8],
    tensors: &[StoredTensor],
) -> io::Result<(String, Option<usize>)> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(prefix);
    let mut bytes = vec![0; tensors.iter().map(|tensor| tensor.num_bytes).max().unwrap_or_default()];
    let mut not_finite = None;
    for (index, tensor) in tensors.iter().enumerate() {
        let bytes = &mut bytes[..tensor.num_bytes];
        file.read_exact_at(bytes, tensor.offset)?;
        hasher.update(bytes);
        if not_finite.is_none() && !are_finite(bytes, &tensor.exponent) {
            not_finite = Some(index);
        }
    }
    Ok((hasher.finalize().to_hex().to_string(), not_finite))
}

fn are_finite(bytes: &[u8], exponent: &[u8]) -> bool {
    // Without an early exit, these loops become vectors.
    if let Ok(exponent) = exponent.try_into().map(u16::from_le_bytes) {
        let numbers = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        numbers.fold(true, |are, number| are & (number & exponent != exponent))
    } else if let Ok(exponent) = exponent.try_into().map(u32::from_le_bytes) {
        let numbers = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        numbers.fold(true, |are, number| are & (number & exponent != exponent))
    } else {
        true
    }
}
