//! Formats whose weights are -1, 0 or 1 times the block's scale.
//!
//! TQ1_0: 48 bytes of five numbers each, 4 bytes of four, binary16 scale. TQ2_0: 64 bytes of bit pairs as in Q2_K,
//! binary16 scale.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};
use super::q2_k::unpack_pairs;

/// The quant of -1. Quants count from 128, as in Q8_0.
const MINUS_ONE: u8 = 127;

pub(crate) enum Tq1_0 {}

impl IntFormat for Tq1_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Blocks;
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 128;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 54;

    #[inline(always)]
    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[..8].fill(half_bits(block, 52));
        // Each run of bytes holds its first numbers, then its second ones, and so on.
        let (mut quants, powers) = (out.codes.iter_mut(), [1u8, 3, 9, 27, 81]);
        for (bytes, count) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
            for power in &powers[..count] {
                for (byte, quant) in bytes.iter().zip(&mut quants) {
                    // A byte is a fraction in base 3, whose first digit moves before the point.
                    *quant = MINUS_ONE + ((u16::from(byte.wrapping_mul(*power)) * 3) >> 8) as u8;
                }
            }
        }
    }
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
