//! Step sizes and decays of recurrent layers (arXiv:2312.00752, section 3.6; arXiv:2405.21060).

use super::exp::exp;
use crate::vector::{Lanes, elementwise};

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

elementwise! {
    /// Computes `x = ln(1 + e^(x + bias))`. Panics if the lengths differ.
    pub fn softplus_in_place<L: Lanes>(x, bias) {{
        let (x, zero) = (x.add(bias), L::splat(0.0));
        // The order of operands keeps NaN.
        let (positive, negative) = (zero.max(x), zero.min(x));
        // -|x| is the negative part less the positive one.
        let u = exp(negative.sub(positive));
        positive.add(ln_1p(u))
    }}
}

elementwise! {
    /// Computes `x = e^(-x * e^log_rate)`. Panics if the lengths differ.
    pub fn decay_in_place<L: Lanes>(x, log_rate) { exp(x.fnma(exp(log_rate), L::splat(0.0))) }
}
