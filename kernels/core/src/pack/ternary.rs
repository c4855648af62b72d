//! Formats whose weights are -1, 0 or 1 times the block's scale.
//!
//! TQ1_0: 48 bytes of five numbers each, 4 bytes of four, binary16 scale. TQ2_0: 64 bytes of bit pairs as in Q2_K,
//! binary16 scale.

use super::TILE;
use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};
use super::q2_k::unpack_pairs;
use crate::vector::ByteLanes;

/// Bytes of a vector of words.
const VECTOR: usize = 4 * TILE;
/// Vectors of a run.
const RUN: usize = 4;

pub(crate) enum Tq1_0 {}

impl IntFormat for Tq1_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Words(2);
    const SCALES: Scales = Scales::OfBlock;
    const ZERO_POINT: u8 = 1;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 54;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.factors[0] = half_bits(block, 52);
        // Each run of bytes holds its first numbers, then its second ones, and so on.
        let (mut quants, powers) = (out.codes.iter_mut(), [1u8, 3, 9, 27, 81]);
        for (bytes, count) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
            for power in &powers[..count] {
                for (byte, quant) in bytes.iter().zip(&mut quants) {
                    *quant = first_digit(byte.wrapping_mul(*power));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<L: ByteLanes>(block: &[u8], quants: &mut [u8], scales: &mut [[f32; TILE]]) {
        let (vectors, half) = block.as_chunks::<VECTOR>();
        let quants = quants.as_chunks_mut::<VECTOR>().0;
        // Runs 0 to 4 have a number of each of 32 bytes, and halves of runs from 5 on one of each of 16.
        for at in 0..RUN {
            let (mut low, mut high) = (vectors[at], vectors[RUN + at]);
            for run in 0..5 {
                quants[run * RUN + at] = two_digits(&low, &high);
                (low, high) = (without_first_digit(&low), without_first_digit(&high));
            }
            let mut digits = vectors[2 * RUN + at];
            for run in 5..8 {
                let first = digits;
                digits = without_first_digit(&digits);
                quants[run * RUN + at] = if run < 7 {
                    two_digits(&first, &digits)
                } else {
                    let mut last = vectors[3 * RUN];
                    (0..at).for_each(|_| last = without_first_digit(&last));
                    two_digits(&first, &last)
                };
                digits = without_first_digit(&digits);
            }
        }
        // SAFETY: a binary16 of each lane is left, and the caller guarantees the instruction set.
        unsafe {
            let factor = L::load_f16(half.as_ptr().cast());
            scales.iter_mut().for_each(|scales| factor.store(scales.as_mut_ptr()));
        }
    }
}

/// A byte is a fraction in base 3. Returns the digit that a multiplication by 3 moves before the point.
#[inline(always)]
fn first_digit(byte: u8) -> u8 {
    u8::from(byte > 85) + u8::from(byte > 170)
}

#[inline(always)]
fn without_first_digit(bytes: &[u8; VECTOR]) -> [u8; VECTOR] {
    std::array::from_fn(|at| bytes[at].wrapping_mul(3))
}

/// Returns the first digits of `low` in the lower nibbles and those of `high` in the upper ones.
#[inline(always)]
fn two_digits(low: &[u8; VECTOR], high: &[u8; VECTOR]) -> [u8; VECTOR] {
    std::array::from_fn(|at| first_digit(low[at]) | first_digit(high[at]) << 4)
}

pub(crate) enum Tq2_0 {}

impl IntFormat for Tq2_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(2);
    const SCALES: Scales = Scales::OfBlock;
    const ZERO_POINT: u8 = 1;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 66;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.factors[0] = half_bits(block, 64);
        unpack_pairs(&block[..64], &mut out.codes);
    }
}
