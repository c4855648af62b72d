//! What the float formats have in common: an element is a little-endian number that f32 holds exactly.

use half::{bf16, f16};

use super::Format;

/// A float source format; the kernel layout keeps its elements unchanged.
pub(crate) trait FloatFormat {
    /// Its name: kernels convert each in their own way.
    const FORMAT: Format;
    /// Bytes of an element.
    const ELEMENT_BYTES: usize;

    /// The element at the start of `bytes` as f32, exactly.
    fn value(bytes: &[u8]) -> f32;
}

/// The values of a row.
pub(crate) fn dequantize<F: FloatFormat>(row: &[u8], out: &mut [f32]) {
    for (bytes, value) in row.chunks_exact(F::ELEMENT_BYTES).zip(out) {
        *value = F::value(bytes);
    }
}

/// IEEE 754 binary32.
pub(crate) enum F32 {}

impl FloatFormat for F32 {
    const FORMAT: Format = Format::F32;
    const ELEMENT_BYTES: usize = 4;

    fn value(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// IEEE 754 binary16.
pub(crate) enum F16 {}

impl FloatFormat for F16 {
    const FORMAT: Format = Format::F16;
    const ELEMENT_BYTES: usize = 2;

    fn value(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

/// The upper half of binary32.
pub(crate) enum Bf16 {}

impl FloatFormat for Bf16 {
    const FORMAT: Format = Format::BF16;
    const ELEMENT_BYTES: usize = 2;

    fn value(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}
