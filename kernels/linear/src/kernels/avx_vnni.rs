//! Kernels for the 256-bit VNNI instructions, for CPUs that have AVX-VNNI but not AVX-512.
//!
//! The kernels are those of [`super::avx2`], except that integer products use `vpdpbusd`, which adds four products per
//! lane in 32 bits. The instruction has two encodings with the same result, VEX (AVX-VNNI) and EVEX (AVX-512 VL and
//! VNNI). The kernel has a version for each, so it can be tested on CPUs that have either.

use std::arch::x86_64::*;
use std::ops::Range;

use super::TileOutput;
use super::avx2::{broadcast_quad, load_quad, top_weights};
use super::half_tile::{self, Part, Products, int_part, part_with};
use crate::quantized::{QuantGroup, QuantizedBlock};
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
    // SAFETY: the CPU has the encoding; the other conditions are the same.
    unsafe {
        if is_x86_feature_detected!("avxvnni") {
            half_tile::linear_int::<F, Vex>(in_features, tile, block, out);
        } else {
            half_tile::linear_int::<F, Evex>(in_features, tile, block, out);
        }
    }
}

/// Implements [`Products`] for an encoding of `vpdpbusd`.
macro_rules! products {
    ($name:ident, $features:literal, $dot:ident) => {
        enum $name {}

        impl Products for $name {
            type Floats = __m256;

            part_with!($features);

            #[inline(always)]
            unsafe fn add_low<F: IntFormat, const R: usize>(
                sums: &mut [__m256i; R],
                quants: *const u8,
                x: &[*const QuantGroup; R],
                quads: Range<usize>,
            ) {
                for quad in quads {
                    // SAFETY: the caller guarantees the conditions.
                    unsafe {
                        let weights = load_quad::<F>(quants, quad);
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum = $dot(*sum, weights, broadcast_quad((**x).low.as_ptr().add(quad * QUAD)));
                        }
                    }
                }
            }

            #[inline(always)]
            unsafe fn add_high<F: IntFormat>(sum: __m256i, quants: *const u8, group: &QuantGroup) -> __m256i {
                // SAFETY: the caller guarantees the conditions.
                unsafe {
                    let weights = top_weights::<F>(quants, group.top_quad());
                    let high = $dot(_mm256_setzero_si256(), weights, broadcast_quad(group.high.as_ptr()));
                    _mm256_add_epi32(sum, _mm256_slli_epi32::<8>(high))
                }
            }
        }
    };
}

products!(Vex, "avx2,fma,f16c,avxvnni", _mm256_dpbusd_avx_epi32);
products!(Evex, "avx2,fma,f16c,avx512f,avx512vl,avx512vnni", _mm256_dpbusd_epi32);
