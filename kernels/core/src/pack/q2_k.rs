//! Q2_K: 16 pairs of a scale (low nibble) and a minimum, 64 bytes of bit pairs, binary16 `d` and `dmin`. The value is
//! `d * sc * q - dmin * m`.
//!
//! Byte `j` of a half's 32 bytes of bit pairs holds elements `j`, `j + 32`, `j + 64` and `j + 96` of these 128, lowest
//! pair first.

use super::int::{IntFormat, UnpackedBlock, half_value};

pub(crate) enum Q2K {}

impl IntFormat for Q2K {
    const GROUP: usize = 16;
    const NIBBLES: bool = false;
    const ZERO_POINT: u8 = 0;
    const HALF_SCALES: bool = false;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 84;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        let (scale, min) = (half_value(block, 80), half_value(block, 82));
        for (group, byte) in block[..16].iter().enumerate() {
            // Products of 11-bit significands and 4-bit integers are exact.
            out.scales[group] = (scale * f32::from(byte & 15)).to_bits();
            out.mins[group] = (-(min * f32::from(byte >> 4))).to_bits();
        }
        unpack_pairs(&block[16..80], 0, &mut out.quants);
    }
}

/// Unpacks 256 numbers of 2 bits, and adds `offset` to each.
pub(super) fn unpack_pairs(pairs: &[u8], offset: u8, quants: &mut [u8; 256]) {
    for (element, quant) in quants.iter_mut().enumerate() {
        let byte = pairs[element / 128 * 32 + element % 32];
        *quant = (byte >> (element % 128 / 32 * 2) & 3) + offset;
    }
}
