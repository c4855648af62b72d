//! Multiplication by a number, which some models apply to embeddings.

use crate::vector::{Lanes, each_vector, simd_entry};

#[inline(always)]
unsafe fn scale_generic<L: Lanes>(x: &mut [f32], factor: f32) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe { L::load_first(p.add(i), lanes).mul(L::splat(factor)).store_first(p.add(i), lanes) };
    });
}

simd_entry! {
    /// Computes `x *= factor` for each element.
    pub fn scale_in_place = scale_generic(x: &mut [f32], factor: f32);
}
