//! The float formats. Their elements are little-endian numbers that f32 represents exactly.

use half::{bf16, f16};

use crate::vector::Lanes;

/// The smallest magnitude of weights and activations in products of bfloat16; smaller ones count as 0. Products are
/// then never subnormal numbers, which instruction sets treat differently.
pub(crate) const SMALLEST_BF16: f32 = f32::from_bits((127 - 50) << 23);

/// A float source format. The packed layout keeps its elements unchanged, unless [`FloatFormat::pack`] says otherwise.
pub(crate) trait FloatFormat {
    const ELEMENT_BYTES: usize;
    /// Elements of a row that are summed separately before they are added to the total.
    const RUN: usize = 32;
    /// True if products need a row that [`crate::linear::round_row`] has rounded.
    const ROUNDS_INPUT: bool = false;

    /// Returns the element at the start of `bytes` as f32, exactly.
    fn value(bytes: &[u8]) -> f32;

    /// Copies an element to the packed layout.
    fn pack(bytes: &[u8], into: &mut [u8]) {
        into.copy_from_slice(bytes);
    }

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
    const RUN: usize = 128;
    const ROUNDS_INPUT: bool = true;

    fn pack(bytes: &[u8], into: &mut [u8]) {
        if Self::value(bytes).abs() < SMALLEST_BF16 {
            into.fill(0);
        } else {
            into.copy_from_slice(bytes);
        }
    }

    fn value(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L {
        // SAFETY: the conditions are the same.
        unsafe { L::load_bf16(p.cast()) }
    }
}
