//! Layer normalisation, by mean and variance of a row (arXiv:1607.06450).

use crate::vector::{LANES, Lanes, each_vector, simd_entry};

/// Number of vectors of running sums. With a single one, each addition would wait for the previous one.
const SUMS: usize = 4;

/// The sum of `f(x)` over `x`, in the order of the sum in [`super::rms_norm`].
#[inline(always)]
unsafe fn sum<L: Lanes>(x: &[f32], f: impl Fn(L) -> L) -> f32 {
    let (p, n) = (x.as_ptr(), x.len());
    let whole = n - n % (SUMS * LANES);
    // SAFETY: every load stays below n.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        for i in (0..whole).step_by(SUMS * LANES) {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add(f(L::load(p.add(i + k * LANES))));
            }
        }
        each_vector!(n - whole, |i, lanes| {
            // Lanes beyond the row add nothing.
            let value = f(L::load_first(p.add(whole + i), lanes));
            sums[0] = sums[0].add(L::select_first(lanes, value, L::splat(0.0)));
        });
        let [a, b, c, d] = sums;
        a.add(b).add(c.add(d)).sum()
    }
}

#[inline(always)]
unsafe fn layer_norm_generic<L: Lanes>(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    let n = x.len();
    assert!(n == weight.len() && n == out.len() && bias.is_none_or(|bias| bias.len() == n));
    // SAFETY: every access stays below the common length.
    unsafe {
        let mean = L::splat(sum::<L>(x, |v| v) / n as f32);
        let centred = |v: L| v.sub(mean);
        let variance = sum::<L>(x, |v| centred(v).mul(centred(v))) / n as f32;
        let scale = L::splat(1.0 / (variance + eps).sqrt());
        each_vector!(n, |i, lanes| {
            let normed = centred(L::load_first(x.as_ptr().add(i), lanes)).mul(scale);
            let scaled = normed.mul(L::load_first(weight.as_ptr().add(i), lanes));
            let shifted = match bias {
                Some(bias) => scaled.add(L::load_first(bias.as_ptr().add(i), lanes)),
                None => scaled,
            };
            shifted.store_first(out.as_mut_ptr().add(i), lanes);
        });
    }
}

simd_entry! {
    /// Computes `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` for one row. Panics if the lengths
    /// differ.
    pub fn layer_norm = layer_norm_generic(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]);
}
