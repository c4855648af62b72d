//! What the kernels of x86-64 share.

use std::arch::x86_64::*;

use crate::linear::QUAD;
use crate::quantize::{GROUP_QUADS, GroupCode, QUANT_GROUP, QuantGroup, QuantizeJob};

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

/// [`prefetch`], into the second-level cache.
#[inline(always)]
pub(super) fn prefetch_far(pointer: *const u8, offset: usize) {
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(pointer.wrapping_add(offset + PREFETCH_BYTES).cast()) }
}

/// Registers of a group.
const GROUP_REGISTERS: usize = QUANT_GROUP / 8;

/// Quantises rows; see [`crate::quantize`].
///
/// # Safety
/// The CPU has the features.
pub(crate) unsafe fn quantize_rows(job: &QuantizeJob<'_>) {
    // SAFETY: the caller's condition.
    job.each_row(|x, groups| unsafe { quantize_row(x, groups) });
}

/// Quantises one row. False if it is not finite.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx2,fma")]
unsafe fn quantize_row(x: &[f32], groups: &mut [QuantGroup]) -> bool {
    let mut is_finite = true;
    for (x, group) in x.chunks_exact(QUANT_GROUP).zip(groups) {
        // SAFETY: 32 elements.
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
        // 16 bits hold every quant, 8 bits its low byte; lane l of half h of the packed bytes is quad l of half h.
        let first = _mm256_packs_epi32(quants[0], quants[1]);
        let second = _mm256_packs_epi32(quants[2], quants[3]);
        let low_byte = _mm256_set1_epi16(0xff);
        let low = _mm256_packus_epi16(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte));
        let low = _mm256_permutevar8x32_epi32(low, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: 32 bytes; 4 elements of the quad, of which there are 8.
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

/// The largest magnitude of each quad, as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn quad_magnitudes(x: [__m256; GROUP_REGISTERS]) -> __m256i {
    let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)));
    // A 4 by 4 transpose in each half, with maxima on the way: lane l of half h is quad 2 l + h.
    let fold = |a, b| _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (first, second) = (fold(bits[0], bits[1]), fold(bits[2], bits[3]));
    let quads = _mm256_max_epi32(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
    _mm256_permutevar8x32_epi32(quads, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The largest of 8 integers, none negative, the largest of the others, and where the largest first stands.
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

/// The sums of 16 integers each.
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
