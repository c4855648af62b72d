//! The crate's own exponential: attention over floats and sampling need one whose bits do not depend on the instruction
//! set or libm.

use super::vector::Lanes;
#[cfg(test)]
use super::vector::simd_entry;

/// Inputs below this give 0 (the result would be subnormal); exp(LOWEST) is just above 2^-126.
const LOWEST: f32 = -87.336_54;
/// Inputs above this are taken as this: the result stays finite, about 2.4e38.
const HIGHEST: f32 = 88.376_26;
/// 1.5 * 2^23: adding it leaves the nearest whole number in the low bits.
const MAGIC: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has so few bits that n * LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// exp(r) = 1 + r + r^2 * P(r) on |r| <= ln(2)/2; coefficients of Cephes' `expf` (S. Moshier), highest power first.
const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x in each lane. exp(0) is exactly 1, exp(-inf) is 0, NaN stays NaN; relative error below 1.2e-7 (2 ulp).
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

#[cfg(test)]
#[inline(always)]
unsafe fn exp_slice<L: Lanes>(x: &mut [f32]) {
    let n = x.len();
    let p = x.as_mut_ptr();
    let mut i = 0;
    while i < n {
        let lanes = (n - i).min(16);
        // SAFETY: i + lanes <= n.
        unsafe { exp(L::load_first(p.add(i), lanes)).store_first(p.add(i), lanes) };
        i += lanes;
    }
}

#[cfg(test)]
simd_entry! {
    /// e^x of each element, in place; see [`exp`].
    pub fn exp_in_place = exp_slice(x: &mut [f32]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    /// Against the exact value, for inputs whose result is a normal number.
    const MAX_RELATIVE_ERROR: f64 = 1.2e-7;

    #[test]
    fn error_is_within_the_stated_bound_and_bits_agree_over_instruction_sets() {
        // Every 997th float of each sign in range: about 2 million inputs.
        let mut inputs: Vec<f32> = Vec::new();
        for sign in [0u32, 1 << 31] {
            let end = if sign == 0 { HIGHEST } else { -LOWEST };
            inputs.extend((0..end.to_bits()).step_by(997).map(|b| f32::from_bits(b | sign)));
        }
        let mut reference = inputs.clone();
        exp_in_place(Isa::SCALAR, &mut reference);
        let mut worst = 0.0f64;
        for (x, y) in inputs.iter().zip(&reference) {
            let exact = f64::from(*x).exp();
            worst = worst.max((f64::from(*y) - exact).abs() / exact);
        }
        assert!(worst <= MAX_RELATIVE_ERROR, "worst relative error {worst:e}");
        for isa in Isa::available() {
            let mut got = inputs.clone();
            exp_in_place(isa, &mut got);
            assert!(got.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?}");
        }
    }

    #[test]
    fn edge_values() {
        for isa in Isa::available() {
            let mut x = [0.0, -0.0, f32::NEG_INFINITY, -1e30, -87.4, f32::NAN, 1e30, f32::INFINITY];
            exp_in_place(isa, &mut x);
            assert_eq!(&x[..5], &[1.0, 1.0, 0.0, 0.0, 0.0], "{isa:?}");
            assert!(x[5].is_nan(), "{isa:?}");
            assert!(x[6].is_finite() && x[6] > 2e38 && x[7] == x[6], "{isa:?}: {x:?}");
        }
    }
}
