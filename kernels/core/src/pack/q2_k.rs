//! Q2_K: 16 pairs of a scale (low nibble) and a minimum, 64 bytes of bit pairs, binary16 `d` and `dmin`. The value is
//! `d * sc * q - dmin * m`.
//!
//! Byte `j` of a half's 32 bytes of bit pairs holds elements `j`, `j + 32`, `j + 64` and `j + 96` of these 128, lowest
//! pair first.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub(crate) enum Q2K {}

impl IntFormat for Q2K {
    const GROUP: usize = 16;
    const CODES: Codes = Codes::Bits(2);
    const SCALES: Scales = Scales::Nibbles;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 84;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.factors = [half_bits(block, 80), half_bits(block, 82)];
        for (group, byte) in block[..16].iter().enumerate() {
            (out.scales[group], out.mins[group]) = (u32::from(byte & 15), u32::from(byte >> 4));
        }
        unpack_pairs(&block[16..80], &mut out.codes);
    }
}

/// Unpacks 256 numbers of 2 bits.
pub(super) fn unpack_pairs(pairs: &[u8], quants: &mut [u8; 256]) {
    for (element, quant) in quants.iter_mut().enumerate() {
        let byte = pairs[element / 128 * 32 + element % 32];
        *quant = byte >> (element % 128 / 32 * 2) & 3;
    }
}
