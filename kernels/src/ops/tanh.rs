//! The crate's own hyperbolic tangent, and what soft caps make of it: bits do not depend on libm.

use super::exp::exp;
use super::vector::{Lanes, each_vector, simd_entry};

/// Below this the polynomial, from it on the exponential.
const SMALL: f32 = 0.625;
/// tanh(x) = x + x^3 * P(x^2) on |x| < 0.625; coefficients of Cephes' `tanhf` (S. Moshier), highest power first.
const P: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// tanh(x) in each lane; NaN stays NaN; relative error below 3e-7.
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
        // Of NaN and of what is large, the size is not below.
        let size = x.max(zero.sub(x));
        size.select_below(L::splat(SMALL), small, large)
    }
}

/// cap * tanh(x / cap) in each lane, with `inverse` = 1 / cap.
///
/// # Safety
/// As [`tanh`].
#[inline(always)]
pub unsafe fn soft_cap<L: Lanes>(x: L, cap: f32, inverse: f32) -> L {
    // SAFETY: the same condition.
    unsafe { tanh(x.mul(L::splat(inverse))).mul(L::splat(cap)) }
}

#[inline(always)]
unsafe fn soft_cap_generic<L: Lanes>(x: &mut [f32], cap: f32) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length.
        unsafe { soft_cap(L::load_first(p.add(i), lanes), cap, 1.0 / cap).store_first(p.add(i), lanes) };
    });
}

simd_entry! {
    /// x = cap * tanh(x / cap): keeps every element between -cap and cap. arXiv:2408.00118, section 2.
    pub fn soft_cap_in_place = soft_cap_generic(x: &mut [f32], cap: f32);
}
