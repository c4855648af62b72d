//! Rounds activations to bfloat16 for products with bfloat16 weights.

#[cfg(all(target_arch = "x86_64", isa = "avx512"))]
use super::kernels::avx512_bf16;
use trunkline_kernels_core::isa::{Isa, IsaKind};
use trunkline_kernels_core::pack::float::{RUN, SMALLEST_BF16};
use trunkline_kernels_core::vector::{Lanes, each_vector, simd_entry};

/// 2^16 + 1, with which 8 bits of a significand remain (Dekker 1971, "A floating-point technique").
const SPLIT: f32 = 65_537.0;

/// Rounds to 8 bits of significand, and to 0 below [`SMALLEST_BF16`]. Infinities and numbers from 2^111 on become NaN.
#[inline(always)]
unsafe fn rounded<L: Lanes>(x: L) -> L {
    // SAFETY: only lane arithmetic.
    unsafe {
        let shifted = x.mul(L::splat(SPLIT));
        let near = shifted.sub(shifted.sub(x));
        let magnitude = L::splat(0.0).sub(near).max(near);
        magnitude.select_below(L::splat(SMALLEST_BF16), L::splat(0.0), near)
    }
}

#[inline(always)]
unsafe fn round_generic<L: Lanes>(x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    let (p, q) = (x.as_ptr(), out.as_mut_ptr());
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of both slices.
        unsafe { rounded(L::load_first(p.add(i), lanes)).store_first(q.add(i), lanes) };
    });
}

simd_entry! {
    fn round_to_floats = round_generic(x: &[f32], out: &mut [f32]);
}

/// Rounds a row to bfloat16 for products on the same instruction set. If the set has products of bfloat16 and the row
/// consists of whole runs, then the first half of `out` holds pairs of bfloat16 in the order of the set. Otherwise
/// `out` holds f32 numbers. Panics if the lengths differ.
pub fn round_row(isa: Isa, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    match isa.kind() {
        #[cfg(all(target_arch = "x86_64", isa = "avx512"))]
        // SAFETY: the `Isa` proves that the CPU has its features.
        IsaKind::Avx512Bf16 if has_pairs(isa, x.len()) => unsafe { avx512_bf16::round_row::<false>(x, out) },
        #[cfg(all(target_arch = "x86_64", isa = "avx512"))]
        // SAFETY: as above.
        IsaKind::Amx if has_pairs(isa, x.len()) => unsafe { avx512_bf16::round_row::<true>(x, out) },
        _ => round_to_floats(isa, x, out),
    }
}

/// Returns true if rows of this length that are rounded for this set are pairs of bfloat16.
pub(super) fn has_pairs(isa: Isa, in_features: usize) -> bool {
    matches!(isa.kind(), IsaKind::Avx512Bf16 | IsaKind::Amx) && in_features.is_multiple_of(RUN)
}
