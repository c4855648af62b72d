//! Kernels for the 256-bit VNNI instructions, for CPUs that have AVX-VNNI but not AVX-512.
//!
//! The kernels are those of [`super::avx2`], except that integer products use `vpdpbusd`, which adds four products per
//! lane in 32 bits. The instruction has two encodings with the same result, VEX (AVX-VNNI) and EVEX (AVX-512 VL and
//! VNNI). The kernel is generic over [`Encoding`], so it can be tested on CPUs that have either.

use std::arch::x86_64::*;

use crate::isa::avx2::{
    Part, VECTOR, broadcast_quad, dispatch_rows, for_each_part, load_quad, load_scales, scale_bytes, store,
};
use crate::linear::{QUAD, TILE, TileOutput};
use crate::pack::int::IntFormat;
use crate::pack::{Tile, group_vectors};
use crate::quantize::{GROUP_QUADS, QUANT_GROUP, QuantGroup, QuantizedBlock};

pub(crate) use super::avx2::linear_float;
pub(crate) use super::x86::quantize_rows;

/// An encoding of `vpdpbusd`.
trait Encoding {
    /// Adds the four products of each lane's unsigned and signed bytes to `sums`, exactly.
    ///
    /// # Safety
    /// The CPU must have the encoding.
    unsafe fn dot(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;
}

enum Vex {}

impl Encoding for Vex {
    #[inline(always)]
    unsafe fn dot(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller guarantees the conditions.
        unsafe { _mm256_dpbusd_avx_epi32(sums, unsigned, signed) }
    }
}

enum Evex {}

impl Encoding for Evex {
    #[inline(always)]
    unsafe fn dot(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller guarantees the conditions.
        unsafe { _mm256_dpbusd_epi32(sums, unsigned, signed) }
    }
}

/// Returns true if the CPU has either encoding.
pub(super) fn is_supported() -> bool {
    has_vex() || (is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni"))
}

fn has_vex() -> bool {
    is_x86_feature_detected!("avxvnni")
}

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The CPU must have the features, and `out` must be writable for the block's rows and `num_lanes` lanes.
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * scale_bytes::<F>());
    block.check(in_features);
    let has_vex = has_vex();
    for_each_part(block.num_rows(), out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked, and the CPU has the encoding; the caller guarantees the rest.
        unsafe {
            if has_vex {
                dispatch_rows!(rows, vex_part::<F>(in_features, tile, block, out, part));
            } else {
                dispatch_rows!(rows, evex_part::<F>(in_features, tile, block, out, part));
            }
        }
    });
}

/// # Safety
/// The conditions are those of [`int_part`]; the CPU must have the features.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn vex_part<F: IntFormat, const R: usize>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { int_part::<F, Vex, R>(in_features, tile, block, out, part) }
}

/// # Safety
/// The conditions are those of [`int_part`]; the CPU must have the features.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
unsafe fn evex_part<F: IntFormat, const R: usize>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { int_part::<F, Evex, R>(in_features, tile, block, out, part) }
}

/// # Safety
/// The conditions are those of [`linear_int`], which has checked the lengths. The part must have `R` rows, and the CPU
/// AVX2, FMA, F16C and `E`.
#[inline(always)]
unsafe fn int_part<F: IntFormat, E: Encoding, const R: usize>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    let parts = QUANT_GROUP / F::GROUP;
    // SAFETY: groups, rows and lanes are within the checked lengths.
    unsafe {
        let groups = block.groups.as_ptr().add(part.first_row * block.row_stride);
        let mut acc: [__m256; R] =
            std::array::from_fn(|row| _mm256_set1_ps(*block.starts.as_ptr().add(part.first_row + row)));
        for x_group in 0..in_features / QUANT_GROUP {
            let x: [*const QuantGroup; R] =
                std::array::from_fn(|row| groups.add(row * block.row_stride + x_group));
            let vectors = x_group * parts * group_vectors::<F>();
            let quants = tile.quants.as_ptr().add(vectors * VECTOR + part.first_lane * QUAD);
            for w_part in 0..parts {
                let dots = dots::<F, E, R>(quants, &x, w_part);
                let at = ((x_group * parts + w_part) * TILE + part.first_lane) * scale_bytes::<F>();
                let scale = load_scales::<F>(tile.scales.as_ptr().add(at));
                for row in 0..R {
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps((*x[row]).scale));
                    acc[row] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[row]), acc[row]);
                }
            }
            if F::HAS_MIN {
                let at = (x_group * TILE + part.first_lane) * scale_bytes::<F>();
                let min = load_scales::<F>(tile.mins.as_ptr().add(at));
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = _mm256_fmadd_ps(min, _mm256_set1_ps((*x).sum), *acc);
                }
            }
        }
        store(&acc, out, part);
    }
}

/// Computes the dot products of weights, minus the zero point, and quants, for the weights' group `part` within the
/// groups `x`.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of the weights for `x`, and the CPU must have AVX2 and `E`.
#[inline(always)]
unsafe fn dots<F: IntFormat, E: Encoding, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    part: usize,
) -> [__m256i; R] {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        let mut sums: [__m256i; R] = std::array::from_fn(|row| {
            let group = &*x[row];
            let negated_sum = match (F::GROUP < QUANT_GROUP, part) {
                (false, _) => group.negated_sum,
                (true, 0) => group.negated_half_sum,
                (true, _) => group.negated_sum - group.negated_half_sum,
            };
            // This is 0 in formats without a zero point.
            _mm256_set1_epi32(i32::from(F::ZERO_POINT) * negated_sum)
        });
        for quad in part * F::GROUP / QUAD..(part + 1) * F::GROUP / QUAD {
            let weights = load_quad::<F>(quants, quad);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = E::dot(*sum, weights, broadcast_quad((**x).low.as_ptr().add(quad * QUAD)));
            }
        }
        for (sum, x) in sums.iter_mut().zip(x) {
            let group = &**x;
            if group.top_quad() * QUAD / F::GROUP == part {
                let weights = top_weights::<F>(quants, group.top_quad());
                let high = E::dot(_mm256_setzero_si256(), weights, broadcast_quad(group.high.as_ptr()));
                *sum = _mm256_add_epi32(*sum, _mm256_slli_epi32::<8>(high));
            }
        }
        sums
    }
}

/// Loads 8 lanes of quad `quad` of the weights for a group of activations. `quad` need not be a constant.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of these weights, and the CPU must have AVX2.
#[inline(always)]
unsafe fn top_weights<F: IntFormat>(quants: *const u8, quad: usize) -> __m256i {
    let num_vectors = if F::NIBBLES { GROUP_QUADS / 2 } else { GROUP_QUADS };
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        let bytes = _mm256_loadu_si256(quants.add(quad % num_vectors * VECTOR).cast());
        if !F::NIBBLES {
            return bytes;
        }
        let nibbles = if quad < num_vectors { bytes } else { _mm256_srli_epi16::<4>(bytes) };
        _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
    }
}
