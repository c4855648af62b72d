//! The integer formats. A row consists of groups of unsigned numbers with a scale, a zero point and a minimum.
//!
//! Element `k` of group `g` has the value `scale[g] * (quant[k] - ZERO_POINT) + min[g]`, computed in f32. In all these
//! formats the product is exact in f32, so the value equals ggml's to the bit.
//!
//! Packed weights hold the quants as codes of few bits, and scales as the file has them ([`Codes`], [`Scales`]).
//! Kernels multiply bytes or nibbles with scales of binary16 or binary32, to which they are expanded in the first-level
//! cache.

use half::f16;

use super::TILE;
use crate::vector::ByteLanes;

/// The most groups per block of any format (Q6_K: 256 / 16).
pub(crate) const MAX_BLOCK_GROUPS: usize = 16;
/// The most bytes of a block of words.
pub(crate) const MAX_BLOCK_BYTES: usize = 112;
/// The most elements per block of any format.
pub(crate) const MAX_BLOCK_ELEMENTS: usize = 256;

/// The form in which packed weights hold the quants of a format.
#[derive(Debug, Clone, Copy)]
pub enum Codes {
    /// Numbers of 2 to 6 or 8 bits; see [`super::codes`].
    Bits(usize),
    /// Numbers of 4 bits, which are indices of the quants.
    Levels(&'static [u8; 16]),
    /// The blocks of the file as words; see [`IntFormat::to_words`]. The number is the bound of the quants.
    Words(usize),
}

impl Codes {
    const fn max_quant(self) -> usize {
        match self {
            Self::Bits(bits) => (1 << bits) - 1,
            Self::Levels(levels) => {
                let (mut largest, mut at) = (0, 0);
                while at < levels.len() {
                    if levels[at] as usize > largest {
                        largest = levels[at] as usize;
                    }
                    at += 1;
                }
                // One bound for all quants of 8 bits, so that formats share kernels.
                if largest > 127 { 255 } else { largest }
            }
            Self::Words(max_quant) => max_quant,
        }
    }
}

/// The form in which packed weights hold the scales (and minima) of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// A binary16 for each group.
    Half,
    /// A binary32 for each group.
    Single,
    /// An unsigned byte for each group, which a binary16 of the block multiplies. Minima are negated.
    Bytes,
    /// Likewise, after [`SIGN_OFFSET`] is subtracted.
    SignedBytes,
    /// Four unsigned bits for the scale of a group and four for its minimum, with factors as in `Bytes`.
    Nibbles,
    /// The exponent `e` of each group, whose scale is 2^(e - 128).
    Exponents,
    /// A binary16 for each block.
    OfBlock,
}

/// The number that is added to signed scales, so that they are unsigned bytes.
pub const SIGN_OFFSET: f32 = 128.0;

/// An integer source format and its packed layout.
pub trait IntFormat {
    /// Elements that share a scale and a minimum: 32 or 16.
    const GROUP: usize;
    const CODES: Codes;
    /// For [`Codes::Words`], what `unpack` returns. Kernels read binary32.
    const SCALES: Scales;
    /// The number subtracted from every quant: 0 or a power of two.
    const ZERO_POINT: u8;
    const HAS_MIN: bool;
    const BLOCK_ELEMENTS: usize;
    const BLOCK_BYTES: usize;

    /// True if kernels multiply two quants per byte.
    const NIBBLES: bool = matches!(Self::CODES, Codes::Bits(..=4) | Codes::Words(..=15));
    /// The bound of the quants.
    const MAX_QUANT: usize = Self::CODES.max_quant();
    /// True if kernels read scales and minima as binary16, false if as binary32.
    const HALF_SCALES: bool = matches!(Self::SCALES, Scales::Half);

    /// Unpacks a source block of `BLOCK_BYTES` bytes.
    fn unpack(block: &[u8], out: &mut UnpackedBlock);

    /// Brings a block of the file into the order of [`Codes::Words`]: words of 4 bytes, then 2 bytes that are left.
    fn to_words(_block: &mut [u8]) {}

    /// The inverse of [`IntFormat::to_words`].
    fn from_words(_words: &mut [u8]) {}

    /// Expands a block of [`Codes::Words`] of a tile to quants and scales as kernels read them.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `L`.
    unsafe fn expand<L: ByteLanes>(_block: &[u8], _quants: &mut [u8], _scales: &mut [[f32; TILE]]) {
        unreachable!("other codes are expanded by their bits")
    }

    /// Converts the bits of a scale or minimum, as kernels read it, to f32, exactly.
    fn scale_value(bits: u32) -> f32 {
        if Self::HALF_SCALES { half(bits) } else { f32::from_bits(bits) }
    }
}

/// An unpacked block. Only the first `BLOCK_ELEMENTS` elements and their groups are valid.
pub struct UnpackedBlock {
    /// The codes of the elements, in the order of the row. They are the quants unless the format has levels.
    pub codes: [u8; MAX_BLOCK_ELEMENTS],
    /// The bits of each group's scale, in the form that the format's [`Scales`] name.
    pub scales: [u32; MAX_BLOCK_GROUPS],
    /// The bits of each group's minimum. Not written unless `HAS_MIN`.
    pub mins: [u32; MAX_BLOCK_GROUPS],
    /// The bits of the binary16 that multiplies the scales, and of the one that multiplies the minima.
    pub factors: [u32; 2],
}

impl Default for UnpackedBlock {
    fn default() -> Self {
        Self {
            codes: [0; MAX_BLOCK_ELEMENTS],
            scales: [0; MAX_BLOCK_GROUPS],
            mins: [0; MAX_BLOCK_GROUPS],
            factors: [0; 2],
        }
    }
}

impl UnpackedBlock {
    /// Returns the unsigned quant of an element.
    pub fn quant<F: IntFormat>(&self, element: usize) -> u8 {
        let code = self.codes[element];
        if let Codes::Levels(levels) = F::CODES { levels[usize::from(code & 15)] } else { code }
    }

    pub fn scale<F: IntFormat>(&self, group: usize) -> f32 {
        let (bits, factor) = (self.scales[group], half(self.factors[0]));
        // Products of an 11-bit significand and an 8-bit integer are exact.
        match F::SCALES {
            Scales::Half => half(bits),
            Scales::Single => f32::from_bits(bits),
            Scales::Bytes | Scales::Nibbles => factor * (bits as u8 as f32),
            Scales::SignedBytes => factor * (bits as u8 as f32 - SIGN_OFFSET),
            Scales::Exponents => exponent_value(bits as u8),
            Scales::OfBlock => factor,
        }
    }

    /// Returns the minimum of a group. The format has minima.
    pub fn min<F: IntFormat>(&self, group: usize) -> f32 {
        let bits = self.mins[group];
        match F::SCALES {
            Scales::Half => half(bits),
            Scales::Single => f32::from_bits(bits),
            _ => -(half(self.factors[1]) * (bits as u8 as f32)),
        }
    }

    /// Returns true if all scales and minima are finite.
    pub(crate) fn is_finite<F: IntFormat>(&self) -> bool {
        let num_groups = F::BLOCK_ELEMENTS / F::GROUP;
        // Bytes times a finite factor are finite.
        let (exponent, scales, mins) = match F::SCALES {
            Scales::Single => (0x7f80_0000, &self.scales[..num_groups], &self.mins[..num_groups]),
            Scales::Half => (0x7c00, &self.scales[..num_groups], &self.mins[..num_groups]),
            Scales::Exponents => return true,
            _ => (0x7c00, &self.factors[..1], &self.factors[1..]),
        };
        let are_finite = |floats: &[u32]| floats.iter().all(|bits| bits & exponent != exponent);
        are_finite(scales) && (!F::HAS_MIN || are_finite(mins))
    }

    /// Writes the values of all elements.
    pub(crate) fn dequantize<F: IntFormat>(&self, values: &mut [f32]) {
        for (group, values) in values.chunks_exact_mut(F::GROUP).enumerate() {
            let scale = self.scale::<F>(group);
            for (at, value) in values.iter_mut().enumerate() {
                let quant = self.quant::<F>(group * F::GROUP + at);
                *value = scale * f32::from(i16::from(quant) - i16::from(F::ZERO_POINT));
            }
            if F::HAS_MIN {
                let min = self.min::<F>(group);
                values.iter_mut().for_each(|value| *value += min);
            }
        }
    }
}

/// The value of binary16 bits. The upper half is zero.
fn half(bits: u32) -> f32 {
    f16::from_bits((bits & 0xffff) as u16).to_f32()
}

/// Computes 2^(e - 128), whose smallest two values are subnormal.
#[inline(always)]
pub fn exponent_value(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x20_0000 << exponent } else { (exponent - 1) << 23 })
}

/// Returns the bits of the little-endian binary16 at `at`.
#[inline(always)]
pub(crate) fn half_bits(block: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Unpacks the 32 quants of a Q5_0 or Q5_1 block. `fifth_bits` are in the order of elements. The low nibbles belong to
/// elements 0 to 15.
pub(crate) fn unpack_five_bits(fifth_bits: &[u8], nibbles: &[u8], out: &mut UnpackedBlock) {
    let fifth = |element: usize| (fifth_bits[element / 8] >> (element % 8) & 1) << 4;
    for (index, byte) in nibbles.iter().enumerate() {
        out.codes[index] = (byte & 15) | fifth(index);
        out.codes[index + 16] = (byte >> 4) | fifth(index + 16);
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
pub(crate) fn unpack_k_scales(block: &[u8], out: &mut UnpackedBlock) {
    out.factors = [half_bits(block, 0), half_bits(block, 2)];
    for group in 0..8 {
        let (scale, min) = six_bit_scale_and_min(&block[4..16], group);
        (out.scales[group], out.mins[group]) = (u32::from(scale), u32::from(min));
    }
}

/// Dequantises a row of whole blocks.
pub(crate) fn dequantize<F: IntFormat>(row: &[u8], out: &mut [f32]) {
    let mut block = UnpackedBlock::default();
    for (source, values) in row.chunks_exact(F::BLOCK_BYTES).zip(out.chunks_exact_mut(F::BLOCK_ELEMENTS)) {
        F::unpack(source, &mut block);
        block.dequantize::<F>(values);
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
    let mut block = UnpackedBlock::default();
    for source in blocks.chunks_exact(F::BLOCK_BYTES) {
        F::unpack(source, &mut block);
        let quants = (0..F::BLOCK_ELEMENTS).map(|element| block.quant::<F>(element));
        out.quants.extend(quants.map(|quant| quant.wrapping_sub(F::ZERO_POINT).cast_signed()));
        for group in 0..F::BLOCK_ELEMENTS / F::GROUP {
            out.scales.push(block.scale::<F>(group));
            if F::HAS_MIN {
                out.mins.push(block.min::<F>(group));
            }
        }
    }
    Some(out)
}
