//! The formats: where their words hold indices, signs and scales.

use super::{
    Bytes, Grid, Indices, Run, Table, Words, each, evened, indices, joined, numbers, rotated, shifted_levels,
    signed_levels, spread_sign, table, table_of_fours, with_signs,
};
use crate::pack::arrange::{Arrange, PAIRED_BITS, PAIRED_FOURS, PAIRED_NIBBLES, PAIRED_THREES, TRANSPOSED};

static IQ2_XXS: [u32; 256] = table(0);
static IQ2_XS: [u32; 512] = table(256);
static IQ2_S: [u32; 1024] = table(768);
static IQ1: [u32; 2048] = table(1792);
static IQ3_XXS: [[u32; 256]; 2] = table_of_fours(3840);
static IQ3_S: [[u32; 512]; 2] = table_of_fours(4096);

const IQ2_LEVELS: [u8; 16] = signed_levels(64, [8, 25, 43]);

pub(crate) enum Iq2Xxs {}

/// Words: for each run four indices, then signs and a 4-bit scale.
impl Grid for Iq2Xxs {
    const GROUP: usize = 32;
    const BYTES: usize = 66;
    const LEVELS: [u8; 16] = IQ2_LEVELS;
    const ZERO: u8 = 64;
    const MAX_QUANT: usize = 127;
    const FACTOR: f32 = 1.0 / 8.0;
    const ARRANGE: &'static [Arrange] = &[Arrange::Sevens { words: (1, 16), step: 2 }];

    const TABLE: Table = Table::Eights(&IQ2_XXS);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        into[0] = indices(&words[2 * run], [|_| 0; 2]);
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let signs = numbers(&words[2 * run + 1]);
        (with_signs(vectors, &evened(&signs)), [each(&signs, |word| word >> 28); 2])
    }
}

pub(crate) enum Iq2Xs {}

/// Words: for each run four low bytes of indices, then signs and ninth bits; 16 scales of 4 bits.
impl Grid for Iq2Xs {
    const GROUP: usize = 16;
    const BYTES: usize = 74;
    const LEVELS: [u8; 16] = IQ2_LEVELS;
    const ZERO: u8 = 64;
    const MAX_QUANT: usize = 127;
    const FACTOR: f32 = 1.0 / 8.0;
    const ARRANGE: &'static [Arrange] = &[Arrange::Pairs { words: (0, 16) }];

    const TABLE: Table = Table::Eights(&IQ2_XS);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        let signs = numbers(&words[2 * run + 1]);
        let high = |at: usize| {
            move |lane: usize| signs[lane] >> (20 + at) & 0x100 | signs[lane] >> (6 + at) & 0x0100_0000
        };
        into[0] = indices(&words[2 * run], [high(0), high(1)]);
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let signs = numbers(&words[2 * run + 1]);
        (with_signs(vectors, &evened(&signs)), nibbles(&words[16 + run / 4], run))
    }
}

pub(crate) enum Iq2S {}

/// Words: 32 low bytes of indices, 32 bytes of signs, 32 upper pairs of the indices, 16 scales of 4 bits.
impl Grid for Iq2S {
    const GROUP: usize = 16;
    const BYTES: usize = 82;
    const LEVELS: [u8; 16] = IQ2_LEVELS;
    const ZERO: u8 = 64;
    const MAX_QUANT: usize = 127;
    const FACTOR: f32 = 1.0 / 8.0;
    const ARRANGE: &'static [Arrange] = &[
        Arrange::Swap { words: (8, 16), swaps: TRANSPOSED },
        Arrange::Swap { words: (16, 18), swaps: PAIRED_NIBBLES },
    ];

    const TABLE: Table = Table::Eights(&IQ2_S);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        let pairs = numbers(&words[16 + run / 4]);
        let high = |at: usize| move |lane: usize| rotated(pairs[lane], run % 4 * 4 + at) & 0x0300_0300;
        into[0] = indices(&words[run], [high(0), high(2)]);
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        (with_signs(vectors, &numbers(&words[8 + run])), nibbles(&words[18 + run / 4], run))
    }
}

pub(crate) enum Iq3Xxs {}

/// Words: 64 indices; for each run signs and a 4-bit scale.
impl Grid for Iq3Xxs {
    const GROUP: usize = 32;
    const BYTES: usize = 98;
    const LEVELS: [u8; 16] = signed_levels(64, [4, 12, 20, 28, 36, 44, 52, 62]);
    const ZERO: u8 = 64;
    const MAX_QUANT: usize = 127;
    const FACTOR: f32 = 1.0 / 4.0;
    const ARRANGE: &'static [Arrange] = &[Arrange::Sevens { words: (16, 24), step: 1 }];

    const TABLE: Table = Table::Fours([&IQ3_XXS[0], &IQ3_XXS[1]]);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        for (at, into) in into.iter_mut().enumerate() {
            *into = indices(&words[2 * run + at], [|_| 0; 2]);
        }
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let signs = numbers(&words[16 + run]);
        (with_signs(vectors, &evened(&signs)), [each(&signs, |word| word >> 28); 2])
    }
}

pub(crate) enum Iq3S {}

/// Words: 64 low bytes of indices, 64 ninth bits, 32 bytes of signs, 8 scales of 4 bits.
impl Grid for Iq3S {
    const GROUP: usize = 32;
    const BYTES: usize = 110;
    const LEVELS: [u8; 16] = signed_levels(16, [1, 3, 5, 7, 9, 11, 13, 15]);
    const ZERO: u8 = 16;
    const MAX_QUANT: usize = 31;
    const FACTOR: f32 = 1.0;
    const ARRANGE: &'static [Arrange] = &[
        Arrange::Swap { words: (16, 18), swaps: PAIRED_BITS },
        Arrange::Swap { words: (18, 26), swaps: TRANSPOSED },
    ];

    const TABLE: Table = Table::Fours([&IQ3_S[0], &IQ3_S[1]]);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        let ninths = numbers(&words[16 + run / 4]);
        let high = |at: usize| move |lane: usize| rotated(ninths[lane], run % 4 * 4 + at) & 0x0100_0100;
        for (at, into) in into.iter_mut().enumerate() {
            *into = indices(&words[2 * run + at], [high(2 * at), high(2 * at + 1)]);
        }
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let number = each(&numbers(&words[26]), |word| word >> (4 * run) & 15);
        (with_signs(vectors, &numbers(&words[18 + run])), [number; 2])
    }
}

pub(crate) enum Iq1S {}

/// Words: 32 low bytes of indices; for each run 16 bits of four times 3 high bits, a 3-bit scale and the sign of the
/// eighth.
impl Grid for Iq1S {
    const GROUP: usize = 32;
    const BYTES: usize = 50;
    const LEVELS: [u8; 16] = shifted_levels(16);
    const ZERO: u8 = 16;
    const MAX_QUANT: usize = 31;
    const FACTOR: f32 = 1.0 / 8.0;
    const ARRANGE: &'static [Arrange] = &[Arrange::Swap { words: (8, 12), swaps: PAIRED_THREES }];

    const TABLE: Table = Table::Eights(&IQ1);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        let packed = numbers(&words[8 + run / 2]);
        let high = |at: usize| move |lane: usize| rotated(packed[lane], run % 2 * 6 + at) & 0x0700_0700;
        into[0] = indices(&words[run], [high(0), high(3)]);
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let packed = each(&numbers(&words[8 + run / 2]), |word| word >> (12 + run % 2 * 16));
        let signs = each(&packed, |bits| spread_sign(bits << 28));
        (vectors.map(|vector| joined(&vector, &signs)), [each(&packed, |bits| bits & 7); 2])
    }
}

pub(crate) enum Iq1M {}

/// Words: 32 low bytes of indices, 32 nibbles of 3 high bits and the sign of the eighth, four times 16 bits of four
/// 3-bit scales, whose upper nibbles are those of the binary16 scale.
impl Grid for Iq1M {
    const GROUP: usize = 16;
    const BYTES: usize = 56;
    const LEVELS: [u8; 16] = shifted_levels(32);
    const ZERO: u8 = 32;
    const MAX_QUANT: usize = 63;
    const FACTOR: f32 = 1.0 / 8.0;
    const ARRANGE: &'static [Arrange] = &[Arrange::Swap { words: (8, 12), swaps: PAIRED_FOURS }];

    const TABLE: Table = Table::Eights(&IQ1);

    #[inline(always)]
    fn indices<const N: usize>(words: &[Bytes<N>], run: usize, into: &mut Indices<N>) {
        let packed = numbers(&words[8 + run / 2]);
        let high = |at: usize| move |lane: usize| rotated(packed[lane], run % 2 * 8 + at) & 0x0700_0700;
        into[0] = indices(&words[run], [high(0), high(4)]);
    }

    #[inline(always)]
    fn run<const N: usize>(words: &[Bytes<N>], run: usize, vectors: [Words<N>; 4]) -> Run<N> {
        let packed = each(&numbers(&words[8 + run / 2]), |word| word.rotate_left((28 - run % 2 * 8) as u32));
        let vectors = std::array::from_fn(|at| {
            let signs =
                each(&packed, |packed| spread_sign(packed.rotate_right((at % 2 * 4 + at / 2 * 16) as u32)));
            joined(&vectors[at], &signs)
        });
        let scales = each(&numbers(&words[12 + run / 4]), |word| word >> (run / 2 % 2 * 16 + run % 2 * 6));
        let number = |half: u32| each(&scales, |word| word >> (3 * half) & 7);
        (vectors, [number(0), number(1)])
    }
}

/// The scales of the two halves of a run: the nibbles of byte `run % 4`.
#[inline(always)]
fn nibbles<const N: usize>(words: &Bytes<N>, run: usize) -> [Words<N>; 2] {
    let words = each(&numbers(words), |word| word >> (run % 4 * 8));
    [each(&words, |word| word & 15), each(&words, |word| word >> 4 & 15)]
}
