//! Root mean square normalisation (arXiv:1910.07467).

use crate::vector::{LANES, Lanes, each_vector, simd_entry};

/// Number of vectors of running sums. With a single one, each multiplication would wait for the previous one.
const SUMS: usize = 4;

/// One over the root mean square of `x`.
///
/// Element i is added to running sum i mod 64, except that the last n mod 64 elements go to the first 16 sums. Then
/// pairs of vectors are added, and finally the lanes by the tree of [`Lanes::sum`].
#[inline(always)]
unsafe fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    let (p, n) = (x.as_ptr(), x.len());
    let whole = n - n % (SUMS * LANES);
    // SAFETY: every load stays below n.
    let sum = unsafe {
        let mut squares = [L::splat(0.0); SUMS];
        for i in (0..whole).step_by(SUMS * LANES) {
            for (k, squares) in squares.iter_mut().enumerate() {
                let v = L::load(p.add(i + k * LANES));
                *squares = v.fma(v, *squares);
            }
        }
        each_vector!(n - whole, |i, lanes| {
            let v = L::load_first(p.add(whole + i), lanes);
            squares[0] = v.fma(v, squares[0]);
        });
        let [a, b, c, d] = squares;
        a.add(b).add(c.add(d)).sum()
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

#[inline(always)]
unsafe fn head_l2_norm_generic<L: Lanes>(x: &mut [f32], head_size: usize, eps: f32) {
    assert_eq!(x.len() % head_size, 0);
    let size = head_size as f32;
    for head in x.chunks_exact_mut(head_size) {
        // SAFETY: every access stays below the head's length.
        unsafe {
            // The root of the sum of squares is that of their mean times the root of their number.
            let scale = L::splat(inverse_rms::<L>(head, eps / size) / size.sqrt());
            each_vector!(head_size, |i, lanes| {
                let v = L::load_first(head.as_ptr().add(i), lanes).mul(scale);
                v.store_first(head.as_mut_ptr().add(i), lanes);
            });
        }
    }
}

simd_entry! {
    /// Computes `x / sqrt(sum(x^2) + eps)` in place for each head of one row.
    ///
    /// Panics if the length of `x` is not a multiple of `head_size`.
    pub fn head_l2_norm_in_place = head_l2_norm_generic(x: &mut [f32], head_size: usize, eps: f32);
}

simd_entry! {
    /// Computes `out = x / sqrt(mean(x^2) + eps) * weight` for one row. Panics if the lengths differ.
    pub fn rms_norm = rms_norm_generic(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);
}

simd_entry! {
    /// Applies [`rms_norm`] in place to each head of one row: x `[heads * D]`, weight `[D]`.
    ///
    /// Panics if the length of `x` is not a multiple of the length of `weight`.
    pub fn head_rms_norm_in_place = head_rms_norm_generic(x: &mut [f32], weight: &[f32], eps: f32);
}
