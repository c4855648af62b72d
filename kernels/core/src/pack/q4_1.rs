//! Q4_1: a binary16 scale and minimum, then 16 bytes of nibbles as in Q4_0. The value is `d * q + m`.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub enum Q4_1 {}

impl IntFormat for Q4_1 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(4);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 20;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        out.mins[0] = half_bits(block, 2);
        for (index, byte) in block[4..20].iter().enumerate() {
            out.codes[index] = byte & 15;
            out.codes[index + 16] = byte >> 4;
        }
    }
}
