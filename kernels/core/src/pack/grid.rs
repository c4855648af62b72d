//! Formats whose numbers are indices of vectors in a grid. Packed weights hold the blocks of the file, and their kernels
//! are those of IQ4_XS (a scale for 32 elements) or of IQ2_XS (one for 16).
//!
//! An element is a level of the grid with a sign, or for IQ1_S and IQ1_M a level plus or minus an eighth. All scales
//! are products of an 11-bit significand and an integer of up to 5 bits, which are exact.

use half::f16;

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits, half_value};

/// The grids of ggml (`iq2xxs_grid` and so on), 16 bits for each vector, with the index of the first element's level in
/// the lowest bits. IQ2_XXS begins at word 0, IQ2_XS at 256, IQ2_S at 768, IQ1_S at 1792, IQ3_XXS at 3840 and IQ3_S at
/// 4096.
const GRIDS: &[u8; 9216] = include_bytes!("grids.bin");
/// Quants count from here.
const ZERO: u8 = 128;

struct Grid {
    /// The word of the first vector.
    first: usize,
    /// Bits of a level's index.
    bits: usize,
    levels: [u8; 8],
}

const IQ2_LEVELS: [u8; 8] = [8, 25, 43, 0, 0, 0, 0, 0];
const IQ2_XXS: Grid = Grid { first: 0, bits: 2, levels: IQ2_LEVELS };
const IQ2_XS: Grid = Grid { first: 256, bits: 2, levels: IQ2_LEVELS };
const IQ2_S: Grid = Grid { first: 768, bits: 2, levels: IQ2_LEVELS };
const IQ3_XXS: Grid = Grid { first: 3840, bits: 3, levels: [4, 12, 20, 28, 36, 44, 52, 62] };
const IQ3_S: Grid = Grid { first: 4096, bits: 3, levels: [1, 3, 5, 7, 9, 11, 13, 15] };
/// Eight times the elements -1, 0 and 1, and eight more, so that they are not negative.
const IQ1: Grid = Grid { first: 1792, bits: 2, levels: [0, 8, 16, 0, 0, 0, 0, 0] };

impl Grid {
    /// Returns the elements of a vector.
    fn elements(&self, index: usize) -> impl Iterator<Item = u8> {
        let word = half_bits(GRIDS, 2 * (self.first + index));
        (0..16)
            .step_by(self.bits)
            .map(move |shift| self.levels[(word >> shift) as usize & ((1 << self.bits) - 1)])
    }

    /// Writes a vector. Bit `i` of `signs` is set if element `i` is negative.
    fn put(&self, index: usize, signs: u8, quants: &mut [u8]) {
        for (at, (quant, level)) in quants.iter_mut().zip(self.elements(index)).enumerate() {
            *quant = if signs >> at & 1 == 0 { ZERO + level } else { ZERO - level };
        }
    }

    /// Writes a vector of IQ1_S or IQ1_M, in eighths. `delta` is 1 or -1.
    fn put_shifted(&self, index: usize, delta: i8, quants: &mut [u8]) {
        for (quant, level) in quants.iter_mut().zip(self.elements(index)) {
            *quant = (ZERO - 8 + level).wrapping_add_signed(delta);
        }
    }
}

/// Returns the signs that 7 bits stand for: their number of ones is even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() as u8 & 1) << 7)
}

fn word(block: &[u8], at: usize) -> u32 {
    half_bits(block, at) | half_bits(block, at + 2) << 16
}

/// Returns nibble `index` of `bytes`, low ones first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (index % 2 * 4) & 15
}

/// The scale of a group: `factor * (2 * number + 1)`.
fn odd_scale(factor: f32, number: impl Into<u32>) -> u32 {
    (factor * (2 * number.into() + 1) as f32).to_bits()
}

/// Implements a format of groups of 32 or 16 elements.
macro_rules! grid_format {
    ($name:ident, $group:literal, $block_bytes:literal, $unpack:path) => {
        pub enum $name {}

        impl IntFormat for $name {
            const GROUP: usize = $group;
            const CODES: Codes = Codes::Blocks;
            const SCALES: Scales = Scales::Single;
            const ZERO_POINT: u8 = ZERO;
            const HAS_MIN: bool = false;
            const BLOCK_ELEMENTS: usize = 256;
            const BLOCK_BYTES: usize = $block_bytes;

            fn unpack(block: &[u8], out: &mut UnpackedBlock) {
                $unpack(block, out);
            }
        }
    };
}

grid_format!(Iq2Xxs, 32, 66, iq2_xxs);
grid_format!(Iq2Xs, 16, 74, iq2_xs);
grid_format!(Iq2S, 16, 82, iq2_s);
grid_format!(Iq3Xxs, 32, 98, iq3_xxs);
grid_format!(Iq3S, 32, 110, iq3_s);
grid_format!(Iq1S, 32, 50, iq1_s);
grid_format!(Iq1M, 16, 56, iq1_m);

/// Layout: binary16 scale; for each 32 elements 4 indices, and a word of four times 7 signs and a 4-bit scale.
fn iq2_xxs(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(8).enumerate() {
        let (group, part) = (at / 4, at % 4);
        let packed = word(block, 2 + 8 * group + 4);
        out.scales[group] = odd_scale(scale / 8.0, packed >> 28);
        IQ2_XXS.put(usize::from(block[2 + 8 * group + part]), even_signs(packed >> (7 * part)), quants);
    }
}

/// Layout: binary16 scale, 32 words of a 9-bit index and 7 signs, 16 scales of 4 bits.
fn iq2_xs(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(8).enumerate() {
        let packed = half_bits(block, 2 + 2 * at);
        out.scales[at / 2] = odd_scale(scale / 8.0, nibble(&block[66..], at / 2));
        IQ2_XS.put((packed & 511) as usize, even_signs(packed >> 9), quants);
    }
}

/// Layout: binary16 scale, 32 low bytes of indices, 32 bytes of signs, 32 upper pairs of the indices, 16 scales of 4
/// bits.
fn iq2_s(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + at / 4] >> (at % 4 * 2) & 3);
        out.scales[at / 2] = odd_scale(scale / 8.0, nibble(&block[74..], at / 2));
        IQ2_S.put(usize::from(block[2 + at]) | high << 8, block[34 + at], quants);
    }
}

/// Layout: binary16 scale, 64 indices; for each 32 elements a word as in IQ2_XXS.
fn iq3_xxs(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(4).enumerate() {
        let (group, part) = (at / 8, at % 8);
        let packed = word(block, 66 + 4 * group);
        out.scales[group] = odd_scale(scale / 4.0, packed >> 28);
        let signs = even_signs(packed >> (part / 2 * 7)) >> (part % 2 * 4);
        IQ3_XXS.put(usize::from(block[2 + at]), signs, quants);
    }
}

/// Layout: binary16 scale, 64 low bytes of indices, 64 ninth bits, 32 bytes of signs, 8 scales of 4 bits.
fn iq3_s(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(4).enumerate() {
        let high = usize::from(block[66 + at / 8] >> (at % 8) & 1);
        out.scales[at / 8] = odd_scale(scale, nibble(&block[106..], at / 8));
        IQ3_S.put(usize::from(block[2 + at]) | high << 8, block[74 + at / 2] >> (at % 2 * 4), quants);
    }
}

/// Layout: binary16 scale, 32 low bytes of indices; for each 32 elements a word of four times 3 high bits, a 3-bit
/// scale and the sign of the eighth.
fn iq1_s(block: &[u8], out: &mut UnpackedBlock) {
    let scale = half_value(block, 0);
    for (at, quants) in out.codes.chunks_exact_mut(8).enumerate() {
        let (group, part) = (at / 4, at % 4);
        let packed = half_bits(block, 34 + 2 * group);
        out.scales[group] = odd_scale(scale / 8.0, packed >> 12 & 7);
        let high = (packed >> (3 * part) & 7) as usize;
        IQ1.put_shifted(
            usize::from(block[2 + at]) | high << 8,
            if packed >> 15 == 0 { 1 } else { -1 },
            quants,
        );
    }
}

/// Layout: 32 low bytes of indices, 32 nibbles of 3 high bits and the sign of the eighth, four words of four 3-bit
/// scales, whose upper nibbles are those of the binary16 scale.
fn iq1_m(block: &[u8], out: &mut UnpackedBlock) {
    let words: [u32; 4] = std::array::from_fn(|index| half_bits(block, 48 + 2 * index));
    let bits = words[0] >> 12 | (words[1] >> 12) << 4 | (words[2] >> 12) << 8 | (words[3] >> 12) << 12;
    let scale = f16::from_bits((bits & 0xffff) as u16).to_f32();
    for (at, quants) in out.codes.chunks_exact_mut(8).enumerate() {
        let group = at / 2;
        out.scales[group] = odd_scale(scale / 8.0, words[group / 4] >> (group % 4 * 3) & 7);
        let packed = nibble(&block[32..48], at);
        let index = usize::from(block[at]) | usize::from(packed & 7) << 8;
        IQ1.put_shifted(index, if packed & 8 == 0 { 1 } else { -1 }, quants);
    }
}
