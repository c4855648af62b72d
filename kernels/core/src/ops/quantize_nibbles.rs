//! Quantises a head to four-bit levels with one f16 scale.

use super::quantize_head::{TINY, largest_magnitude};
use crate::vector::{ByteLanes, LANES};

/// The levels of the sixteen nibbles, in units of the scale.
///
/// They minimise the squared error of a normal distribution (Max 1960, Lloyd 1982), scaled so that the largest is 127.
/// The elements of a transformed head are nearly normally distributed.
pub const LEVELS: [i8; 16] = {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < HALF {
        levels[HALF + i] = MAGNITUDES[i];
        levels[HALF - 1 - i] = -MAGNITUDES[i];
        i += 1;
    }
    levels
};

const HALF: usize = 8;
const MAGNITUDES: [i8; HALF] = [6, 18, 31, 44, 58, 75, 96, 127];
/// For each magnitude but the last: the bound from which on the next one is nearer, and the difference to it.
const STEPS: [(f32, f32); HALF - 1] = {
    let mut steps = [(0.0, 0.0); HALF - 1];
    let mut i = 0;
    while i < HALF - 1 {
        let (low, high) = (MAGNITUDES[i] as f32, MAGNITUDES[i + 1] as f32);
        steps[i] = ((low + high) / 2.0, high - low);
        i += 1;
    }
    steps
};
/// Candidates for the largest magnitude of a head in units of the scale, of which the best is chosen for each head.
/// Elements beyond the largest level are clipped to it.
const CANDIDATE_MAXIMA: [f32; 4] = [127.0, 127.0 / 0.94, 127.0 / 0.88, 127.0 / 0.82];

/// Replaces each of the `head_size` elements at `x` by the index, 0 to 15, of the nearest of [`LEVELS`] times a scale.
/// Returns the scale.
///
/// For each of [`CANDIDATE_MAXIMA`] the elements are rounded to levels, and then the scale with the least squared error
/// is computed. The candidate with the smallest error wins. The scale is 0 if all elements are below [`TINY`], and NaN
/// if an element or the scale is not finite; the indices have no meaning then.
///
/// # Safety
/// The CPU must have the instruction set of `L`, `x` must point to `head_size` elements padded with zeros to whole
/// vectors, and no other thread may access them.
#[inline(always)]
pub unsafe fn quantize_nibbles<L: ByteLanes>(x: *mut f32, head_size: usize) -> half::f16 {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let Some(largest) = largest_magnitude::<L>(x, head_size) else { return half::f16::NAN };
        let mut scale = half::f16::ZERO;
        if largest >= TINY {
            let (mut best, mut best_scale) = (0.0, 0.0);
            for maximum in CANDIDATE_MAXIMA {
                let (dot, square) = fit::<L>(x, head_size, maximum / largest);
                // The squared error is the sum of squares minus this.
                let gain = dot * (dot / square);
                if gain > best {
                    (best, best_scale) = (gain, dot / square);
                }
            }
            scale = half::f16::from_f32(best_scale);
        }
        if !scale.is_finite() {
            return half::f16::NAN;
        }
        let factor = L::splat(if scale > half::f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 });
        for i in (0..head_size).step_by(LANES) {
            let y = L::load(x.add(i)).mul(factor);
            level_index::<L>(y).store(x.add(i));
        }
        scale
    }
}

/// Multiplies a head by `factor` and rounds it to levels. Returns the sums of x * level and of level^2.
#[inline(always)]
unsafe fn fit<L: ByteLanes>(x: *const f32, head_size: usize, factor: f32) -> (f32, f32) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        let (zero, factor) = (L::splat(0.0), L::splat(factor));
        let (mut dot, mut square) = (zero, zero);
        for i in (0..head_size).step_by(LANES) {
            let x = L::load(x.add(i));
            let x = x.max(zero.sub(x));
            let y = x.mul(factor);
            let mut level = L::splat(f32::from(MAGNITUDES[0]));
            for (bound, step) in STEPS {
                level = level.add(y.select_below(L::splat(bound), zero, L::splat(step)));
            }
            if head_size - i < LANES {
                // Lanes beyond the head must not count.
                level = L::select_first(head_size - i, level, zero);
            }
            dot = level.fma(x, dot);
            square = level.fma(level, square);
        }
        (dot.sum(), square.sum())
    }
}

/// The index of the nearest level in each lane.
#[inline(always)]
unsafe fn level_index<L: ByteLanes>(y: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let zero = L::splat(0.0);
        let magnitude = y.max(zero.sub(y));
        let mut number = zero;
        for (bound, _) in STEPS {
            number = number.add(magnitude.select_below(L::splat(bound), zero, L::splat(1.0)));
        }
        let half = L::splat(HALF as f32);
        y.select_below(zero, half.sub(L::splat(1.0)).sub(number), half.add(number))
    }
}
