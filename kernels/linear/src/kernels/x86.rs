//! Functions that the x86-64 kernels share.

use std::arch::x86_64::*;

use crate::quantized::{GROUP_QUADS, GroupCode, QUANT_GROUP, QuantGroup, QuantizeJob};
use trunkline_kernels_core::pack::QUAD;

/// Prefetch distance of weights.
///
/// The hardware prefetcher stops at every page. Prefetching 8 KiB ahead, a quarter of a first-level cache, doubled the
/// bandwidth of one thread on a product of one row (Zen 4, 47 MB of weights: 20 to 40 GB/s). 2 KiB gave a third of that
/// gain, and 16 KiB cost a few per cent if the weights were cached.
const PREFETCH_BYTES: usize = 8 << 10;

/// Prefetches the cache line [`PREFETCH_BYTES`] after `pointer + offset`, which may be beyond the end of the weights.
#[inline(always)]
pub(super) fn prefetch(pointer: *const u8, offset: usize) {
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.wrapping_add(offset + PREFETCH_BYTES).cast()) }
}

/// Like [`prefetch`], to the second-level cache.
#[inline(always)]
pub(super) fn prefetch_far(pointer: *const u8, offset: usize) {
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(pointer.wrapping_add(offset + PREFETCH_BYTES).cast()) }
}

const GROUP_REGISTERS: usize = QUANT_GROUP / 8;

/// Quantises rows; see [`crate::quantized`].
///
/// # Safety
/// The CPU must have AVX2 and FMA.
pub(crate) unsafe fn quantize_rows(job: &QuantizeJob<'_>) {
    // SAFETY: the conditions are the same.
    job.each_row(|x, groups| unsafe { quantize_row(x, groups) });
}

/// Quantises one row. Returns false if it is not finite.
///
/// # Safety
/// The CPU must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn quantize_row(x: &[f32], groups: &mut [QuantGroup]) -> bool {
    let mut is_finite = true;
    for (x, group) in x.chunks_exact(QUANT_GROUP).zip(groups) {
        // SAFETY: a group has 32 elements.
        let registers: [__m256; GROUP_REGISTERS] =
            std::array::from_fn(|at| unsafe { _mm256_loadu_ps(x.as_ptr().add(at * 8)) });
        let (top, rest, top_quad) = extremes(quad_magnitudes(registers));
        let code = GroupCode::new(top, rest);
        if !code.is_finite {
            is_finite = false;
            group.put_not_finite();
            continue;
        }
        let factor = _mm256_set1_ps(code.reciprocal);
        let quants = registers.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)));
        // Quants fit in 16 bits. Lane l of half h of the packed low bytes is quad l of half h.
        let first = _mm256_packs_epi32(quants[0], quants[1]);
        let second = _mm256_packs_epi32(quants[2], quants[3]);
        let low_byte = _mm256_set1_epi16(0xff);
        let low = _mm256_packus_epi16(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte));
        let low = _mm256_permutevar8x32_epi32(low, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: a group has 32 low bytes and 8 quads of 4 elements.
        let quad = unsafe {
            _mm256_storeu_si256(group.low.as_mut_ptr().cast(), low);
            _mm_loadu_ps(x.as_ptr().add(top_quad as usize % GROUP_QUADS * QUAD))
        };
        let quad = _mm_cvtps_epi32(_mm_mul_ps(quad, _mm256_castps256_ps128(factor)));
        let high = _mm_srai_epi32::<8>(_mm_add_epi32(quad, _mm_set1_epi32(128)));
        let high = _mm_packs_epi16(_mm_packs_epi32(high, high), high);
        group.high = _mm_cvtsi128_si32(high).to_le_bytes().map(u8::cast_signed);
        let (first_sum, second_sum) = sums(first, second);
        group.put_numbers(code, top_quad, first_sum + second_sum, first_sum);
    }
    is_finite
}

/// Returns the largest magnitude of each quad, as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn quad_magnitudes(x: [__m256; GROUP_REGISTERS]) -> __m256i {
    let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)));
    // A 4 by 4 transpose in each half, combined with maxima. Lane l of half h is then quad 2 l + h.
    let fold = |a, b| _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (first, second) = (fold(bits[0], bits[1]), fold(bits[2], bits[3]));
    let quads = _mm256_max_epi32(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
    _mm256_permutevar8x32_epi32(quads, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Returns the largest of 8 non-negative integers, the largest of the others, and the first index of the largest.
#[inline]
#[target_feature(enable = "avx2")]
fn extremes(quads: __m256i) -> (i32, i32, u32) {
    let max = |quads: __m256i| {
        let max = _mm256_max_epi32(quads, _mm256_permute2x128_si256::<1>(quads, quads));
        let max = _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
        _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b10_11_00_01>(max))
    };
    let top = max(quads);
    let is_top = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(quads, top)));
    let top_quad = is_top.trailing_zeros();
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let is_first = _mm256_cmpeq_epi32(lanes, _mm256_set1_epi32(top_quad.cast_signed()));
    let rest = max(_mm256_andnot_si256(is_first, quads));
    (_mm256_cvtsi256_si32(top), _mm256_cvtsi256_si32(rest), top_quad)
}

/// Returns the sums of the 16 integers in each vector.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(first: __m256i, second: __m256i) -> (i32, i32) {
    let ones = _mm256_set1_epi16(1);
    let (first, second) = (_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
    let both = _mm256_add_epi32(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
    let both = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
    let both = _mm_add_epi32(both, _mm_shuffle_epi32::<0b10_11_00_01>(both));
    (_mm_cvtsi128_si32(both), _mm_extract_epi32::<2>(both))
}
