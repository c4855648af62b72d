//! The square of the rectified linear unit (arXiv:2109.08668).

use crate::vector::{Lanes, each_vector, simd_entry};

#[inline(always)]
unsafe fn relu_squared_generic<L: Lanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe {
            // The order of operands lets NaN through.
            let positive = L::splat(0.0).max(L::load_first(p.add(i), lanes));
            positive.mul(positive).store_first(p.add(i), lanes);
        }
    });
}

simd_entry! {
    /// Computes `x = max(x, 0)^2` for each element.
    pub fn relu_squared_in_place = relu_squared_generic(x: &mut [f32]);
}
