//! Implementations of [`Lanes`] for x86-64.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the conditions of every block are those of the trait")]

mod bytes;

use super::{LANES, Lanes};
use std::arch::x86_64::*;

/// The mask of the second element of a pair of bfloat16.
const SECOND_OF_PAIR: i32 = 0xffff_0000u32.cast_signed();

/// Sixteen lanes in two 256-bit registers. Needs AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2Lanes(__m256, __m256);

impl Avx2Lanes {
    /// Two masks that are all ones in the lanes below `n`.
    #[inline(always)]
    unsafe fn mask(n: usize) -> (__m256, __m256) {
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            (
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, low)),
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, high)),
            )
        }
    }
}

impl Lanes for Avx2Lanes {
    const REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        unsafe {
            let (low, high) = Self::mask(n);
            Self(
                _mm256_maskload_ps(p, _mm256_castps_si256(low)),
                _mm256_maskload_ps(p.wrapping_add(8), _mm256_castps_si256(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_unsigned(p: *const u8) -> Self {
        unsafe {
            let widen = |p: *const u8| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
            Self(widen(p), widen(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs(p: *const u32, is_second: bool) -> Self {
        let widened = |pairs| unsafe {
            _mm256_castsi256_ps(if is_second {
                _mm256_and_si256(pairs, _mm256_set1_epi32(SECOND_OF_PAIR))
            } else {
                _mm256_slli_epi32::<16>(pairs)
            })
        };
        unsafe { Self(widened(_mm256_loadu_si256(p.cast())), widened(_mm256_loadu_si256(p.add(8).cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        unsafe {
            let (low, high) = Self::mask(n);
            _mm256_maskstore_ps(p, _mm256_castps_si256(low), self.0);
            _mm256_maskstore_ps(p.wrapping_add(8), _mm256_castps_si256(high), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fnmadd_ps(self.0, b.0, c.0), _mm256_fnmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self {
        unsafe {
            let (low, high) = Self::mask(n);
            Self(_mm256_blendv_ps(b.0, a.0, low), _mm256_blendv_ps(b.1, a.1, high))
        }
    }
    #[inline(always)]
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self {
        unsafe {
            Self(
                _mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0)),
                _mm256_blendv_ps(b.1, a.1, _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, bound.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self {
        unsafe {
            let bits = _mm256_set1_epi32(bits.into());
            // Move bit i to the sign of lane i, which the blend reads.
            let low = _mm256_sllv_epi32(bits, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
            let high = _mm256_sllv_epi32(bits, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
            Self(
                _mm256_blendv_ps(b.0, a.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(b.1, a.1, _mm256_castsi256_ps(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn at_least(self, bound: Self) -> u16 {
        unsafe {
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.0, bound.0));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.1, bound.1));
            (low | high << 8) as u16
        }
    }
    #[inline(always)]
    unsafe fn exp2_from_magic(self) -> Self {
        unsafe {
            let one = _mm256_set1_epi32(0x3f80_0000);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.1));
            Self(
                _mm256_castsi256_ps(_mm256_add_epi32(low, one)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, one)),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch_near(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Sixteen lanes in one 512-bit register. Needs AVX-512 F and DQ.
#[derive(Clone, Copy)]
pub struct Avx512Lanes(__m512);

#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1u32 << n) - 1) as __mmask16
}

impl Avx512Lanes {
    #[inline(always)]
    unsafe fn halves(self) -> Avx2Lanes {
        unsafe { Avx2Lanes(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0)) }
    }
}

impl Lanes for Avx512Lanes {
    const REGISTERS: usize = 32;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        unsafe { Self(_mm512_maskz_loadu_ps(mask16(n), p)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_unsigned(p: *const u8) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs(p: *const u32, is_second: bool) -> Self {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            Self(_mm512_castsi512_ps(if is_second {
                _mm512_and_si512(pairs, _mm512_set1_epi32(SECOND_OF_PAIR))
            } else {
                _mm512_slli_epi32::<16>(pairs)
            }))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fnmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_mask_blend_ps(mask16(n), b.0, a.0)) }
    }
    #[inline(always)]
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0), b.0, a.0)) }
    }
    #[inline(always)]
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_mask_blend_ps(bits, b.0, a.0)) }
    }
    #[inline(always)]
    unsafe fn at_least(self, bound: Self) -> u16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, bound.0) }
    }
    #[inline(always)]
    unsafe fn exp2_from_magic(self) -> Self {
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f80_0000))))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { self.halves().sum() }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { self.halves().max_lane() }
    }
    #[inline(always)]
    unsafe fn prefetch_near(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
