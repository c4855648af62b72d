//! What the kernels of x86-64 share.

use std::arch::x86_64::*;

use crate::quantize::{GroupCode, QUANT_GROUP, QuantGroup};

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

/// Registers of a group.
const GROUP_REGISTERS: usize = QUANT_GROUP / 8;

/// Quantises one row; see [`crate::quantize`]. False if it is not finite.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn quantize_row(x: &[f32], groups: &mut [QuantGroup]) -> bool {
    let mut is_finite = true;
    for (x, group) in x.chunks_exact(QUANT_GROUP).zip(groups) {
        // SAFETY: 32 elements.
        let x: [__m256; GROUP_REGISTERS] =
            std::array::from_fn(|at| unsafe { _mm256_loadu_ps(x.as_ptr().add(at * 8)) });
        let (top, rest, top_quad) = extremes(quad_magnitudes(x));
        let code = GroupCode::new(top, rest);
        is_finite &= code.is_finite;
        let factor = _mm256_set1_ps(code.reciprocal);
        let quants = if code.is_finite {
            x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)))
        } else {
            [_mm256_setzero_si256(); GROUP_REGISTERS]
        };
        let low_byte = _mm256_set1_epi32(0xff);
        let low = bytes(quants.map(|quants| _mm256_and_si256(quants, low_byte)));
        let half = _mm256_set1_epi32(128);
        let high = bytes(quants.map(|quants| {
            _mm256_and_si256(_mm256_srai_epi32::<8>(_mm256_add_epi32(quants, half)), low_byte)
        }));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(group.low.as_mut_ptr().cast(), low) };
        let high = _mm256_permutevar8x32_epi32(high, _mm256_set1_epi32(top_quad.cast_signed()));
        group.high = _mm256_cvtsi256_si32(high).to_le_bytes().map(u8::cast_signed);
        let half_sum = sum(_mm256_add_epi32(quants[0], quants[1]));
        let other_sum = sum(_mm256_add_epi32(quants[2], quants[3]));
        group.put_numbers(code, top_quad, half_sum + other_sum, half_sum);
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

/// 32 integers below 256 as bytes, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(wide: [__m256i; GROUP_REGISTERS]) -> __m256i {
    let pairs = (_mm256_packus_epi32(wide[0], wide[1]), _mm256_packus_epi32(wide[2], wide[3]));
    // Lane l of half h of the packed bytes comes from half h of register l.
    let packed = _mm256_packus_epi16(pairs.0, pairs.1);
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The sum of 8 integers.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(lanes: __m256i) -> i32 {
    let sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
    _mm_cvtsi128_si32(sum) + _mm_extract_epi32::<1>(sum)
}
