//! SwiGLU's elementwise part: arXiv:2002.05202.

use super::exp::exp;
use super::vector::{LANES, Lanes, simd_entry};

#[inline(always)]
unsafe fn silu_mul_generic<L: Lanes>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let (p, q, n) = (gate.as_mut_ptr(), up.as_ptr(), gate.len());
    let mut i = 0;
    while i < n {
        let lanes = (n - i).min(LANES);
        // SAFETY: i + lanes <= n, the length of both.
        unsafe {
            let g = L::load_first(p.add(i), lanes);
            let denominator = exp(L::splat(0.0).sub(g)).add(L::splat(1.0));
            g.div(denominator).mul(L::load_first(q.add(i), lanes)).store_first(p.add(i), lanes);
        }
        i += lanes;
    }
}

simd_entry! {
    /// gate = silu(gate) * up, with silu(x) = x / (1 + e^-x). Panics if the lengths differ.
    pub fn silu_mul_in_place = silu_mul_generic(gate: &mut [f32], up: &[f32]);
}
