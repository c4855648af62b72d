//! 2^x in few operations, for probabilities that are rounded to bytes afterwards.

use super::vector::{ByteLanes, MAGIC};

/// Inputs below this are taken as this: what is so small counts for nothing beside the largest, which is about 1.
const LOWEST: f32 = -64.0;
/// 2^r = 1 + r * P(r) on |r| <= 1/2, least largest relative error (2.9e-6); highest power first.
const P: [f32; 4] = [0.009_582_853, 0.055_906_426, 0.240_240_99, 0.693_124_2];

/// 2^x in each lane for x up to 100. 2^0 is exactly 1, NaN stays NaN; relative error below 3e-6 from -64 on.
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
