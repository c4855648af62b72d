//! The float formats. Their elements are little-endian numbers that f32 represents exactly.

use half::{bf16, f16};

use crate::pack::TILE;
use crate::vector::Lanes;

/// The smallest magnitude of weights and activations in products of bfloat16; smaller ones count as 0. Products are
/// then never subnormal numbers, which instruction sets treat differently.
pub const SMALLEST_BF16: f32 = f32::from_bits((127 - 50) << 23);

/// Elements of a row that products sum separately before they add them to the total, in two halves.
pub const RUN: usize = 32;

/// A float source format. The packed layout keeps its elements unchanged, unless [`FloatFormat::pack`] says otherwise.
pub trait FloatFormat {
    const ELEMENT_BYTES: usize;
    /// Distance between the output features of a vector, in bytes.
    const LANE_BYTES: usize = Self::ELEMENT_BYTES;
    /// True if products need a row that `linear::round_row` has rounded.
    const ROUNDS_INPUT: bool = false;

    /// The number of vectors of a tile.
    fn num_vectors(in_features: usize) -> usize {
        in_features
    }

    /// The offset in a tile of an element of the first output feature, in bytes.
    #[inline(always)]
    fn offset(element: usize) -> usize {
        element * TILE * Self::LANE_BYTES
    }

    /// Returns the element at the start of `bytes` as f32, exactly.
    fn value(bytes: &[u8]) -> f32;

    /// Copies an element to the packed layout.
    fn pack(bytes: &[u8], into: &mut [u8]) {
        into.copy_from_slice(bytes);
    }

    /// Loads sixteen adjacent elements from `p` as f32, exactly.
    ///
    /// # Safety
    /// The conditions are those of [`Lanes`].
    unsafe fn load<L: Lanes>(p: *const u8) -> L;

    /// Loads an element of sixteen output features as f32, exactly.
    ///
    /// # Safety
    /// The conditions are those of [`Lanes`]. `tile` must point to a tile with this element.
    #[inline(always)]
    unsafe fn load_element<L: Lanes>(tile: *const u8, element: usize) -> L {
        // SAFETY: the conditions are the same.
        unsafe { Self::load(tile.add(Self::offset(element))) }
    }
}

pub(crate) fn dequantize<F: FloatFormat>(row: &[u8], out: &mut [f32]) {
    for (bytes, value) in row.chunks_exact(F::ELEMENT_BYTES).zip(out) {
        *value = F::value(bytes);
    }
}

pub enum F32 {}

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

pub enum F16 {}

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

pub enum Bf16 {}

impl FloatFormat for Bf16 {
    const ELEMENT_BYTES: usize = 2;
    const LANE_BYTES: usize = 4;
    const ROUNDS_INPUT: bool = true;

    /// A vector holds elements `v` and `v + 16` of a run, as pairs. The last run is padded with zeros.
    #[inline]
    fn num_vectors(in_features: usize) -> usize {
        in_features.div_ceil(RUN) * (RUN / 2)
    }

    #[inline(always)]
    fn offset(element: usize) -> usize {
        let (run, within) = (element / RUN, element % RUN);
        let vector = run * (RUN / 2) + within % (RUN / 2);
        vector * TILE * Self::LANE_BYTES + within / (RUN / 2) * Self::ELEMENT_BYTES
    }

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

    #[inline(always)]
    unsafe fn load_element<L: Lanes>(tile: *const u8, element: usize) -> L {
        let offset = Self::offset(element);
        let (pairs, is_second) =
            (offset / Self::LANE_BYTES * Self::LANE_BYTES, !offset.is_multiple_of(Self::LANE_BYTES));
        // SAFETY: the conditions are the same.
        unsafe { L::load_bf16_of_pairs(tile.add(pairs).cast(), is_second) }
    }
}
