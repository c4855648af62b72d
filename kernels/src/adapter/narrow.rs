//! Turns bfloat16 into half precision.
//!
//! Products with bfloat16 round their input, and packed rows are padded to whole runs, which would double the bytes of
//! B with rank 16. Half precision has more bits of significand, and only the range of its exponents is smaller. So the
//! numbers of a matrix are multiplied by the power of two that moves the largest to the top of the range. All that are
//! at least 2^-29 times the largest are then exact, and others are rounded to multiples of 2^-39 times it, which is far
//! below the rounding of products.

/// The exponent field of the largest half-precision numbers.
const TOP: u16 = 30;
/// The least exponent field of the largest number, so that the factor is far from where f32 ends.
const LEAST_TOP: u16 = 32;
/// The bits of the fraction of bfloat16.
const FRACTION: u32 = 7;
const SIGN: u16 = 0x8000;

/// The move of a matrix's numbers into the range of half precision.
pub(super) struct Narrow {
    /// The factor by which the half-precision numbers must be multiplied.
    pub(super) factor: f32,
    /// The number that is subtracted from the magnitudes of bfloat16, taken as integers.
    offset: u16,
    /// True if all numbers are normal in half precision, or 0.
    are_normal: bool,
}

impl Narrow {
    /// Returns the move of these numbers of bfloat16, which are finite.
    pub(super) fn new(bytes: &[u8]) -> Self {
        // Without an early exit, and with signed integers, this loop becomes vectors. The least magnitude is that of
        // numbers other than 0.
        let (least, largest) = magnitudes(bytes).fold((i16::MAX, 0), |(least, largest), bits| {
            let bits = bits.cast_signed();
            (least.min(if bits == 0 { i16::MAX } else { bits }), i16::max(largest, bits))
        });
        let top = (largest.cast_unsigned() >> FRACTION).max(LEAST_TOP);
        // bfloat16 has a bias of 127, and half precision one of 15.
        let factor = 2f32.powi(i32::from(top) - 127 - (i32::from(TOP) - 15));
        let offset = (top - TOP) << FRACTION;
        Self { factor, offset, are_normal: least.cast_unsigned() >= offset + (1 << FRACTION) }
    }

    /// Writes the numbers in half precision.
    pub(super) fn convert(&self, bytes: &[u8], into: &mut [u8]) {
        let normal = |magnitude: u16| magnitude.wrapping_sub(self.offset) << 3;
        if self.are_normal {
            convert(bytes, into, |magnitude| if magnitude == 0 { 0 } else { normal(magnitude) });
        } else {
            convert(bytes, into, |magnitude| match magnitude.checked_sub(self.offset + (1 << FRACTION)) {
                Some(_) => normal(magnitude),
                None => self.subnormal(magnitude),
            });
        }
    }

    /// Returns a magnitude that is subnormal in half precision, rounded to nearest.
    fn subnormal(&self, magnitude: u16) -> u16 {
        if magnitude >> FRACTION == 0 {
            return 0;
        }
        let shift = u32::from((self.offset >> FRACTION) + 1 - (magnitude >> FRACTION));
        let significand = u32::from(0x80 | magnitude & 0x7f) << 3;
        // It has 11 bits, so a longer shift leaves nothing.
        if shift > 12 { 0 } else { ((significand + (1 << shift >> 1)) >> shift) as u16 }
    }
}

fn magnitudes(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes) & !SIGN)
}

/// Replaces the magnitudes of numbers.
fn convert(bytes: &[u8], into: &mut [u8], moved: impl Fn(u16) -> u16) {
    for (bytes, into) in bytes.as_chunks().0.iter().zip(into.as_chunks_mut().0) {
        let bits = u16::from_le_bytes(*bytes);
        *into = (bits & SIGN | moved(bits & !SIGN)).to_le_bytes();
    }
}
