//! GELU (arXiv:1606.08415), exact and with the tanh approximation, alone and as the elementwise part of GeGLU
//! (arXiv:2002.05202).

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

/// The factor sqrt(2 / pi) of u.
const INNER: f32 = 0.797_884_6;
/// The coefficient of the cubic term.
const CUBE: f32 = 0.044_715;

/// Computes x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 * x^3). The equivalent x / (1 + e^-2u) avoids
/// cancellation.
#[inline(always)]
unsafe fn gelu<L: Lanes>(x: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let cubed = x.mul(x).mul(x);
        let sum = cubed.fma(L::splat(CUBE), x);
        let exponential = exp(sum.mul(L::splat(-2.0 * INNER)));
        x.div(exponential.add(L::splat(1.0)))
    }
}

#[inline(always)]
unsafe fn gelu_mul_generic<L: Lanes>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let (p, q) = (gate.as_mut_ptr(), up.as_ptr());
    each_vector!(gate.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            gelu(L::load_first(p.add(i), lanes))
                .mul(L::load_first(q.add(i), lanes))
                .store_first(p.add(i), lanes);
        }
    });
}

#[inline(always)]
unsafe fn gelu_generic<L: Lanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe { gelu(L::load_first(p.add(i), lanes)).store_first(p.add(i), lanes) };
    });
}

/// erfc(y) = t * P(t) * e^(-y^2) with t = 1 / (1 + 0.3275911 y), for y >= 0. Formula 7.1.26 of Abramowitz and Stegun,
/// Handbook of Mathematical Functions (1964), whose error is below 1.5e-7; highest power first.
const ERFC: [f32; 5] = [1.061_405_4, -1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];

/// Computes x / 2 * (1 + erf(x / sqrt(2))) with an error below 1e-7 times |x|, plus rounding.
#[inline(always)]
unsafe fn gelu_erf<L: Lanes>(x: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let (zero, one) = (L::splat(0.0), L::splat(1.0));
        let y = x.max(zero.sub(x)).mul(L::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = one.div(y.fma(L::splat(0.327_591_1), one));
        let mut p = L::splat(ERFC[0]);
        for c in &ERFC[1..] {
            p = p.fma(t, L::splat(*c));
        }
        let tail = p.mul(t).mul(exp(zero.sub(y.mul(y)))).mul(x).mul(L::splat(0.5));
        x.select_below(zero, tail, x.sub(tail))
    }
}

#[inline(always)]
unsafe fn gelu_erf_generic<L: Lanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe { gelu_erf(L::load_first(p.add(i), lanes)).store_first(p.add(i), lanes) };
    });
}

simd_entry! {
    /// Computes `x = x / 2 * (1 + erf(x / sqrt(2)))` for each element.
    pub fn gelu_erf_in_place = gelu_erf_generic(x: &mut [f32]);
}

simd_entry! {
    /// Computes `x = gelu(x)` for each element.
    pub fn gelu_in_place = gelu_generic(x: &mut [f32]);
}

simd_entry! {
    /// Computes `gate = gelu(gate) * up`. Panics if the lengths differ.
    pub fn gelu_mul_in_place = gelu_mul_generic(gate: &mut [f32], up: &[f32]);
}
