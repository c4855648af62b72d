//! Q5_K: like Q4_K, with 32 bytes of fifth bits between pairs and nibbles. The value is `d * sc * q - dmin * m`.
//!
//! Bit `2 c` of fifth-bit byte `j` belongs to element `j` of the first half of chunk `c`, and bit `2 c + 1` to element
//! `j` of the second half.

use super::int::{Codes, IntFormat, Scales, UnpackedBlock, unpack_k_scales};

pub(crate) enum Q5K {}

impl IntFormat for Q5K {
    const GROUP: usize = 32;
    const CODES: Codes = Codes::Bits(5);
    const SCALES: Scales = Scales::Bytes;
    const ZERO_POINT: u8 = 0;
    const HAS_MIN: bool = true;
    const BLOCK_ELEMENTS: usize = 256;
    const BLOCK_BYTES: usize = 176;

    fn unpack(block: &[u8], out: &mut UnpackedBlock) {
        unpack_k_scales(block, out);
        let fifth_bits = &block[16..48];
        for (chunk, bytes) in block[48..176].chunks_exact(32).enumerate() {
            for (index, (byte, fifth)) in bytes.iter().zip(fifth_bits).enumerate() {
                let fifth = fifth >> (2 * chunk);
                out.codes[chunk * 64 + index] = (byte & 15) | ((fifth & 1) << 4);
                out.codes[chunk * 64 + 32 + index] = (byte >> 4) | ((fifth >> 1 & 1) << 4);
            }
        }
    }
}
