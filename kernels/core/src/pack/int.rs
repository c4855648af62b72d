//! The integer formats. A row consists of groups of unsigned numbers with a scale, a zero point and a minimum.
//!
//! Element `k` of group `g` has the value `scale[g] * (quant[k] - ZERO_POINT) + min[g]`, computed in f32. In all these
//! formats the product is exact in f32, so the value equals ggml's to the bit.

use half::f16;

/// The most groups per block of any format (Q6_K: 256 / 16).
pub(crate) const MAX_BLOCK_GROUPS: usize = 16;
/// The most elements per block of any format.
pub(crate) const MAX_BLOCK_ELEMENTS: usize = 256;

/// An integer source format and its packed layout.
pub trait IntFormat {
    /// Elements that share a scale and a minimum: 32 or 16.
    const GROUP: usize;
    /// True if the packed layout stores two quants per byte.
    const NIBBLES: bool;
    /// The number subtracted from every quant: 0 or a power of two.
    const ZERO_POINT: u8;
    /// True if the packed layout stores scales and minima as binary16, false if as binary32.
    const HALF_SCALES: bool;
    const HAS_MIN: bool;
    const BLOCK_ELEMENTS: usize;
    const BLOCK_BYTES: usize;

    /// Unpacks a source block of `BLOCK_BYTES` bytes.
    fn unpack(block: &[u8], out: &mut UnpackedBlock);

    /// Converts the stored bits of a scale or minimum to f32, exactly.
    fn scale_value(bits: u32) -> f32 {
        if Self::HALF_SCALES {
            // The upper half is zero, because `unpack` stores 16 bits.
            f16::from_bits((bits & 0xffff) as u16).to_f32()
        } else {
            f32::from_bits(bits)
        }
    }

    fn value(quant: u8, scale_bits: u32, min_bits: u32) -> f32 {
        let product =
            Self::scale_value(scale_bits) * f32::from(i16::from(quant) - i16::from(Self::ZERO_POINT));
        if Self::HAS_MIN { product + Self::scale_value(min_bits) } else { product }
    }
}

/// An unpacked block. Only the first `BLOCK_ELEMENTS` elements and their groups are valid.
pub struct UnpackedBlock {
    /// The unsigned quants in the order of the row.
    pub quants: [u8; MAX_BLOCK_ELEMENTS],
    /// The bits of each group's scale, in the width given by `HALF_SCALES`.
    pub scales: [u32; MAX_BLOCK_GROUPS],
    /// The bits of each group's minimum. Not written unless `HAS_MIN`.
    pub mins: [u32; MAX_BLOCK_GROUPS],
}

impl UnpackedBlock {
    pub(crate) fn new() -> Self {
        Self { quants: [0; MAX_BLOCK_ELEMENTS], scales: [0; MAX_BLOCK_GROUPS], mins: [0; MAX_BLOCK_GROUPS] }
    }
}

/// Returns the bits of the little-endian binary16 at `at`.
pub(crate) fn half_bits(block: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

pub(crate) fn half_value(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Unpacks the 32 quants of a Q5_0 or Q5_1 block. `fifth_bits` are in the order of elements. The low nibbles belong to
/// elements 0 to 15.
pub(crate) fn unpack_five_bits(fifth_bits: &[u8], nibbles: &[u8], out: &mut UnpackedBlock) {
    let fifth = |element: usize| (fifth_bits[element / 8] >> (element % 8) & 1) << 4;
    for (index, byte) in nibbles.iter().enumerate() {
        out.quants[index] = (byte & 15) | fifth(index);
        out.quants[index + 16] = (byte >> 4) | fifth(index + 16);
    }
}

/// Returns scale and minimum `index` of the 8 pairs of 6 bits in 12 bytes of a Q4_K or Q5_K block.
pub(crate) fn six_bit_scale_and_min(packed: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        let low = packed[index + 4];
        ((low & 15) | (packed[index - 4] >> 6 << 4), (low >> 4) | (packed[index] >> 6 << 4))
    }
}

/// Unpacks the scales and minima of a Q4_K or Q5_K block, which begins with `d`, `dmin` and the 12 bytes of pairs.
///
/// Products of 11-bit significands and 6-bit integers are exact in f32. ggml subtracts the minimum, so it is stored
/// negated.
pub(crate) fn unpack_k_scales(block: &[u8], out: &mut UnpackedBlock) {
    let (scale, min) = (half_value(block, 0), half_value(block, 2));
    for group in 0..8 {
        let (group_scale, group_min) = six_bit_scale_and_min(&block[4..16], group);
        out.scales[group] = (scale * f32::from(group_scale)).to_bits();
        out.mins[group] = (-(min * f32::from(group_min))).to_bits();
    }
}

/// Dequantises a row of whole blocks.
pub(crate) fn dequantize<F: IntFormat>(row: &[u8], out: &mut [f32]) {
    let mut block = UnpackedBlock::new();
    for (source, values) in row.chunks_exact(F::BLOCK_BYTES).zip(out.chunks_exact_mut(F::BLOCK_ELEMENTS)) {
        F::unpack(source, &mut block);
        for (element, value) in values.iter_mut().enumerate() {
            let group = element / F::GROUP;
            *value = F::value(block.quants[element], block.scales[group], block.mins[group]);
        }
    }
}

/// The numbers of an integer format: element `k` of group `g` is `scales[g] * quants[k] + mins[g]`.
#[derive(Debug, Default)]
pub struct Groups {
    /// Quants less the format's zero point.
    pub quants: Vec<i8>,
    pub scales: Vec<f32>,
    /// Empty if the format has no minima.
    pub mins: Vec<f32>,
}

/// Returns the numbers of whole blocks.
pub fn groups<F: IntFormat>(blocks: &[u8]) -> Option<Groups> {
    let mut out = Groups::default();
    let mut block = UnpackedBlock::new();
    let block_groups = F::BLOCK_ELEMENTS / F::GROUP;
    let values =
        |bits: &[u32]| bits[..block_groups].iter().map(|bits| F::scale_value(*bits)).collect::<Vec<_>>();
    for source in blocks.chunks_exact(F::BLOCK_BYTES) {
        F::unpack(source, &mut block);
        let quants = &block.quants[..F::BLOCK_ELEMENTS];
        out.quants.extend(quants.iter().map(|quant| quant.wrapping_sub(F::ZERO_POINT).cast_signed()));
        out.scales.extend(values(&block.scales));
        if F::HAS_MIN {
            out.mins.extend(values(&block.mins));
        }
    }
    Some(out)
}
