//! Q5_0: a binary16 scale, 4 bytes of fifth bits, 16 bytes of nibbles. The value is `d * (q - 16)`.
//!
//! Byte `j` of the nibbles holds element `j` in the low and `j + 16` in the high nibble. Fifth bit `k`, counted from
//! the lowest, belongs to element `k`.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits, unpack_five_bits};

pub(crate) enum Q5_0 {}

impl IntFormat for Q5_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(5);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 16;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 22;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        unpack_five_bits(&block[2..6], &block[6..22], out);
    }
}
