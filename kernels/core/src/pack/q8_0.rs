//! Q8_0: a binary16 scale, then 32 signed bytes. The value is `d * q`. The packed layout stores `q + 128`, because the
//! kernels need unsigned weights.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub enum Q8_0 {}

impl IntFormat for Q8_0 {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(8);
    const SCALES: Scales = Scales::Half;
    const ZERO_POINT: u8 = 128;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 32;
    const BLOCK_BYTES: usize = 34;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.scales[0] = half_bits(block, 0);
        for (quant, byte) in out.codes.iter_mut().zip(&block[2..34]) {
            // Flipping the top bit of two's complement adds 128.
            *quant = byte ^ 0x80;
        }
    }
}
