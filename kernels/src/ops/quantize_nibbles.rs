//! One head as levels of four bits with one scale.

use super::quantize_head::TINY;
use super::vector::{ByteLanes, LANES};

/// What the sixteen values of a nibble stand for, in units of the scale: the levels at which a normal distribution is
/// rounded with the least squared error (Max 1960, Lloyd 1982), the largest made 127. A transformed head is nearly
/// normal.
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
/// Magnitudes from which on the next level is nearer, and what it adds.
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
/// Where the largest magnitude of a head is put, in levels; what lies beyond the last one is rounded to it. The best
/// choice for the head is taken.
const PLACES: [f32; 4] = [127.0, 127.0 / 0.94, 127.0 / 0.88, 127.0 / 0.82];

/// Rounds the `head_size` elements at `x`, whole vectors with zeros beyond, to the nearest of [`LEVELS`] times a scale:
/// each element becomes the number of its level, from 0 to 15. Returns the scale.
///
/// For each of [`PLACES`] the levels are chosen and then the scale of the least squared error; the least error counts.
/// The scale is 0 if all is (nearly) zero, NaN if an element is not finite or the scale is not; then levels say
/// nothing.
///
/// # Safety
/// The CPU has the instruction set of `L`; nobody else uses the elements.
#[inline(always)]
pub unsafe fn quantize_nibbles<L: ByteLanes>(x: *mut f32, head_size: usize) -> half::f16 {
    // SAFETY: the caller's elements.
    unsafe {
        let zero = L::splat(0.0);
        // What is not finite leaves NaN in the second, which else sums zeros.
        let (mut largest, mut check) = (zero, zero);
        for i in (0..head_size).step_by(LANES) {
            let x = L::load(x.add(i));
            largest = x.max(zero.sub(x)).max(largest);
            check = check.add(x.sub(x));
        }
        let is_finite = check.at_least(zero) == u16::MAX;
        let largest = largest.max_lane();
        if !is_finite {
            return half::f16::NAN;
        }
        let mut scale = half::f16::ZERO;
        if largest >= TINY {
            let (mut best, mut best_scale) = (0.0, 0.0);
            for place in PLACES {
                let (dot, square) = fit::<L>(x, head_size, place / largest);
                // The squared error is that of zeros less this.
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
            number_of::<L>(y).store(x.add(i));
        }
        scale
    }
}

/// The sums of x * level and of level^2 over a head, if it is multiplied by `factor` and rounded.
#[inline(always)]
unsafe fn fit<L: ByteLanes>(x: *const f32, head_size: usize, factor: f32) -> (f32, f32) {
    // SAFETY: the caller's elements.
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
                // Beyond the head.
                level = L::select_first(head_size - i, level, zero);
            }
            dot = level.fma(x, dot);
            square = level.fma(level, square);
        }
        (dot.sum(), square.sum())
    }
}

/// The numbers of the levels that are nearest.
#[inline(always)]
unsafe fn number_of<L: ByteLanes>(y: L) -> L {
    // SAFETY: lane arithmetic only.
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
