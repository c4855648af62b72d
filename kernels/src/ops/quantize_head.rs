//! One head as signed bytes with one scale, a bf16 number.
//!
//! The scale is rounded before the bytes are: they are rounded to what they will be multiplied by, so that the error is
//! that of their rounding alone, by a step that is 2^-8 larger or smaller at most. 127 then stays the largest byte:
//! 127 * (1 + 2^-8) is below 127.5. (f16 is finer, but has no room for small and large heads.)

use super::vector::{ByteLanes, LANES, MAGIC};

/// Largest byte that is used; -128 is not, so that scales are the same on both sides.
const LARGEST: f32 = 127.0;
/// Largest magnitudes below this count as zero: their reciprocal would not be finite.
pub const TINY: f32 = 1e-30;

/// The scale of a head, from its largest magnitude: a bf16 number, to nearest, ties to even.
#[inline(always)]
fn scale_of(largest: f32) -> f32 {
    half::bf16::from_f32(largest * (1.0 / LARGEST)).to_f32()
}

/// Rounds `x` to `out[i] * scale` with the scale that the largest magnitude asks for, and returns the scale.
///
/// The scale is a bf16 number: 0 if all is (nearly) zero, NaN if an element is not finite; the bytes say nothing then.
/// Plain operations in a fixed order: the same bits everywhere. Must be inlined into a kernel, for its instruction set.
#[inline(always)]
pub fn quantize_head(x: &[f32], out: &mut [i8]) -> f32 {
    // As integers magnitudes have the order of their values, infinity and NaN last.
    let largest = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
    if !largest.is_finite() {
        out.fill(0);
        return f32::NAN;
    }
    if largest < TINY {
        out.fill(0);
        return 0.0;
    }
    let scale = scale_of(largest);
    let factor = 1.0 / scale;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * factor + MAGIC).to_bits() as i8;
    }
    scale
}

/// [`quantize_head`] of `num` elements at `x`, whole vectors, in place: the low byte of each lane's bits is its byte.
///
/// # Safety
/// The CPU has the instruction set of `L`; nobody else uses the elements.
#[inline(always)]
pub unsafe fn quantize_vectors<L: ByteLanes>(x: *mut f32, num: usize) -> f32 {
    debug_assert!(num.is_multiple_of(LANES));
    // SAFETY: the caller's elements.
    unsafe {
        let zero = L::splat(0.0);
        // What is not finite leaves NaN in the second, which else sums zeros.
        let (mut largest, mut check) = (zero, zero);
        for i in (0..num).step_by(LANES) {
            let x = L::load(x.add(i));
            largest = x.max(zero.sub(x)).max(largest);
            check = check.add(x.sub(x));
        }
        let is_finite = check.at_least(zero) == u16::MAX;
        let largest = largest.max_lane();
        let has_bytes = is_finite && largest >= TINY;
        let scale = scale_of(largest);
        let factor = L::splat(if has_bytes { 1.0 / scale } else { 0.0 });
        for i in (0..num).step_by(LANES) {
            // Where there are no bytes, 0 instead of what may be NaN.
            let lanes = if has_bytes { L::load(x.add(i)).mul(factor) } else { zero };
            lanes.add(L::splat(MAGIC)).store(x.add(i));
        }
        match (is_finite, has_bytes) {
            (true, true) => scale,
            (true, false) => 0.0,
            (false, _) => f32::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::ops::vector::simd_entry;
    use crate::testing::Random;

    #[test]
    fn bytes_times_scale_are_within_half_a_step() {
        let mut random = Random::new(3);
        for n in [1, 16, 64, 80] {
            let x = random.normals(n);
            let mut out = vec![0; n];
            let scale = quantize_head(&x, &mut out);
            assert!(matches!(out.iter().map(|q| q.unsigned_abs()).max(), Some(126 | 127)));
            assert_eq!(half::bf16::from_f32(scale).to_f32(), scale, "16 bits hold the scale");
            for (x, q) in x.iter().zip(&out) {
                assert!((x - f32::from(*q) * scale).abs() <= scale * 0.5001, "{x} became {q} * {scale}");
            }
        }
    }

    #[test]
    fn no_rounding_of_the_scale_takes_the_largest_element_out_of_its_byte() {
        // All mantissas above 2^-8 of a bf16 step, in three ranges.
        for bits in (0x3f80_0000..0x4000_0000).step_by(97) {
            for exponent in [-60, 0, 60] {
                let largest = f32::from_bits(bits) * 2f32.powi(exponent);
                let mut out = [0; 2];
                quantize_head(&[largest, -largest], &mut out);
                assert!(matches!(out, [126, -126] | [127, -127]), "{largest}: {out:?}");
            }
        }
        let mut out = [0; 2];
        let scale = quantize_head(&[f32::MAX, f32::MIN], &mut out);
        assert!(scale.is_finite() && out[0] >= 126 && out[1] == -out[0]);
    }

    /// Also in `server/tests/reference/test_rounding.py`, by hand: 1.9 / 127 is nearest to the bf16 number 245 / 2^14.
    #[test]
    fn a_head_becomes_the_same_bytes_as_in_the_reference() {
        let mut out = [0; 6];
        let scale = quantize_head(&[1.9, -1.9, 0.5, -0.26, 0.0075, 0.007], &mut out);
        assert_eq!((scale, out), (245.0 / 16384.0, [127, -127, 33, -17, 1, 0]));
    }

    #[test]
    fn zeros_have_no_scale_and_what_is_not_finite_is_said() {
        let mut out = [1; 3];
        assert_eq!(quantize_head(&[0.0, -0.0, 1e-40], &mut out), 0.0);
        assert_eq!(out, [0; 3]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantize_head(&[0.0, bad, 1.0], &mut out).is_nan());
        }
    }

    #[inline(always)]
    unsafe fn quantize_slice<L: ByteLanes>(x: &mut [f32], out: &mut [i8]) -> f32 {
        assert!(x.len() == out.len() && x.len().is_multiple_of(LANES));
        // SAFETY: whole vectors by the assertion.
        unsafe {
            let scale = quantize_vectors::<L>(x.as_mut_ptr(), x.len());
            for i in (0..x.len()).step_by(LANES) {
                L::load(x.as_ptr().add(i)).store_low_bytes(out.as_mut_ptr().add(i).cast());
            }
            scale
        }
    }

    simd_entry! {
        fn quantize = quantize_slice(x: &mut [f32], out: &mut [i8]) -> f32;
    }

    #[test]
    fn vectors_give_the_same_bits_on_every_instruction_set() {
        let mut random = Random::new(4);
        let special = [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            -0.0,
            1e-45,
            1e-30,
            0.5e-30,
        ];
        for round in 0..400 {
            let mut x = random.normals(16 * (1 + round % 6));
            if round % 4 == 0 {
                x.iter_mut().for_each(|x| *x *= 1e-31);
            }
            if round % 3 == 0 {
                let at = random.below(x.len());
                x[at] = special[random.below(special.len())];
            }
            let mut expected = vec![0; x.len()];
            let scale = quantize_head(&x, &mut expected);
            for isa in Isa::available() {
                let mut got = vec![1; x.len()];
                let got_scale = quantize(isa, &mut x.clone(), &mut got);
                assert_eq!((got_scale.to_bits(), &got), (scale.to_bits(), &expected), "{isa}: {x:?}");
            }
        }
    }
}
