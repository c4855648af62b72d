//! Formats whose numbers are indices of vectors in a grid. Packed weights hold the blocks of the file, and their
//! kernels are those of IQ4_XS (a scale for 32 elements) or of IQ2_XS (one for 16).
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

const IQ2_LEVELS: [u8; 4] = [8, 25, 43, 0];
static IQ2_XXS: [u64; 256] = table(0, IQ2_LEVELS);
static IQ2_XS: [u64; 512] = table(256, IQ2_LEVELS);
static IQ2_S: [u64; 1024] = table(768, IQ2_LEVELS);
/// Eight times the elements -1, 0 and 1, and eight more, so that they are not negative.
static IQ1: [u64; 2048] = table(1792, [0, 8, 16, 0]);
static IQ3_XXS: [u32; 256] = table_of_fours(3840, [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [u32; 512] = table_of_fours(4096, [1, 3, 5, 7, 9, 11, 13, 15]);
/// For each byte, the bytes of a word that are all ones where the byte has a one.
static MASKS: [u64; 256] = masks();

/// The masks of 7 bits and an eighth that makes the number of ones even.
static EVEN_MASKS: [u64; 128] = even_masks();

/// Eight bytes of 1.
const ONES: u64 = 0x0101_0101_0101_0101;

const fn grid_word(index: usize) -> usize {
    GRIDS[2 * index] as usize | (GRIDS[2 * index + 1] as usize) << 8
}

/// The vectors of a grid from its word `first` on, with the first element in the lowest byte.
const fn table<const N: usize>(first: usize, levels: [u8; 4]) -> [u64; N] {
    let (mut table, mut at) = ([0; N], 0);
    while at < 8 * N {
        let (index, element) = (at / 8, at % 8);
        let level = levels[grid_word(first + index) >> (2 * element) & 3];
        table[index] |= (level as u64) << (8 * element);
        at += 1;
    }
    table
}

/// Likewise, for vectors of four elements.
const fn table_of_fours<const N: usize>(first: usize, levels: [u8; 8]) -> [u32; N] {
    let (mut table, mut at) = ([0; N], 0);
    while at < 4 * N {
        let (index, element) = (at / 4, at % 4);
        let level = levels[grid_word(first + index) >> (3 * element) & 7];
        table[index] |= (level as u32) << (8 * element);
        at += 1;
    }
    table
}

const fn even_masks() -> [u64; 128] {
    let (all, mut masks, mut bits) = (masks(), [0; 128], 0);
    while bits < masks.len() {
        masks[bits] = all[bits | (bits.count_ones() as usize & 1) << 7];
        bits += 1;
    }
    masks
}

const fn masks() -> [u64; 256] {
    let (mut masks, mut at) = ([0; 256], 0);
    while at < 8 * 256 {
        let (byte, bit) = (at / 8, at % 8);
        if byte >> bit & 1 == 1 {
            masks[byte] |= 0xff << (8 * bit);
        }
        at += 1;
    }
    masks
}

/// Gives eight levels their signs. Bit `i` of `signs` is set if element `i` is negative.
#[inline(always)]
fn signed(levels: u64, signs: u8) -> u64 {
    with_signs(levels, MASKS[usize::from(signs)])
}

/// Gives eight levels their signs. The bytes of negative elements are set in `mask`.
#[inline(always)]
fn with_signs(levels: u64, mask: u64) -> u64 {
    let zero = ONES * u64::from(ZERO);
    // Levels are below 128, so neither a sum nor a difference leaves its byte.
    ((zero + levels) & !mask) | ((zero - levels) & mask)
}

/// Joins two vectors of four elements.
#[inline(always)]
fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Adds an eighth to a vector of IQ1_S or IQ1_M, or subtracts it.
#[inline(always)]
fn shifted(levels: u64, is_down: bool) -> u64 {
    levels + ONES * u64::from(if is_down { ZERO - 9 } else { ZERO - 7 })
}

/// Gives eight levels the signs that 7 bits stand for: their number of ones is even.
#[inline(always)]
fn evenly_signed(levels: u64, bits: u32) -> u64 {
    with_signs(levels, EVEN_MASKS[(bits & 127) as usize])
}

#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    half_bits(block, at) | half_bits(block, at + 2) << 16
}

/// Returns nibble `index` of `bytes`, low ones first.
#[inline(always)]
fn nibble(bytes: &[u8], index: usize) -> u32 {
    u32::from(bytes[index / 2] >> (index % 2 * 4) & 15)
}

/// Unpacks a block of 8 runs of 32 elements. `run` returns the vectors of a run and the numbers of its `GROUPS` scales,
/// which are `factor * (2 * number + 1)`.
#[inline(always)]
fn unpack_runs<const GROUPS: usize>(
    out: &mut UnpackedBlock,
    factor: f32,
    run: impl Fn(usize) -> ([u64; 4], [u32; GROUPS]),
) {
    let scales = out.scales.as_chunks_mut::<GROUPS>().0.iter_mut();
    for (at, (codes, scales)) in out.codes.as_chunks_mut::<32>().0.iter_mut().zip(scales).enumerate() {
        let (vectors, numbers) = run(at);
        for (codes, vector) in codes.as_chunks_mut().0.iter_mut().zip(vectors) {
            *codes = vector.to_le_bytes();
        }
        *scales = numbers.map(|number| (factor * (2 * number + 1) as f32).to_bits());
    }
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

            #[inline(always)]
            fn unpack(block: &[u8], out: &mut UnpackedBlock) {
                let block: &[u8; $block_bytes] = block.try_into().expect("a whole block");
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
#[inline(always)]
fn iq2_xxs(block: &[u8; 66], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0) / 8.0, |run| {
        let indices = &block[2 + 8 * run..][..4];
        let packed = word(block, 6 + 8 * run);
        let vector = |at: usize| evenly_signed(IQ2_XXS[usize::from(indices[at])], packed >> (7 * at));
        (std::array::from_fn(vector), [packed >> 28])
    });
}

/// Layout: binary16 scale, 32 words of a 9-bit index and 7 signs, 16 scales of 4 bits.
#[inline(always)]
fn iq2_xs(block: &[u8; 74], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0) / 8.0, |run| {
        let vector = |at: usize| {
            let packed = half_bits(block, 2 + 8 * run + 2 * at);
            evenly_signed(IQ2_XS[(packed & 511) as usize], packed >> 9)
        };
        (std::array::from_fn(vector), [0, 1].map(|half| nibble(&block[66 + run..], half)))
    });
}

/// Layout: binary16 scale, 32 low bytes of indices, 32 bytes of signs, 32 upper pairs of the indices, 16 scales of 4
/// bits.
#[inline(always)]
fn iq2_s(block: &[u8; 82], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0) / 8.0, |run| {
        let (indices, signs) = (&block[2 + 4 * run..][..4], &block[34 + 4 * run..][..4]);
        let vector = |at: usize| {
            let high = usize::from(block[66 + run] >> (2 * at) & 3);
            signed(IQ2_S[usize::from(indices[at]) | high << 8], signs[at])
        };
        (std::array::from_fn(vector), [0, 1].map(|half| nibble(&block[74 + run..], half)))
    });
}

/// Layout: binary16 scale, 64 indices; for each 32 elements a word as in IQ2_XXS.
#[inline(always)]
fn iq3_xxs(block: &[u8; 98], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0) / 4.0, |run| {
        let indices = &block[2 + 8 * run..][..8];
        let packed = word(block, 66 + 4 * run);
        let four = |at: usize| IQ3_XXS[usize::from(indices[at])];
        let vector = |at: usize| evenly_signed(joined(four(2 * at), four(2 * at + 1)), packed >> (7 * at));
        (std::array::from_fn(vector), [packed >> 28])
    });
}

/// Layout: binary16 scale, 64 low bytes of indices, 64 ninth bits, 32 bytes of signs, 8 scales of 4 bits.
#[inline(always)]
fn iq3_s(block: &[u8; 110], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0), |run| {
        let (indices, signs) = (&block[2 + 8 * run..][..8], &block[74 + 4 * run..][..4]);
        let high = usize::from(block[66 + run]);
        let four = |at: usize| IQ3_S[usize::from(indices[at]) | (high >> at & 1) << 8];
        let vector = |at: usize| signed(joined(four(2 * at), four(2 * at + 1)), signs[at]);
        (std::array::from_fn(vector), [nibble(&block[106..], run)])
    });
}

/// Layout: binary16 scale, 32 low bytes of indices; for each 32 elements a word of four times 3 high bits, a 3-bit
/// scale and the sign of the eighth.
#[inline(always)]
fn iq1_s(block: &[u8; 50], out: &mut UnpackedBlock) {
    unpack_runs(out, half_value(block, 0) / 8.0, |run| {
        let indices = &block[2 + 4 * run..][..4];
        let packed = half_bits(block, 34 + 2 * run);
        let vector = |at: usize| {
            let high = (packed >> (3 * at) & 7) as usize;
            shifted(IQ1[usize::from(indices[at]) | high << 8], packed >> 15 == 1)
        };
        (std::array::from_fn(vector), [packed >> 12 & 7])
    });
}

/// Layout: 32 low bytes of indices, 32 nibbles of 3 high bits and the sign of the eighth, four words of four 3-bit
/// scales, whose upper nibbles are those of the binary16 scale.
#[inline(always)]
fn iq1_m(block: &[u8; 56], out: &mut UnpackedBlock) {
    let words: [u32; 4] = std::array::from_fn(|index| half_bits(block, 48 + 2 * index));
    let bits = words[0] >> 12 | (words[1] >> 12) << 4 | (words[2] >> 12) << 8 | (words[3] >> 12) << 12;
    let scale = f16::from_bits((bits & 0xffff) as u16).to_f32();
    unpack_runs(out, scale / 8.0, |run| {
        let indices = &block[4 * run..][..4];
        let vector = |at: usize| {
            let packed = nibble(&block[32 + 2 * run..], at);
            let levels = IQ1[usize::from(indices[at]) | (packed as usize & 7) << 8];
            shifted(levels, packed & 8 != 0)
        };
        let number = |half: usize| words[run / 2] >> (6 * (run % 2) + 3 * half) & 7;
        (std::array::from_fn(vector), [0, 1].map(number))
    });
}
