//! Q4_K: binary16 `d` and `dmin`, 8 six-bit pairs, 128 bytes of nibbles. The value is `d * sc * q - dmin * m`.
//!
//! 32 bytes of nibbles hold 64 elements. The low nibbles hold the first 32.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, unpack_k_scales};

pub(crate) enum Q4K {}

impl IntFormat for Q4K {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(4);
    const SCALES: Scales = Scales::Bytes;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 144;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        unpack_k_scales(block, out);
        for (chunk, bytes) in block[16..144].chunks_exact(32).enumerate() {
            for (index, byte) in bytes.iter().enumerate() {
                out.codes[chunk * 64 + index] = byte & 15;
                out.codes[chunk * 64 + 32 + index] = byte >> 4;
            }
        }
    }
}
