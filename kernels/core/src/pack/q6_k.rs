//! Q6_K: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, binary16 `d`. The value is
//! `d * sc * (q - 32)`.
//!
//! There are two halves of 128 elements. The 64 nibble bytes of a half hold elements 0-31 and 32-63 in the low nibbles,
//! and 64-95 and 96-127 in the high nibbles. Byte `j` of its 32 pair bytes holds the upper bits of elements `j`, `j +
//! 32`, `j + 64` and `j + 96`, lowest pair first.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, half_bits};

pub(crate) enum Q6K {}

impl IntFormat for Q6K {
    const GROUP: usize = 16;
    const CODES: Codes = Codes::Bits(6);
    const SCALES: Scales = Scales::SignedBytes;
    const ZERO_POINT: u8 = 32;
    const HAS_MIN: bool = false;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 210;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        out.factors[0] = half_bits(block, 208);
        // Flipping the top bit of two's complement adds 128.
        for (scale, byte) in out.scales.iter_mut().zip(&block[192..208]) {
            *scale = u32::from(byte ^ 0x80);
        }
        for part in 0..2 {
            let nibbles = &block[part * 64..][..64];
            let pairs = &block[128 + part * 32..][..32];
            let quants = &mut out.codes[part * 128..][..128];
            for index in 0..32 {
                let (low, high, pair) = (nibbles[index], nibbles[index + 32], pairs[index]);
                quants[index] = (low & 15) | ((pair & 3) << 4);
                quants[index + 32] = (high & 15) | ((pair >> 2 & 3) << 4);
                quants[index + 64] = (low >> 4) | ((pair >> 4 & 3) << 4);
                quants[index + 96] = (high >> 4) | ((pair >> 6) << 4);
            }
        }
    }
}
