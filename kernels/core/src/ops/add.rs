//! Elementwise sums, for the residual stream, and products, for gates.

use crate::vector::{Lanes, each_vector, simd_entry};

#[inline(always)]
unsafe fn add_generic<L: Lanes>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    let (p, q) = (x.as_mut_ptr(), y.as_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            L::load_first(p.add(i), lanes).add(L::load_first(q.add(i), lanes)).store_first(p.add(i), lanes);
        }
    });
}

#[inline(always)]
unsafe fn mul_generic<L: Lanes>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    let (p, q) = (x.as_mut_ptr(), y.as_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe {
            L::load_first(p.add(i), lanes).mul(L::load_first(q.add(i), lanes)).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `x += y`. Panics if the lengths differ.
    pub fn add_in_place = add_generic(x: &mut [f32], y: &[f32]);
}

simd_entry! {
    /// Computes `x *= y` for each element. Panics if the lengths differ.
    pub fn mul_in_place = mul_generic(x: &mut [f32], y: &[f32]);
}
