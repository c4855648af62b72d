//! Quantises a head to signed bytes with one bf16 scale.
//!
//! The scale is rounded to bf16 first, and the bytes are computed with the rounded scale, so the only error is that of
//! rounding the bytes, with a step that is at most 2^-8 larger or smaller. The largest byte is still 127, because
//! 127 * (1 + 2^-8) is below 127.5. f16 has more precision than bf16, but too little range.

use crate::vector::{ByteLanes, LANES, MAGIC};

/// The largest byte. -128 is not used, so that the range is symmetric.
const LARGEST: f32 = 127.0;
/// A head whose largest magnitude is below this counts as zero, because the reciprocal would not be finite.
pub const TINY: f32 = 1e-30;

/// The scale of a head with this largest magnitude, rounded to bf16, ties to even.
#[inline(always)]
fn scale_of(largest: f32) -> f32 {
    half::bf16::from_f32(largest * (1.0 / LARGEST)).to_f32()
}

/// Rounds `x` to `out[i] * scale` and returns the scale, which follows from the largest magnitude.
///
/// The scale is 0 if all elements are below [`TINY`], and NaN if an element is not finite; the bytes are 0 then. The
/// result has the same bits on every CPU. The function must be inlined into a kernel to use its instruction set.
#[inline(always)]
pub fn quantize_head(x: &[f32], out: &mut [i8]) -> f32 {
    // The bits of magnitudes compare like their values, with infinity and NaN last.
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

/// Like [`quantize_head`], in place for `num` elements at `x`. The low byte of each element's bits is the quantised
/// byte.
///
/// # Safety
/// The CPU must have the instruction set of `L`, `x` must point to `num` elements in whole vectors, and no other thread
/// may access them.
#[inline(always)]
pub unsafe fn quantize_vectors<L: ByteLanes>(x: *mut f32, num: usize) -> f32 {
    debug_assert!(num.is_multiple_of(LANES));
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let zero = L::splat(0.0);
        let largest = largest_magnitude::<L>(x, num);
        let has_bytes = largest.is_some_and(|largest| largest >= TINY);
        let scale = scale_of(largest.unwrap_or(f32::NAN));
        let factor = L::splat(if has_bytes { 1.0 / scale } else { 0.0 });
        for i in (0..num).step_by(LANES) {
            // Elements of a head without bytes may be NaN; zeros are stored instead.
            let lanes = if has_bytes { L::load(x.add(i)).mul(factor) } else { zero };
            lanes.add(L::splat(MAGIC)).store(x.add(i));
        }
        match largest {
            Some(_) if has_bytes => scale,
            Some(_) => 0.0,
            None => f32::NAN,
        }
    }
}

/// Returns the largest magnitude of `num` elements, or `None` if an element is not finite.
///
/// # Safety
/// The CPU must have the instruction set of `L`, and `x` must point to `num` elements, padded to whole vectors.
#[inline(always)]
pub unsafe fn largest_magnitude<L: ByteLanes>(x: *const f32, num: usize) -> Option<f32> {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let zero = L::splat(0.0);
        // An element that is not finite makes `check` NaN; otherwise it stays 0.
        let (mut largest, mut check) = (zero, zero);
        for i in (0..num).step_by(LANES) {
            let x = L::load(x.add(i));
            largest = x.max(zero.sub(x)).max(largest);
            check = check.add(x.sub(x));
        }
        if check.at_least(zero) == u16::MAX { Some(largest.max_lane()) } else { None }
    }
}
