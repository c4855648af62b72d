//! Formats whose numbers are indices of vectors in a grid. An element is a level of the grid with a sign, or for IQ1_S
//! and IQ1_M a level plus or minus an eighth. All scales are products of an 11-bit significand and an integer of up to
//! 5 bits, which are exact.
//!
//! A vector is a word of eight nibbles: the index of the level of element `e` and its sign in bit 3 are nibble `e / 4`
//! of byte `e % 4`, so that one look-up makes two quads of levels. The functions of formats compute the words of `N`
//! lanes at once: 16 of a tile, or 1 of a block. To get signs to bit 3 with one shift, packed weights hold them
//! transposed ([`super::arrange`]).

mod formats;

use half::f16;

use super::TILE;
use super::arrange::Arrange;
use super::int::{Codes, IntFormat, MAX_BLOCK_BYTES, Scales, UnpackedBlock};
use crate::vector::ByteLanes;

pub(crate) use formats::*;

/// The grids of ggml (`iq2xxs_grid` and so on), 16 bits for each vector, with the index of the first element's level in
/// the lowest bits. IQ2_XXS begins at word 0, IQ2_XS at 256, IQ2_S at 768, IQ1_S at 1792, IQ3_XXS at 3840 and IQ3_S at
/// 4096.
const GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

/// The bits of a vector that are signs.
const SIGNS: u32 = 0x8888_8888;
/// Elements of a run, which is four vectors.
const RUN: usize = 32;

const fn grid_word(index: usize) -> u32 {
    GRIDS[2 * index] as u32 | (GRIDS[2 * index + 1] as u32) << 8
}

/// The vectors of a grid from its word `first` on, whose indices have 2 bits.
const fn table<const N: usize>(first: usize) -> [u32; N] {
    let (mut table, mut at) = ([0; N], 0);
    while at < 8 * N {
        let (index, element) = (at / 8, at % 8);
        let level = grid_word(first + index) >> (2 * element) & 3;
        table[index] |= level << (8 * (element % 4) + 4 * (element / 4));
        at += 1;
    }
    table
}

/// Likewise, for the lower and for the upper nibbles of vectors, whose indices have 3 bits.
const fn table_of_fours<const N: usize>(first: usize) -> [[u32; N]; 2] {
    let (mut table, mut at) = ([[0; N]; 2], 0);
    while at < 4 * N {
        let (index, element) = (at / 4, at % 4);
        let level = grid_word(first + index) >> (3 * element) & 7;
        table[0][index] |= level << (8 * element);
        table[1][index] |= level << (8 * element + 4);
        at += 1;
    }
    table
}

/// The quants of nibbles: `zero` and the level, or `zero` less the level.
const fn signed_levels<const N: usize>(zero: u8, levels: [u8; N]) -> [u8; 16] {
    let (mut table, mut at) = ([zero; 16], 0);
    while at < N {
        (table[at], table[at + 8]) = (zero + levels[at], zero - levels[at]);
        at += 1;
    }
    table
}

/// The quants of IQ1_S and IQ1_M, eight times the numbers.
const fn shifted_levels(zero: u8) -> [u8; 16] {
    let mut table = [zero; 16];
    [table[0], table[1], table[2]] = [zero - 7, zero + 1, zero + 9];
    [table[8], table[9], table[10]] = [zero - 9, zero - 1, zero + 7];
    table
}

/// A word of each of `N` lanes, as bytes and as a number.
type Bytes<const N: usize> = [[u8; 4]; N];
type Words<const N: usize> = [u32; N];

/// The indices of a run: words of bytes as pairs, two words for vectors of four elements.
type Indices<const N: usize> = [[Words<N>; 2]; 2];

/// The four vectors of a run, and the numbers of its scales (only the first if groups have 32 elements).
type Run<const N: usize> = ([Words<N>; 4], [Words<N>; 2]);

#[inline(always)]
fn numbers<const N: usize>(words: &Bytes<N>) -> Words<N> {
    let mut numbers = [0; N];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = u32::from_le_bytes(*word);
    }
    numbers
}

#[inline(always)]
fn each<const N: usize>(words: &Words<N>, of: impl Fn(u32) -> u32) -> Words<N> {
    let mut each = *words;
    for word in &mut each {
        *word = of(*word);
    }
    each
}

/// Makes the indices of a word's four bytes, as two pairs of 16 bits: bytes 0 and 2, and bytes 1 and 3.
#[inline(always)]
fn indices<const N: usize>(low: &Bytes<N>, high: [impl Fn(usize) -> u32; 2]) -> [Words<N>; 2] {
    let [mut even, mut odd] = [numbers(low); 2];
    for lane in 0..N {
        even[lane] = even[lane] & 0x00ff_00ff | high[0](lane);
        odd[lane] = odd[lane] >> 8 & 0x00ff_00ff | high[1](lane);
    }
    [even, odd]
}

/// Entries of a grid for indices of vectors of eight elements or of four. Those of four have a table of lower and one
/// of upper nibbles.
#[derive(Clone, Copy)]
pub(crate) enum Table {
    Eights(&'static [u32]),
    Fours([&'static [u32]; 2]),
}

/// Reads the vectors of a run.
///
/// # Safety
/// Indices are below the length of the table.
#[inline(always)]
unsafe fn read_vectors<const N: usize>(table: Table, indices: &Indices<N>) -> [Words<N>; 4] {
    // SAFETY: the caller guarantees it.
    let entry = |table: &[u32], index: u32| unsafe { *table.get_unchecked(index as usize) };
    let mut into = [[0; N]; 4];
    match table {
        Table::Eights(table) => {
            let [even, odd] = &indices[0];
            for lane in 0..N {
                into[0][lane] = entry(table, even[lane] & 0xffff);
            }
            for lane in 0..N {
                into[1][lane] = entry(table, odd[lane] & 0xffff);
            }
            for lane in 0..N {
                into[2][lane] = entry(table, even[lane] >> 16);
            }
            for lane in 0..N {
                into[3][lane] = entry(table, odd[lane] >> 16);
            }
        }
        Table::Fours([lower, upper]) => {
            for ([even, odd], into) in indices.iter().zip(into.as_chunks_mut::<2>().0) {
                for lane in 0..N {
                    let [even, odd] = [even[lane], odd[lane]];
                    into[0][lane] = entry(lower, even & 0xffff) | entry(upper, odd & 0xffff);
                    into[1][lane] = entry(lower, even >> 16) | entry(upper, odd >> 16);
                }
            }
        }
    }
    into
}

/// Sets the last sign of each vector, which makes the number of signs even. The highest nibble may hold anything else.
#[inline(always)]
fn evened<const N: usize>(signs: &Words<N>) -> Words<N> {
    each(signs, |word| {
        let given = word << 4 >> 4;
        let halves = given ^ given >> 16;
        let bytes = halves ^ halves >> 8;
        given | (bytes ^ bytes >> 4) << 28
    })
}

/// Gives the vectors of a run their signs, which are transposed.
#[inline(always)]
fn with_signs<const N: usize>(mut vectors: [Words<N>; 4], signs: &Words<N>) -> [Words<N>; 4] {
    for (at, vector) in vectors.iter_mut().enumerate() {
        *vector = joined(vector, &each(signs, |signs| signs << (3 - at) & SIGNS));
    }
    vectors
}

/// Joins the bits of words.
#[inline(always)]
fn joined<const N: usize>(first: &Words<N>, second: &Words<N>) -> Words<N> {
    let mut joined = *first;
    for (word, second) in joined.iter_mut().zip(second) {
        *word |= second;
    }
    joined
}

/// Brings bits `at` and `at + 16` to 8 and 24.
#[inline(always)]
fn rotated(word: u32, at: usize) -> u32 {
    word.rotate_left((40 - at) as u32 % 32)
}

/// Makes the highest bit all the signs of a vector.
#[inline(always)]
fn spread_sign(word: u32) -> u32 {
    word.cast_signed().wrapping_shr(31).cast_unsigned() & SIGNS
}

/// A format of blocks of 256 elements. The layouts of words are those of ggml without the binary16 scale before them,
/// with transposed signs.
pub(crate) trait Grid {
    const GROUP: usize;
    const BYTES: usize;
    /// The quants of nibbles, their zero point and their bound.
    const LEVELS: [u8; 16];
    const ZERO: u8;
    const MAX_QUANT: usize;
    /// The factor of the binary16 scale.
    const FACTOR: f32;
    const ARRANGE: &'static [Arrange];

    const TABLE: Table;

    /// Computes the indices of a run, which are below the length of the table.
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>);

    /// Gives the vectors of a run their signs. A scale is the factor times `2 * number + 1`.
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N>;
}

/// The binary16 scale of each lane's block: what is left after the words or, in IQ1_M, the upper nibbles of the last.
#[inline(always)]
fn half_bits<const N: usize>(words: &[Bytes<N>], half: &[u8]) -> [u16; N] {
    if half.is_empty() {
        let (first, last) = (numbers(&words[12]), numbers(&words[13]));
        let nibbles = |word: u32| word >> 12 & 15 | word >> 28 << 4;
        // Four nibbles.
        return std::array::from_fn(|lane| (nibbles(first[lane]) | nibbles(last[lane]) << 8) as u16);
    }
    let mut bits = [0; N];
    for (bits, bytes) in bits.iter_mut().zip(half.as_chunks().0) {
        *bits = u16::from_le_bytes(*bytes);
    }
    bits
}

/// Returns element `element` of the vectors of one lane as a nibble.
fn nibble(vectors: &[Words<1>; 4], element: usize) -> usize {
    let ([word], shift) = (vectors[element / 8], element % 4 * 8 + element % 8 / 4 * 4);
    (word >> shift & 15) as usize
}

/// Reads the vectors of a run before they have signs.
#[inline(always)]
fn vectors_of<G: Grid, const N: usize>(words: &[Bytes<N>], run: usize) -> [Words<N>; 4] {
    let mut indices = [[[0; N]; 2]; 2];
    G::indices(words, run, &mut indices);
    // SAFETY: the format guarantees it.
    unsafe { read_vectors(G::TABLE, std::hint::black_box(&indices)) }
}

impl<G: Grid> IntFormat for G {
    const GROUP: usize = G::GROUP;
    const CODES: Codes = Codes::Words(G::MAX_QUANT);
    const SCALES: Scales = Scales::Single;
    const ZERO_POINT: u8 = G::ZERO;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = G::BYTES;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        let mut bytes = [0; MAX_BLOCK_BYTES];
        let bytes = &mut bytes[..G::BYTES];
        bytes.copy_from_slice(block);
        Self::to_words(bytes);
        let (words, half) = bytes.as_chunks();
        let (words, parts) = (words.as_chunks::<1>().0, RUN / G::GROUP);
        let [bits] = half_bits(words, half);
        let factor = f16::from_bits(bits).to_f32() * G::FACTOR;
        let scales = out.scales.chunks_exact_mut(parts);
        for (run, (codes, scales)) in out.codes.as_chunks_mut::<RUN>().0.iter_mut().zip(scales).enumerate() {
            let (vectors, numbers) = G::run(words, run, vectors_of::<G, 1>(words, run));
            *codes = std::array::from_fn(|element| G::LEVELS[nibble(&vectors, element)]);
            for (scale, [number]) in scales.iter_mut().zip(numbers) {
                *scale = (factor * (2 * number + 1) as f32).to_bits();
            }
        }
    }

    fn to_words(block: &mut [u8]) {
        block.rotate_left(G::BYTES % 4);
        G::ARRANGE.iter().for_each(|arrange| arrange.apply(block, false));
    }

    fn from_words(words: &mut [u8]) {
        G::ARRANGE.iter().for_each(|arrange| arrange.apply(words, true));
        words.rotate_right(G::BYTES % 4);
    }

    #[inline(always)]
    unsafe fn expand<L: ByteLanes>(block: &[u8], quants: &mut [u8], scales: &mut [[f32; TILE]]) {
        let (words, half) = block.split_at(G::BYTES / 4 * 4 * TILE);
        let words: &[Bytes<TILE>] = words.as_chunks().0.as_chunks().0;
        let scales = scales.chunks_exact_mut(RUN / G::GROUP);
        let quants = quants.as_chunks_mut::<{ RUN * TILE }>().0.iter_mut();
        // SAFETY: the arrays hold the vectors, and the caller guarantees the instruction set.
        unsafe {
            let mut factors = [0.0; TILE];
            let bits = half_bits(words, half);
            L::load_f16(bits.as_ptr()).mul(L::splat(G::FACTOR)).store(factors.as_mut_ptr());
            let table = L::load_table(G::LEVELS.as_ptr());
            for (run, (quants, scales)) in quants.zip(scales).enumerate() {
                let (vectors, numbers) = G::run(words, run, vectors_of::<G, TILE>(words, run));
                for (vector, quads) in vectors.iter().zip(quants.as_chunks_mut::<{ 8 * TILE }>().0) {
                    let [low, high] = L::look_up(table, L::load_bytes(vector.as_ptr().cast()));
                    L::store_bytes(low, quads.as_mut_ptr());
                    L::store_bytes(high, quads.as_mut_ptr().add(4 * TILE));
                }
                for (scales, numbers) in scales.iter_mut().zip(numbers) {
                    // Numbers are below 16.
                    let scale = |lane: usize| factors[lane] * (2 * numbers[lane] + 1).cast_signed() as f32;
                    *scales = std::array::from_fn(scale);
                }
            }
        }
    }
}
