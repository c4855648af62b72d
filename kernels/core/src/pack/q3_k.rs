//! Q3_K: 32 bytes of third bits, 64 bytes of lower bit pairs, 16 six-bit scales in 12 bytes, binary16 `d`. The value is
//! `d * (sc - 32) * (q - 4)`.
//!
//! Byte `j` of a half's 32 bytes of bit pairs holds elements `j`, `j + 32`, `j + 64` and `j + 96` of these 128, lowest
//! pair first. Bit `r` of byte `j` of third bits belongs to element `32 r + j`. The lower nibbles of the scales are
//! those of 8 bytes, low ones first; their upper pairs are in the other 4 bytes.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub(crate) enum Q3K {}

impl IntFormat for Q3K {
    const GROUP: usize = 16;
    const CODES: Codes = Codes::Bits(3);
    const SCALES: Scales = Scales::SignedBytes;
    const ZERO_POINT: u8 = 4;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 110;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        let packed = &block[96..108];
        out.factors[0] = half_bits(block, 108);
        for group in 0..16 {
            let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
            let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
            out.scales[group] = u32::from((low | (high << 4)) + 128 - 32);
        }
        for (element, quant) in out.codes.iter_mut().enumerate() {
            let (part, run, byte) = (element / 128, element / 32, element % 32);
            let pair = block[32 + part * 32 + byte] >> (run % 4 * 2) & 3;
            *quant = pair | ((block[byte] >> run & 1) << 2);
        }
    }
}
