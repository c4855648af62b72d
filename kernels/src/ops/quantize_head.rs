//! One head as signed bytes with one scale.

use super::vector::MAGIC;

/// Largest byte that is used; -128 is not, so that scales are the same on both sides.
const LARGEST: f32 = 127.0;
/// Largest magnitudes below this count as zero: their reciprocal would not be finite.
pub const TINY: f32 = 1e-30;

/// Rounds `x` to `out[i] * scale` with the scale that the largest magnitude asks for, and returns the scale.
///
/// The scale is 0 if all is (nearly) zero, NaN if an element is not finite; the bytes say nothing then. Plain
/// operations in a fixed order: the same bits everywhere. Must be inlined into a kernel, for its instruction set.
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
    let factor = LARGEST / largest;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * factor + MAGIC).to_bits() as i8;
    }
    largest * (1.0 / LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn bytes_times_scale_are_within_half_a_step() {
        let mut random = Random::new(3);
        for n in [1, 16, 64, 80] {
            let x = random.normals(n);
            let mut out = vec![0; n];
            let scale = quantize_head(&x, &mut out);
            assert_eq!(out.iter().map(|q| q.unsigned_abs()).max(), Some(127));
            for (x, q) in x.iter().zip(&out) {
                assert!((x - f32::from(*q) * scale).abs() <= scale * 0.5001, "{x} became {q} * {scale}");
            }
        }
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
}
