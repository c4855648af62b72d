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
