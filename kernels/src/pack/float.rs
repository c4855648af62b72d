//! The float formats. Their elements are little-endian numbers that f32 represents exactly.

use half::{bf16, f16};

use crate::vector::Lanes;

/// A float source format. The packed layout keeps its elements unchanged.
pub(crate) trait FloatFormat {
    const ELEMENT_BYTES: usize;

    /// Returns the element at the start of `bytes` as f32, exactly.
    fn value(bytes: &[u8]) -> f32;

    /// Loads sixteen elements from `p` as f32, exactly.
    ///
    /// # Safety
    /// The conditions are those of [`Lanes`].
    unsafe fn load<L: Lanes>(p: *const u8) -> L;
}

pub(crate) fn dequantize<F: FloatFormat>(row: &[u8], out: &mut [f32]) {
    for (bytes, value) in row.chunks_exact(F::ELEMENT_BYTES).zip(out) {
        *value = F::value(bytes);
    }
}

pub(crate) enum F32 {}

impl FloatFormat for F32 {
    const ELEMENT_BYTES: usize = 4;

    fn value(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L {
        // SAFETY: the conditions are the same.
        unsafe { L::load(p.cast()) }
    }
}

pub(crate) enum F16 {}

impl FloatFormat for F16 {
    const ELEMENT_BYTES: usize = 2;

    fn value(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L {
        // SAFETY: the conditions are the same.
        unsafe { L::load_f16(p.cast()) }
    }
}

pub(crate) enum Bf16 {}

impl FloatFormat for Bf16 {
    const ELEMENT_BYTES: usize = 2;

    fn value(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L {
        // SAFETY: the conditions are the same.
        unsafe { L::load_bf16(p.cast()) }
    }
}
