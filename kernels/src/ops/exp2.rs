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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::ops::vector::{LANES, simd_entry};
    use crate::testing::bits;

    #[inline(always)]
    unsafe fn exp2_slice<L: ByteLanes>(x: &mut [f32]) {
        for x in x.chunks_exact_mut(LANES) {
            // SAFETY: whole vectors.
            unsafe { exp2(L::load(x.as_ptr())).store(x.as_mut_ptr()) }
        }
    }

    simd_entry! {
        fn exp2_in_place = exp2_slice(x: &mut [f32]);
    }

    #[test]
    fn error_is_within_the_stated_bound_and_bits_agree_over_instruction_sets() {
        let inputs: Vec<f32> = (0..1 << 20).map(|i| -64.0 + i as f32 * (74.0 / (1 << 20) as f32)).collect();
        let mut reference = inputs.clone();
        exp2_in_place(Isa::SCALAR, &mut reference);
        for (x, y) in inputs.iter().zip(&reference) {
            let exact = f64::from(*x).exp2();
            assert!((f64::from(*y) - exact).abs() <= 3e-6 * exact, "2^{x} became {y}");
        }
        for isa in Isa::available() {
            let mut got = inputs.clone();
            exp2_in_place(isa, &mut got);
            assert_eq!(bits(&got), bits(&reference), "{isa}");
        }
    }

    #[test]
    fn edge_values() {
        for isa in Isa::available() {
            let mut x = [0.0; LANES];
            x[..6].copy_from_slice(&[0.0, -0.0, -1.0, f32::NEG_INFINITY, -1e30, f32::NAN]);
            exp2_in_place(isa, &mut x);
            assert_eq!(&x[..5], &[1.0, 1.0, 0.5, 2f32.powi(-64), 2f32.powi(-64)], "{isa}");
            assert!(x[5].is_nan(), "{isa}");
        }
    }
}
