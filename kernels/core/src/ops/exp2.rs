//! A fast 2^x for probabilities that are rounded to bytes afterwards.

use crate::vector::{ByteLanes, MAGIC};

/// Smaller inputs are clamped to this. Such results are negligible beside the largest, which is about 1.
const LOWEST: f32 = -64.0;
/// 2^r = 1 + r * P(r) on |r| <= 1/2, highest power first; minimax relative error 2.9e-6.
const P: [f32; 4] = [0.009_582_853, 0.055_906_426, 0.240_240_99, 0.693_124_2];

/// Computes 2^x in each lane, for x up to 100. 2^0 is exactly 1, and NaN stays NaN. The relative error is below 3e-6
/// for x of at least -64.
///
/// # Safety
/// The CPU must have the instruction set of `L`.
#[inline(always)]
pub unsafe fn exp2<L: ByteLanes>(x: L) -> L {
    // SAFETY: only lane arithmetic, under this function's own condition.
    unsafe {
        let x = L::splat(LOWEST).max(x);
        let shifted = x.add(L::splat(MAGIC));
        let r = x.sub(shifted.sub(L::splat(MAGIC)));
        let mut p = L::splat(P[0]);
        for c in &P[1..] {
            p = p.fma(r, L::splat(*c));
        }
        p.fma(r, L::splat(1.0)).times_exp2(shifted)
    }
}
