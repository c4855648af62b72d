//! Sums of scaled rows, which combine the outputs of experts.

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

#[inline(always)]
unsafe fn add_scaled_generic<L: Lanes>(sum: &mut [f32], x: &[f32], factor: f32, is_first: bool) {
    assert_eq!(sum.len(), x.len());
    let (p, q) = (sum.as_mut_ptr(), x.as_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            let x = L::load_first(q.add(i), lanes);
            let before = if is_first { L::splat(0.0) } else { L::load_first(p.add(i), lanes) };
            x.fma(L::splat(factor), before).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `sum = fma(x, factor, sum)`, where `sum` counts as 0 if `is_first`. Panics if the lengths differ.
    pub fn add_scaled = add_scaled_generic(sum: &mut [f32], x: &[f32], factor: f32, is_first: bool);
}

#[inline(always)]
unsafe fn sigmoid_scale_generic<L: Lanes>(x: &mut [f32], gate: f32) {
    let p = x.as_mut_ptr();
    // SAFETY: i + lanes is at most the length of the slice.
    unsafe {
        let factor = L::splat(1.0).div(exp(L::splat(-gate)).add(L::splat(1.0)));
        each_vector!(x.len(), |i, lanes| {
            L::load_first(p.add(i), lanes).mul(factor).store_first(p.add(i), lanes);
        });
    }
}

simd_entry! {
    /// Computes `x *= 1 / (1 + e^-gate)` for each element.
    pub fn sigmoid_scale_in_place = sigmoid_scale_generic(x: &mut [f32], gate: f32);
}
