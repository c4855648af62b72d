//! Formats whose nibbles are indices into a table of 16 levels.
//!
//! IQ4_NL: a binary16 scale, then 16 bytes of nibbles as in Q4_0. IQ4_XS: binary16 `d`, the upper pairs of 8 six-bit
//! scales in 2 bytes, their lower nibbles in 4 bytes, and 128 bytes of nibbles; a scale is `d * (sc - 32)`. MXFP4 (OCP
//! Microscaling Formats, version 1.0): an exponent, then 16 bytes of nibbles.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

/// The levels of IQ4_NL and IQ4_XS, plus 128 (`kvalues_iq4nl` of ggml).
const LEVELS: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Twice the numbers of E2M1, plus 16.
const TWICE_E2M1: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// Writes the nibbles of 32 elements, the low ones first.
fn unpack_nibbles(nibbles: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(nibbles) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

pub(crate) enum Iq4Nl {}

impl IntFormat for Iq4Nl {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Levels(&LEVELS);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 128;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 18;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        unpack_nibbles(&block[2..18], &mut out.codes[..32]);
    }
}

pub(crate) enum Iq4Xs {}

impl IntFormat for Iq4Xs {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Levels(&LEVELS);
    const SCALES: Scales = Scales::SignedBytes;
    const ZERO_POINT: u8 = 128;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 136;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        let high = half_bits(block, 2);
        out.factors[0] = half_bits(block, 0);
        for (group, codes) in out.codes.chunks_exact_mut(32).enumerate() {
            let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
            let upper = (high >> (2 * group) & 3) as u8;
            out.scales[group] = u32::from((low | (upper << 4)) + 128 - 32);
            unpack_nibbles(&block[8 + group * 16..][..16], codes);
        }
    }
}

pub(crate) enum Mxfp4 {}

impl IntFormat for Mxfp4 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Levels(&TWICE_E2M1);
    const SCALES: Scales = Scales::Exponents;
    const ZERO_POINT: u8 = 16;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 17;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        // Levels are doubled, so a scale is half of 2^(e - 127).
        out.scales[0] = u32::from(block[0]);
        unpack_nibbles(&block[1..17], &mut out.codes[..32]);
    }
}
