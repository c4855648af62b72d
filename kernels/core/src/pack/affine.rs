//! Groups of integers of other checkpoints: a binary32 scale and minimum, then 16 bytes of nibbles as in Q4_1, or 32
//! signed bytes. The value is `scale * q + min`.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock};

fn float_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(crate) enum Affine4 {}

impl IntFormat for Affine4 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(4);
    const SCALES: Scales = Scales::Single;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 24;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        (out.scales[0], out.mins[0]) = (float_bits(block, 0), float_bits(block, 4));
        for (index, byte) in block[8..24].iter().enumerate() {
            out.codes[index] = byte & 15;
            out.codes[index + 16] = byte >> 4;
        }
    }
}

pub(crate) enum Affine8 {}

impl IntFormat for Affine8 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(8);
    const SCALES: Scales = Scales::Single;
    const ZERO_POINT: u8 = 128;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 40;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        (out.scales[0], out.mins[0]) = (float_bits(block, 0), float_bits(block, 4));
        for (quant, byte) in out.codes.iter_mut().zip(&block[8..40]) {
            // Flipping the top bit of two's complement adds 128.
            *quant = byte ^ 0x80;
        }
    }
}
