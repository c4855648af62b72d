//! Q4_0: a binary16 scale, then 16 bytes. Byte `j` holds element `j` in the low and element `j + 16` in the high
//! nibble. The value is `d * (q - 8)`.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub(crate) enum Q4_0 {}

impl IntFormat for Q4_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(4);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 8;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 18;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        for (index, byte) in block[2..18].iter().enumerate() {
            out.codes[index] = byte & 15;
            out.codes[index + 16] = byte >> 4;
        }
    }
}
