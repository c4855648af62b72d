//! The elementwise part of SwiGLU (arXiv:2002.05202), and the clamped form of GPT-OSS.

use crate::vector::{ByteLanes, MAGIC, each_vector, simd_entry};

/// Prefetch distance in elements. Rows of a few KiB are too short for the hardware prefetcher, but they are contiguous.
const AHEAD: usize = 3072;

/// The argument of the exponential is clamped to this range, so that the exponential is a normal number.
const LOWEST: f32 = -87.0;
const HIGHEST: f32 = 86.0;
/// 2^r = 1 + r * P(r) on |r| <= 1/2, highest power first; minimax relative error 9.1e-8.
#[allow(clippy::approx_constant, reason = "a fitted coefficient, near ln 2 by nature")]
const P: [f32; 5] = [1.326_472_7e-3, 9.671_513e-3, 5.550_733_7e-2, 2.402_224_2e-1, 6.931_47e-1];

/// Computes `factor / (1 + e^-gate)` in each lane. NaN stays NaN. The relative error is below 2e-7 + 2e-8 * |gate| for
/// gates of at least [`LOWEST`].
#[inline(always)]
unsafe fn times_sigmoid<L: ByteLanes>(factor: L, gate: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let log2_e = L::splat(std::f32::consts::LOG2_E);
        let x = L::splat(HIGHEST).min(L::splat(LOWEST).max(gate));
        // e^-x = 2^n * 2^r, where n is the integer nearest to -x * log2(e).
        let shifted = x.fnma(log2_e, L::splat(MAGIC));
        let r = x.fnma(log2_e, L::splat(MAGIC).sub(shifted));
        let mut p = L::splat(P[0]);
        for c in &P[1..] {
            p = p.fma(r, L::splat(*c));
        }
        let exponential = p.fma(r, L::splat(1.0)).times_exp2(shifted);
        factor.div(exponential.add(L::splat(1.0)))
    }
}

#[inline(always)]
unsafe fn silu_mul_generic<L: ByteLanes>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let (p, q) = (gate.as_mut_ptr(), up.as_ptr());
    each_vector!(gate.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            L::prefetch(p.wrapping_add(i + AHEAD).cast());
            L::prefetch(q.wrapping_add(i + AHEAD).cast());
            let gate = L::load_first(p.add(i), lanes);
            times_sigmoid(gate, gate).mul(L::load_first(q.add(i), lanes)).store_first(p.add(i), lanes);
        }
    });
}

#[inline(always)]
unsafe fn silu_generic<L: ByteLanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe {
            let x = L::load_first(p.add(i), lanes);
            times_sigmoid(x, x).store_first(p.add(i), lanes);
        }
    });
}

#[inline(always)]
unsafe fn sigmoid_generic<L: ByteLanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe {
            times_sigmoid(L::splat(1.0), L::load_first(p.add(i), lanes)).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `x = x / (1 + e^-x)`.
    pub fn silu_in_place = silu_generic(x: &mut [f32]);
}

simd_entry! {
    /// Computes `x = 1 / (1 + e^-x)`.
    pub fn sigmoid_in_place = sigmoid_generic(x: &mut [f32]);
}

simd_entry! {
    /// Computes `gate = silu(gate) * up`, where `silu(x) = x / (1 + e^-x)`. Panics if the lengths differ.
    pub fn silu_mul_in_place = silu_mul_generic(gate: &mut [f32], up: &[f32]);
}

/// The constants of the clamped form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwigluClamp {
    /// The factor of gates in the sigmoid.
    pub alpha: f32,
    /// The largest gate, and the largest magnitude of `up`.
    pub limit: f32,
}

#[inline(always)]
unsafe fn clamped_swiglu_generic<L: ByteLanes>(gate: &mut [f32], up: &[f32], clamp: SwigluClamp) {
    assert_eq!(gate.len(), up.len());
    let (p, q) = (gate.as_mut_ptr(), up.as_ptr());
    each_vector!(gate.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            L::prefetch(p.wrapping_add(i + AHEAD).cast());
            L::prefetch(q.wrapping_add(i + AHEAD).cast());
            let (least, most) = (L::splat(-clamp.limit), L::splat(clamp.limit));
            // The order of operands keeps NaN.
            let gate = most.min(L::load_first(p.add(i), lanes));
            let up = most.min(least.max(L::load_first(q.add(i), lanes)));
            times_sigmoid(gate, gate.mul(L::splat(clamp.alpha)))
                .mul(up.add(L::splat(1.0)))
                .store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `gate = g * sigmoid(alpha * g) * (u + 1)`, where `g` is `gate` up to the limit, and `u` is `up` between
    /// the negative limit and the limit. Panics if the lengths differ.
    pub fn clamped_swiglu_in_place = clamped_swiglu_generic(gate: &mut [f32], up: &[f32], clamp: SwigluClamp);
}
