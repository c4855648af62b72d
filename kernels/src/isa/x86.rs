//! What the kernels of x86-64 share.

use std::arch::x86_64::*;

use crate::quantize::{GroupCode, QUANT_GROUP, RowTarget, STEPS_BELOW_ZERO};

/// How far ahead weights are asked for. The hardware's own prefetcher stops at every page; asking 8 KiB ahead, a
/// quarter of a first-level cache, doubled the bandwidth of one thread on a product of one row (Zen 4, 47 MB of
/// weights: 20 to 40 GB/s), 2 KiB gave a third of that gain, and 16 KiB cost a few per cent where weights were cached.
const PREFETCH_BYTES: usize = 8 << 10;

/// Asks for the cache line of weights that is [`PREFETCH_BYTES`] behind `pointer + offset`; beyond the end it is a
/// no-op.
#[inline(always)]
pub(super) fn prefetch(pointer: *const u8, offset: usize) {
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(offset + PREFETCH_BYTES).cast()) }
}

/// Quantises one row; see [`crate::quantize`]. Groups of 16 are two registers of AVX2; wider ones gain nothing.
///
/// # Safety
/// The CPU has the features; `target` is a row of `x.len()` elements, and nobody else uses it.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn quantize_row(x: &[f32], target: RowTarget) {
    for (group_idx, values) in x.chunks_exact(QUANT_GROUP).enumerate() {
        // SAFETY: 16 elements.
        let (low, high) =
            unsafe { (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) };
        let (min_key, max_key) = extremes(order_keys(low), order_keys(high));
        let code = GroupCode::new(min_key, max_key);
        let mut quants = [0i8; QUANT_GROUP];
        let mut sum = 0;
        if code.reciprocal != 0.0 {
            let (min, factor) = (_mm256_set1_ps(code.min), _mm256_set1_ps(code.reciprocal));
            let steps = |x| _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(x, min), factor));
            // Steps from the smallest element are at most 255: no pack saturates.
            let steps = _mm_packus_epi16(narrow(steps(low)), narrow(steps(high)));
            let halves = _mm_sad_epu8(steps, _mm_setzero_si128());
            let total = _mm_cvtsi128_si32(halves) + _mm_extract_epi32::<2>(halves);
            sum = total - STEPS_BELOW_ZERO * QUANT_GROUP as i32;
            // Less 128: the top bit flipped.
            let signed = _mm_xor_si128(steps, _mm_set1_epi8(i8::MIN));
            // SAFETY: 16 bytes.
            unsafe { _mm_storeu_si128(quants.as_mut_ptr().cast(), signed) };
        }
        // SAFETY: by the contract.
        unsafe { target.put(group_idx, code, sum, &quants) };
    }
}

/// [`crate::quantize::order_key`] of each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn order_keys(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let magnitude_bits = _mm256_and_si256(_mm256_srai_epi32::<31>(bits), _mm256_set1_epi32(i32::MAX));
    _mm256_xor_si256(bits, magnitude_bits)
}

/// Smallest and largest of 16 integers.
#[inline]
#[target_feature(enable = "avx2")]
fn extremes(low: __m256i, high: __m256i) -> (i32, i32) {
    let max = _mm256_max_epi32(low, high);
    // The smallest is the complement of the largest complement.
    let min = _mm256_xor_si256(_mm256_min_epi32(low, high), _mm256_set1_epi32(-1));
    let fold = |wide| _mm_max_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
    let (max, min) = (fold(max), fold(min));
    let both = _mm_max_epi32(_mm_unpacklo_epi32(max, min), _mm_unpackhi_epi32(max, min));
    let both = _mm_max_epi32(both, _mm_unpackhi_epi64(both, both));
    (!_mm_extract_epi32::<1>(both), _mm_cvtsi128_si32(both))
}

/// 8 lanes as 16 bits each.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow(wide: __m256i) -> __m128i {
    _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide))
}
