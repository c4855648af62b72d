//! Q4_1: a binary16 scale and minimum, then 16 bytes of nibbles as in Q4_0. The value is `d * q + m`.

use super::int::{IntFormat, UnpackedBlock, half_bits, unpack_nibbles};

pub enum Q4_1 {}

impl IntFormat for Q4_1 {
    const NIBBLES: bool = true;
    const HALF_SCALES: bool = true;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 20;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        out.mins[0] = half_bits(block, 2);
        unpack_nibbles(&block[4..20], &mut out.quants);
    }
}
