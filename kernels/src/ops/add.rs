//! Elementwise sum: the residual stream.

use super::vector::{LANES, Lanes, simd_entry};

#[inline(always)]
unsafe fn add_generic<L: Lanes>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    let (p, q, n) = (x.as_mut_ptr(), y.as_ptr(), x.len());
    let mut i = 0;
    while i < n {
        let lanes = (n - i).min(LANES);
        // SAFETY: i + lanes <= n, the length of both.
        unsafe {
            L::load_first(p.add(i), lanes).add(L::load_first(q.add(i), lanes)).store_first(p.add(i), lanes)
        };
        i += lanes;
    }
}

simd_entry! {
    /// x += y. Panics if the lengths differ.
    pub fn add_in_place = add_generic(x: &mut [f32], y: &[f32]);
}
