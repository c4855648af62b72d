//! Q5_1: a binary16 scale, a binary16 minimum, 4 bytes of fifth bits, 16 bytes of nibbles as in Q5_0. The value is
//! `d * q + m`.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits, unpack_five_bits};

pub(crate) enum Q5_1 {}

impl IntFormat for Q5_1 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(5);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 24;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        out.mins[0] = half_bits(block, 2);
        unpack_five_bits(&block[4..8], &block[8..24], out);
    }
}
