//! The exponential function for attention over floats and for sampling. The implementation is the crate's own, so its
//! bits depend neither on the instruction set nor on libm.

use crate::vector::Lanes;

/// Inputs below this give 0, because the result would be subnormal. exp(LOWEST) is just above 2^-126.
const LOWEST: f32 = -87.336_54;
/// Larger inputs are clamped to this, so that the result stays finite (about 2.4e38).
const HIGHEST: f32 = 88.376_26;
/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
const MAGIC: f32 = 12_582_912.0;
/// ln 2 in two parts. The first has so few bits that n * LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// exp(r) = 1 + r + r^2 * P(r) on |r| <= ln(2)/2; coefficients of Cephes' `expf` (S. Moshier), highest power first.
const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Computes e^x in each lane. exp(0) is exactly 1, exp(-inf) is 0, and NaN stays NaN. The relative error is below
/// 1.2e-7 (2 ulp).
///
/// # Safety
/// The CPU must have the instruction set of `L`.
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: only lane arithmetic, under this function's own condition.
    unsafe {
        let highest = L::splat(HIGHEST);
        let clamped = highest.select_below(x, highest, x);
        let shifted = clamped.fma(L::splat(std::f32::consts::LOG2_E), L::splat(MAGIC));
        let n = shifted.sub(L::splat(MAGIC));
        let r = n.fnma(L::splat(LN2_LOW), n.fnma(L::splat(LN2_HIGH), clamped));
        let mut p = L::splat(P[0]);
        for c in &P[1..] {
            p = p.fma(r, L::splat(*c));
        }
        let e = p.fma(r.mul(r), r).add(L::splat(1.0));
        let scaled = e.mul(shifted.exp2_from_magic());
        x.select_below(L::splat(LOWEST), L::splat(0.0), scaled)
    }
}
