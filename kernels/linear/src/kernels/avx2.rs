//! Kernels for AVX2 with FMA and F16C.
//!
//! `vpmaddubsw` adds pairs in 16 bits. With 4-bit weights a group of 32 cannot overflow them (8 quads of 2 * 15 * 128),
//! so that they are widened once for a group; weights of 5 and 6 bits are widened after 4 and 2 quads. Weights of 8
//! bits are multiplied as two nibbles each.

use std::arch::x86_64::*;
use std::ops::Range;

use super::TileOutput;
use super::half_tile::{self, Floats, Part, Products, int_part, part_with};
use super::x86::prefetch;
use crate::quantized::{GROUP_QUADS, QuantGroup, QuantizedBlock, VECTOR_BYTES};
use trunkline_kernels_core::pack::codes::has_ready_quants;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, Tile};

pub(crate) use super::x86::quantize_rows;

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The conditions are those of [`super`].
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    // SAFETY: the conditions are the same.
    unsafe { half_tile::linear_int::<F, Maddubs>(in_features, tile, block, out) }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the conditions of every block are those of the trait")]
impl Floats for __m256 {
    type Ints = __m256i;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        unsafe { _mm256_maskstore_ps(p, mask(n), self) }
    }
    #[inline(always)]
    unsafe fn from_ints(x: __m256i) -> Self {
        unsafe { _mm256_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, b, c) }
    }
}

/// A mask that is all ones in the lanes below `n`.
#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

enum Maddubs {}

impl Products for Maddubs {
    type Floats = __m256;

    part_with!("avx2,fma,f16c");

    #[inline(always)]
    unsafe fn add_low<F: IntFormat, const R: usize>(
        sums: &mut [__m256i; R],
        quants: *const u8,
        x: &[*const QuantGroup; R],
        quads: Range<usize>,
    ) {
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            let part = most_quads::<F>();
            let mut first = quads.start;
            while first < quads.end {
                let (mut low, mut high) = ([_mm256_setzero_si256(); R], [_mm256_setzero_si256(); R]);
                for quad in first..(first + part).min(quads.end) {
                    let weights = load_quad::<F>(quants, quad);
                    let upper = upper_nibbles(weights);
                    let lower = if is_split::<F>() { lower_nibbles(weights) } else { weights };
                    for ((low, high), x) in low.iter_mut().zip(&mut high).zip(x) {
                        let x = broadcast_quad((**x).low.as_ptr().add(quad * QUAD));
                        *low = _mm256_add_epi16(*low, _mm256_maddubs_epi16(lower, x));
                        if is_split::<F>() {
                            *high = _mm256_add_epi16(*high, _mm256_maddubs_epi16(upper, x));
                        }
                    }
                }
                for ((sum, low), high) in sums.iter_mut().zip(low).zip(high) {
                    *sum = _mm256_add_epi32(*sum, joined::<F>(low, high, 1));
                }
                first += part;
            }
        }
    }

    #[inline(always)]
    unsafe fn add_high<F: IntFormat>(sum: __m256i, quants: *const u8, group: &QuantGroup) -> __m256i {
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            let weights = top_weights::<F>(quants, group.top_quad());
            let x = broadcast_quad(group.high.as_ptr());
            let lower = if is_split::<F>() { lower_nibbles(weights) } else { weights };
            let low = _mm256_maddubs_epi16(lower, x);
            let high = _mm256_maddubs_epi16(upper_nibbles(weights), x);
            _mm256_add_epi32(sum, joined::<F>(low, high, 256))
        }
    }
}

/// True if weights are multiplied as two nibbles each, because 16 bits do not hold the products of two of them.
const fn is_split<F: IntFormat>() -> bool {
    F::MAX_QUANT > 127
}

/// The most quads whose products 16 bits hold: two for each quad, of a weight or a nibble of it and -128.
const fn most_quads<F: IntFormat>() -> usize {
    let largest = if is_split::<F>() { 15 } else { F::MAX_QUANT };
    i16::MAX as usize / (2 * 128 * largest)
}

#[inline(always)]
unsafe fn lower_nibbles(x: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_and_si256(x, _mm256_set1_epi8(15)) }
}

#[inline(always)]
unsafe fn upper_nibbles(x: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)) }
}

/// Adds the pairs of sums of lower nibbles (or whole weights) and those of upper nibbles, times `factor`.
#[inline(always)]
unsafe fn joined<F: IntFormat>(low: __m256i, high: __m256i, factor: i16) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let low = _mm256_madd_epi16(low, _mm256_set1_epi16(factor));
        if is_split::<F>() {
            _mm256_add_epi32(low, _mm256_madd_epi16(high, _mm256_set1_epi16(16 * factor)))
        } else {
            low
        }
    }
}

/// Loads 8 lanes of quad `quad` of the weights for a group of activations, 4 unsigned weights per lane.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of these weights, and the CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn load_quad<F: IntFormat>(quants: *const u8, quad: usize) -> __m256i {
    let vector = if F::NIBBLES { quad % (GROUP_QUADS / 2) } else { quad };
    if has_ready_quants::<F>() && vector == quad {
        prefetch(quants, vector * VECTOR_BYTES);
    }
    // SAFETY: the caller guarantees the conditions.
    unsafe { top_weights::<F>(quants, quad) }
}

/// Like [`load_quad`], without prefetching. `quad` need not be a constant.
///
/// # Safety
/// The conditions are those of [`load_quad`].
#[inline(always)]
pub(super) unsafe fn top_weights<F: IntFormat>(quants: *const u8, quad: usize) -> __m256i {
    let num_vectors = if F::NIBBLES { GROUP_QUADS / 2 } else { GROUP_QUADS };
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        let bytes = _mm256_loadu_si256(quants.add(quad % num_vectors * VECTOR_BYTES).cast());
        if !F::NIBBLES {
            return bytes;
        }
        let nibbles = if quad < num_vectors { bytes } else { _mm256_srli_epi16::<4>(bytes) };
        _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
    }
}

/// # Safety
/// `pointer` must point to 4 bytes, and the CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn broadcast_quad(pointer: *const i8) -> __m256i {
    // SAFETY: the caller guarantees the conditions.
    unsafe { _mm256_set1_epi32(pointer.cast::<i32>().read_unaligned()) }
}
