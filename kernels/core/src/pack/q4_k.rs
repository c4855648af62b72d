//! Q4_K: binary16 `d` and `dmin`, 8 six-bit pairs, 128 bytes of nibbles. The value is `d * sc * q - dmin * m`.
//!
//! 32 bytes of nibbles hold 64 elements. The low nibbles hold the first 32.

use super::int::{IntFormat, UnpackedBlock, unpack_k_scales, unpack_nibbles};

pub(crate) enum Q4K {}

impl IntFormat for Q4K {
    const NIBBLES: bool = true;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 144;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        unpack_k_scales(block, out);
        for (chunk, bytes) in block[16..144].chunks_exact(32).enumerate() {
            unpack_nibbles(bytes, &mut out.quants[chunk * 64..]);
        }
    }
}
