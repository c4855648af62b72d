//! Step sizes and decays of recurrent layers (arXiv:2312.00752, section 3.6; arXiv:2405.21060).

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

/// Odd powers of the series of atanh, highest first: ln(1 + u) = 2 atanh(u / (2 + u)). For u <= 1 the argument is at
/// most 1/3, and the terms left out are below 2e-9.
const ATANH: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];

/// Computes ln(1 + u) in each lane, for u from 0 to 1.
#[inline(always)]
unsafe fn ln_1p<L: Lanes>(u: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let s = u.div(u.add(L::splat(2.0)));
        let square = s.mul(s);
        let mut series = L::splat(ATANH[0]);
        for c in &ATANH[1..] {
            series = series.fma(square, L::splat(*c));
        }
        s.add(s).mul(series)
    }
}

#[inline(always)]
unsafe fn softplus_generic<L: Lanes>(x: &mut [f32], bias: &[f32]) {
    assert_eq!(x.len(), bias.len());
    let (p, q) = (x.as_mut_ptr(), bias.as_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            let x = L::load_first(p.add(i), lanes).add(L::load_first(q.add(i), lanes));
            let zero = L::splat(0.0);
            // The order of operands keeps NaN.
            let (positive, negative) = (zero.max(x), zero.min(x));
            // -|x| is the negative part less the positive one.
            let u = exp(negative.sub(positive));
            positive.add(ln_1p(u)).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `x = ln(1 + e^(x + bias))`. Panics if the lengths differ.
    pub fn softplus_in_place = softplus_generic(x: &mut [f32], bias: &[f32]);
}

#[inline(always)]
unsafe fn decay_generic<L: Lanes>(x: &mut [f32], log_rate: &[f32]) {
    assert_eq!(x.len(), log_rate.len());
    let (p, q) = (x.as_mut_ptr(), log_rate.as_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            let rate = exp(L::load_first(q.add(i), lanes));
            let x = L::load_first(p.add(i), lanes);
            exp(x.fnma(rate, L::splat(0.0))).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `x = e^(-x * e^log_rate)`. Panics if the lengths differ.
    pub fn decay_in_place = decay_generic(x: &mut [f32], log_rate: &[f32]);
}
