//! Root mean square normalisation: arXiv:1910.07467.

use super::vector::{Lanes, each_vector, simd_entry};

/// One over the root mean square: sixteen running sums, element i in lane i mod 16, then the lane tree.
#[inline(always)]
unsafe fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    let (p, n) = (x.as_ptr(), x.len());
    // SAFETY: every load stays below n.
    let sum = unsafe {
        let mut squares = L::splat(0.0);
        each_vector!(n, |i, lanes| {
            let v = L::load_first(p.add(i), lanes);
            squares = v.fma(v, squares);
        });
        squares.sum()
    };
    1.0 / (sum / n as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn rms_norm_generic<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    // SAFETY: every access stays below the common length.
    unsafe {
        let scale = L::splat(inverse_rms::<L>(x, eps));
        each_vector!(x.len(), |i, lanes| {
            let v = L::load_first(x.as_ptr().add(i), lanes).mul(scale);
            v.mul(L::load_first(weight.as_ptr().add(i), lanes)).store_first(out.as_mut_ptr().add(i), lanes);
        });
    }
}

#[inline(always)]
unsafe fn head_rms_norm_generic<L: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len() % weight.len(), 0);
    for head in x.chunks_exact_mut(weight.len()) {
        // SAFETY: every access stays below the head's length, which is the weight's.
        unsafe {
            let scale = L::splat(inverse_rms::<L>(head, eps));
            each_vector!(weight.len(), |i, lanes| {
                let v = L::load_first(head.as_ptr().add(i), lanes).mul(scale);
                v.mul(L::load_first(weight.as_ptr().add(i), lanes))
                    .store_first(head.as_mut_ptr().add(i), lanes);
            });
        }
    }
}

simd_entry! {
    /// out = x / sqrt(mean(x^2) + eps) * weight for one row. Panics if the lengths differ.
    pub fn rms_norm = rms_norm_generic(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
}

simd_entry! {
    /// [`rms_norm`] of each head of one row alone, in place: x [heads * D], weight [D].
    ///
    /// Panics if the length of `x` is not a multiple of that of `weight`.
    pub fn head_rms_norm_in_place = head_rms_norm_generic(x: &mut [f32], weight: &[f32], eps: f32);
}
