//! Turns rows of bfloat16 into half-precision ones with the same numbers, up to a power of two.
//!
//! Packed rows of bfloat16 are padded to whole runs ([`RUN`]), which would double the bytes of B with rank 16. Half
//! precision has more bits of significand, and only the range of its exponents is smaller, so the numbers of nearly all
//! adapters fit once the largest is moved to the top of the range.

use crate::pack::SourceRows;
use crate::pack::float::RUN;

/// The exponent field of the largest half-precision numbers.
const TOP: i32 = 30;
/// The least exponent field of the largest number, so that the factor is far from where f32 ends.
const LEAST_TOP: i32 = 32;

/// Returns the rows, in the model's order, and the factor by which they must be multiplied; `None` if they need no
/// padding, or if a number does not fit.
pub(super) fn to_f16(rows: &SourceRows<'_>, num_columns: usize) -> Option<(Vec<u8>, f32)> {
    if num_columns.is_multiple_of(RUN) {
        return None;
    }
    let numbers = |row| rows.row(row).chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let exponent = |bits: u16| i32::from(bits >> 7 & 0xff);
    let largest = (0..rows.num_rows()).flat_map(numbers).map(exponent).max()?;
    if !(LEAST_TOP..0xff).contains(&largest) {
        return None;
    }
    let mut bytes = Vec::with_capacity(2 * rows.num_rows() * num_columns);
    for bits in (0..rows.num_rows()).flat_map(numbers) {
        let (sign, fraction) = (bits & 0x8000, bits & 0x7f);
        let narrow = match exponent(bits) - largest + TOP {
            _ if bits << 1 == 0 => 0,
            field if field > 0 => (field as u16) << 10 | fraction << 3,
            // A subnormal number, if no bit of the significand is lost.
            field => {
                let (shift, significand) = ((1 - field) as u32, (0x80 | fraction) << 3);
                if exponent(bits) == 0 || significand.trailing_zeros() < shift {
                    return None;
                }
                significand >> shift
            }
        };
        bytes.extend((sign | narrow).to_le_bytes());
    }
    // bfloat16 has a bias of 127, and half precision one of 15.
    Some((bytes, 2f32.powi(largest - 127 - (TOP - 15))))
}
