//! The hyperbolic tangent and soft caps. The implementation is the crate's own, so its bits do not depend on libm.

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

/// Magnitudes below this use the polynomial, others the exponential.
const SMALL: f32 = 0.625;
/// tanh(x) = x + x^3 * P(x^2) on |x| < 0.625; coefficients of Cephes' `tanhf` (S. Moshier), highest power first.
const P: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// Computes tanh(x) in each lane. NaN stays NaN. The relative error is below 3e-7.
///
/// # Safety
/// The CPU must have the instruction set of `L`.
#[inline(always)]
pub unsafe fn tanh<L: Lanes>(x: L) -> L {
    // SAFETY: only lane arithmetic, under this function's own condition.
    unsafe {
        let (zero, one) = (L::splat(0.0), L::splat(1.0));
        let square = x.mul(x);
        let mut p = L::splat(P[0]);
        for c in &P[1..] {
            p = p.fma(square, L::splat(*c));
        }
        let small = p.mul(square).fma(x, x);
        let large = one.sub(L::splat(2.0).div(exp(x.add(x)).add(one)));
        // Comparisons with NaN are false, so NaN takes the exponential branch.
        let size = x.max(zero.sub(x));
        size.select_below(L::splat(SMALL), small, large)
    }
}

/// Computes cap * tanh(x / cap) in each lane, where `inverse` is 1 / cap.
///
/// # Safety
/// The CPU must have the instruction set of `L`.
#[inline(always)]
pub unsafe fn soft_cap<L: Lanes>(x: L, cap: f32, inverse: f32) -> L {
    // SAFETY: only lane arithmetic, under this function's own condition.
    unsafe { tanh(x.mul(L::splat(inverse))).mul(L::splat(cap)) }
}

#[inline(always)]
unsafe fn soft_cap_generic<L: Lanes>(x: &mut [f32], cap: f32) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe { soft_cap(L::load_first(p.add(i), lanes), cap, 1.0 / cap).store_first(p.add(i), lanes) };
    });
}

simd_entry! {
    /// Computes `x = cap * tanh(x / cap)`, which limits elements to -cap..cap (arXiv:2408.00118, section 2).
    pub fn soft_cap_in_place = soft_cap_generic(x: &mut [f32], cap: f32);
}
