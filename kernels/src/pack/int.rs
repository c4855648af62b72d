//! What the integer formats have in common: a row is groups of unsigned numbers with scale, zero point and minimum.
//!
//! Element `k` of group `g` stands for `scale[g] * (quant[k] - ZERO_POINT) + min[g]`, in f32, the product first. For
//! every format here that product is exact in f32, so the value equals ggml's to the bit.

use half::f16;

/// Most groups of a block, over all formats (Q6_K: 256 / 16).
pub(crate) const MAX_BLOCK_GROUPS: usize = 16;
/// Most elements of a block.
pub(crate) const MAX_BLOCK_ELEMENTS: usize = 256;

/// An integer source format, and the kernel layout that keeps its numbers unchanged.
pub(crate) trait IntFormat {
    /// Elements that share scale and minimum: 32, or 16.
    const GROUP: usize;
    /// Two quants a byte in the kernel layout, else one.
    const NIBBLES: bool;
    /// Subtracted from every quant: 0 or a power of two.
    const ZERO_POINT: u8;
    /// Scales and minima are kept as binary16, else as binary32.
    const HALF_SCALES: bool;
    /// Groups have a minimum.
    const HAS_MIN: bool;
    /// Elements of a source block.
    const BLOCK_ELEMENTS: usize;
    /// Bytes of a source block.
    const BLOCK_BYTES: usize;

    /// Takes a block of `BLOCK_BYTES` apart.
    fn unpack(block: &[u8], out: &mut UnpackedBlock);

    /// A kept scale or minimum as f32, exactly.
    fn scale_value(bits: u32) -> f32 {
        if Self::HALF_SCALES {
            // The upper half is zero: `unpack` stored 16 bits.
            f16::from_bits((bits & 0xffff) as u16).to_f32()
        } else {
            f32::from_bits(bits)
        }
    }

    /// The f32 that a quant stands for.
    fn value(quant: u8, scale_bits: u32, min_bits: u32) -> f32 {
        let product =
            Self::scale_value(scale_bits) * f32::from(i16::from(quant) - i16::from(Self::ZERO_POINT));
        if Self::HAS_MIN { product + Self::scale_value(min_bits) } else { product }
    }
}

/// A block taken apart; only the first `BLOCK_ELEMENTS` and groups count.
pub(crate) struct UnpackedBlock {
    /// Unsigned numbers in the order of the row.
    pub(crate) quants: [u8; MAX_BLOCK_ELEMENTS],
    /// Bits of each group's scale, of the width that `HALF_SCALES` says.
    pub(crate) scales: [u32; MAX_BLOCK_GROUPS],
    /// Bits of each group's minimum; not written without `HAS_MIN`.
    pub(crate) mins: [u32; MAX_BLOCK_GROUPS],
}

impl UnpackedBlock {
    pub(crate) fn new() -> Self {
        Self { quants: [0; MAX_BLOCK_ELEMENTS], scales: [0; MAX_BLOCK_GROUPS], mins: [0; MAX_BLOCK_GROUPS] }
    }
}

/// The two bytes at `at`, little-endian, as stored bits of a binary16.
pub(crate) fn half_bits(block: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The binary16 at `at` as f32.
pub(crate) fn half_value(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The 32 quants of a Q5_0 or Q5_1 block: `fifth_bits` in the order of elements, nibbles of elements 0 to 15 low.
pub(crate) fn unpack_five_bits(fifth_bits: &[u8], nibbles: &[u8], out: &mut UnpackedBlock) {
    let fifth = |element: usize| (fifth_bits[element / 8] >> (element % 8) & 1) << 4;
    for (index, byte) in nibbles.iter().enumerate() {
        out.quants[index] = (byte & 15) | fifth(index);
        out.quants[index + 16] = (byte >> 4) | fifth(index + 16);
    }
}

/// Scale and minimum number `index` of the 8 pairs of 6 bits in the 12 bytes of a Q4_K or Q5_K block.
pub(crate) fn six_bit_scale_and_min(packed: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        let low = packed[index + 4];
        ((low & 15) | (packed[index - 4] >> 6 << 4), (low >> 4) | (packed[index] >> 6 << 4))
    }
}

/// Scales and minima of a Q4_K or Q5_K block, which begins with `d`, `dmin` and the 12 bytes of pairs.
///
/// 11-bit significands times 6-bit integers: exact in f32. The minimum is subtracted by ggml, so it is kept negated.
pub(crate) fn unpack_k_scales(block: &[u8], out: &mut UnpackedBlock) {
    let (scale, min) = (half_value(block, 0), half_value(block, 2));
    for group in 0..8 {
        let (group_scale, group_min) = six_bit_scale_and_min(&block[4..16], group);
        out.scales[group] = (scale * f32::from(group_scale)).to_bits();
        out.mins[group] = (-(min * f32::from(group_min))).to_bits();
    }
}

/// The values of a row of whole blocks.
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
