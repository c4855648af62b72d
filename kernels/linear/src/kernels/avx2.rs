//! Kernels for AVX2 with FMA and F16C.
//!
//! `vpmaddubsw` adds pairs in 16 bits. With 4-bit weights a group of 32 cannot overflow them (8 quads of 2 * 15 * 128),
//! so that they are widened once for a group; weights of 5 and 6 bits are widened after 4 and 2 quads, others after
//! each. Weights of 8 bits are signed: their magnitudes multiply activations that have their signs.

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
    fn zero_point<F: IntFormat>() -> i32 {
        if is_signed::<F>() { 0 } else { i32::from(F::ZERO_POINT) }
    }

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
                let mut low = [_mm256_setzero_si256(); R];
                for quad in first..(first + part).min(quads.end) {
                    let weights = Weights::new::<F>(load_quad::<F>(quants, quad));
                    for (low, x) in low.iter_mut().zip(x) {
                        let x = broadcast_quad((**x).low.as_ptr().add(quad * QUAD));
                        *low = _mm256_add_epi16(*low, weights.times::<F>(x));
                    }
                }
                for (sum, low) in sums.iter_mut().zip(low) {
                    *sum = _mm256_add_epi32(*sum, widened(low, 1));
                }
                first += part;
            }
        }
    }

    #[inline(always)]
    unsafe fn add_high<F: IntFormat>(mut sum: __m256i, quants: *const u8, group: &QuantGroup) -> __m256i {
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            let weights = Weights::new::<F>(top_weights::<F>(quants, group.top_quad()));
            if is_signed::<F>() {
                // Only low bytes of the top quad may be -128, whose sign does not change.
                let low = group.low.as_ptr().add(group.top_quad() * QUAD);
                let other = low.cast::<u32>().read_unaligned() ^ 0x8080_8080;
                if other.wrapping_sub(0x0101_0101) & !other & 0x8080_8080 != 0 {
                    let is_least = _mm256_cmpeq_epi8(broadcast_quad(low), _mm256_set1_epi8(-128));
                    let is_wrong =
                        _mm256_and_si256(is_least, _mm256_cmpgt_epi8(_mm256_setzero_si256(), weights.signs));
                    let missing = _mm256_and_si256(weights.sizes, is_wrong);
                    let missing = _mm256_maddubs_epi16(missing, _mm256_set1_epi8(1));
                    sum = _mm256_add_epi32(sum, widened(missing, 256));
                }
            }
            let products = weights.times::<F>(broadcast_quad(group.high.as_ptr()));
            _mm256_add_epi32(sum, widened(products, 256))
        }
    }
}

/// True if 8 bits of weights are multiplied with their signs apart.
const fn is_signed<F: IntFormat>() -> bool {
    F::MAX_QUANT > 127
}

/// The most quads whose products 16 bits hold: two for each quad, of a weight and -128.
const fn most_quads<F: IntFormat>() -> usize {
    if is_signed::<F>() { 1 } else { i16::MAX as usize / (2 * 128 * F::MAX_QUANT) }
}

/// A quad of weights of 8 lanes.
#[derive(Clone, Copy)]
struct Weights {
    /// Unsigned weights, or magnitudes.
    sizes: __m256i,
    /// Signed weights, if they are.
    signs: __m256i,
}

impl Weights {
    #[inline(always)]
    unsafe fn new<F: IntFormat>(quad: __m256i) -> Self {
        const { assert!(!is_signed::<F>() || F::ZERO_POINT == 128) };
        if !is_signed::<F>() {
            return Self { sizes: quad, signs: quad };
        }
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            // Flipping the top bit subtracts 128.
            let signs = _mm256_xor_si256(quad, _mm256_set1_epi8(-128));
            Self { sizes: _mm256_abs_epi8(signs), signs }
        }
    }

    /// Adds pairs of products in 16 bits. A product of a negative weight and -128 has the wrong sign.
    #[inline(always)]
    unsafe fn times<F: IntFormat>(self, x: __m256i) -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let x = if is_signed::<F>() { _mm256_sign_epi8(x, self.signs) } else { x };
            _mm256_maddubs_epi16(self.sizes, x)
        }
    }
}

/// Adds pairs, times `factor`, in 32 bits.
#[inline(always)]
unsafe fn widened(sums: __m256i, factor: i16) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_madd_epi16(sums, _mm256_set1_epi16(factor)) }
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
