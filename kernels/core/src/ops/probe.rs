//! Entry points for tests of functions that kernels inline.

use super::{exp, exp2, hadamard, quantize_head, quantize_nibbles};
use crate::vector::{ByteLanes, LANES, Lanes, each_vector, simd_entry};

#[inline(always)]
unsafe fn exp_generic<L: Lanes>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    each_vector!(x.len(), |i, lanes| {
        // SAFETY: i + lanes is at most the length of the slice.
        unsafe { exp::exp(L::load_first(p.add(i), lanes)).store_first(p.add(i), lanes) };
    });
}

#[inline(always)]
unsafe fn exp2_generic<L: ByteLanes>(x: &mut [f32]) {
    for x in x.chunks_exact_mut(LANES) {
        // SAFETY: chunks are whole vectors.
        unsafe { exp2::exp2(L::load(x.as_ptr())).store(x.as_mut_ptr()) }
    }
}

#[inline(always)]
unsafe fn transform_generic<L: ByteLanes>(x: &mut [f32], head_size: usize) {
    assert_eq!(x.len(), head_size.next_multiple_of(LANES));
    // SAFETY: the assertion ensures whole vectors.
    unsafe { hadamard::transform::<L>(x.as_mut_ptr(), head_size) }
}

#[inline(always)]
unsafe fn quantize_vectors_generic<L: ByteLanes>(x: &mut [f32], out: &mut [i8]) -> f32 {
    assert!(x.len() == out.len() && x.len().is_multiple_of(LANES));
    // SAFETY: the assertion ensures whole vectors.
    unsafe {
        let scale = quantize_head::quantize_vectors::<L>(x.as_mut_ptr(), x.len());
        for i in (0..x.len()).step_by(LANES) {
            L::load(x.as_ptr().add(i)).store_low_bytes(out.as_mut_ptr().add(i).cast());
        }
        scale
    }
}

#[inline(always)]
unsafe fn quantize_nibbles_generic<L: ByteLanes>(x: &mut [f32], head_size: usize) -> half::f16 {
    assert_eq!(x.len(), head_size.next_multiple_of(LANES));
    // SAFETY: the assertion ensures whole vectors.
    unsafe { quantize_nibbles::quantize_nibbles::<L>(x.as_mut_ptr(), head_size) }
}

simd_entry! {
    pub fn exp_in_place = exp_generic(x: &mut [f32]);
}

simd_entry! {
    /// Applies [`exp2::exp2`] to each element. A partial last vector is left unchanged.
    pub fn exp2_in_place = exp2_generic(x: &mut [f32]);
}

simd_entry! {
    /// Applies [`hadamard::transform`] to a head that is padded with zeros to whole vectors.
    pub fn transform_in_place = transform_generic(x: &mut [f32], head_size: usize);
}

simd_entry! {
    /// Applies [`quantize_head::quantize_vectors`] to whole vectors.
    pub fn quantize_vectors = quantize_vectors_generic(x: &mut [f32], out: &mut [i8]) -> f32;
}

simd_entry! {
    /// Applies [`quantize_nibbles::quantize_nibbles`] to a head that is padded with zeros to whole vectors.
    pub fn quantize_nibbles = quantize_nibbles_generic(x: &mut [f32], head_size: usize) -> half::f16;
}

/// [`quantize_head::quantize_head`], which needs no vectors.
pub fn quantize_head(x: &[f32], out: &mut [i8]) -> f32 {
    quantize_head::quantize_head(x, out)
}
