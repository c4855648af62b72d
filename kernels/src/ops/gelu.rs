//! GELU with the tanh approximation (arXiv:1606.08415), alone and as the elementwise part of GeGLU (arXiv:2002.05202).

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

simd_entry! {
    /// Computes `x = gelu(x)` for each element.
    pub fn gelu_in_place = gelu_generic(x: &mut [f32]);
}

simd_entry! {
    /// Computes `gate = gelu(gate) * up`. Panics if the lengths differ.
    pub fn gelu_mul_in_place = gelu_mul_generic(gate: &mut [f32], up: &[f32]);
}
