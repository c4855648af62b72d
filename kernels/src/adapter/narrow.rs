//! Turns bfloat16 into half precision with the same numbers, up to a power of two.
//!
//! Products with bfloat16 round their input, and packed rows are padded to whole runs, which would double the bytes of B
//! with rank 16. Half precision has more bits of significand, and only the range of its exponents is smaller, so the
//! numbers of nearly all adapters fit once the largest is moved to the top of the range.

/// The exponent field of the largest half-precision numbers.
const TOP: u16 = 30;
/// The least exponent field of the largest number, so that the factor is far from where f32 ends.
const LEAST_TOP: u16 = 32;
/// The bits of the fraction of bfloat16.
const FRACTION: u32 = 7;
const SIGN: u16 = 0x8000;

/// How the numbers of a matrix are moved.
pub(super) struct Narrow {
    /// The factor by which the half-precision numbers must be multiplied.
    pub(super) factor: f32,
    /// What magnitudes of bfloat16, as bits, are reduced by.
    offset: u16,
    /// True if all numbers are normal in half precision, or 0.
    are_normal: bool,
}

impl Narrow {
    /// How these numbers of bfloat16 are moved. `None` if one would lose bits.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        // Without an early exit, and with signed integers, this loop becomes vectors. The least magnitude is that of
        // numbers other than 0.
        let (least, largest) = magnitudes(bytes).fold((i16::MAX, 0), |(least, largest), bits| {
            let bits = bits.cast_signed();
            (least.min(if bits == 0 { i16::MAX } else { bits }), i16::max(largest, bits))
        });
        let (least, top) = (least.cast_unsigned(), largest.cast_unsigned() >> FRACTION);
        if !(LEAST_TOP..0xff).contains(&top) {
            return None;
        }
        // bfloat16 has a bias of 127, and half precision one of 15.
        let factor = 2f32.powi(i32::from(top) - 127 - (i32::from(TOP) - 15));
        let mut narrow = Self { factor, offset: (top - TOP) << FRACTION, are_normal: true };
        narrow.are_normal = least >= narrow.least_normal();
        let is_exact = narrow.are_normal || magnitudes(bytes).all(|bits| narrow.subnormal(bits).is_some());
        is_exact.then_some(narrow)
    }

    /// The least magnitude that is a normal number in half precision, as bits of bfloat16.
    fn least_normal(&self) -> u16 {
        self.offset + (1 << FRACTION)
    }

    /// Writes the numbers in half precision.
    pub(super) fn convert(&self, bytes: &[u8], into: &mut [u8]) {
        if self.are_normal {
            let moved = |magnitude: u16| magnitude.wrapping_sub(self.offset) << 3;
            convert(bytes, into, |magnitude| if magnitude == 0 { 0 } else { moved(magnitude) });
        } else {
            convert(bytes, into, |magnitude| self.subnormal(magnitude).expect("checked by `new`"));
        }
    }

    /// Returns a magnitude as bits of half precision, subnormal or not; `None` if it would lose some.
    fn subnormal(&self, magnitude: u16) -> Option<u16> {
        if magnitude == 0 || magnitude >= self.least_normal() {
            return Some(if magnitude == 0 { 0 } else { (magnitude - self.offset) << 3 });
        }
        let shift = u32::from((self.offset >> FRACTION) + 1 - (magnitude >> FRACTION));
        let significand = (0x80 | (magnitude & 0x7f)) << 3;
        let is_exact = magnitude >> FRACTION != 0 && significand.trailing_zeros() >= shift;
        if is_exact { significand.checked_shr(shift) } else { None }
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
