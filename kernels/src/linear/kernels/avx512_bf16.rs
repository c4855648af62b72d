//! Products of bfloat16 with `vdpbf16ps`, which multiplies a pair of weights per lane with a pair of activations.
//!
//! The instruction adds the product of the second elements first, then that of the first ones, each rounded once. It
//! takes subnormal numbers for 0, but neither weights nor activations are smaller than [`SMALLEST_BF16`], so that all
//! sums are multiples of 2^-115 and none is subnormal.

use std::arch::x86_64::*;

use super::x86::prefetch;
use super::{FloatPanel, TileOutput};
use crate::linear::PANEL;
use crate::pack::float::{Bf16, FloatFormat, SMALLEST_BF16};
use crate::pack::{TILE, Tile};

/// Bytes of 16 weights.
const ELEMENT_BYTES: usize = TILE * Bf16::ELEMENT_BYTES;

/// Rounds a row to pairs of bfloat16, as [`crate::linear::round_row`] does. The element behind an odd last one is 0.
///
/// # Safety
/// The CPU must have AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::linear) unsafe fn round_row(x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    let pairs = out.as_mut_ptr().cast::<u16>();
    let smallest = _mm512_set1_ps(SMALLEST_BF16);
    for first in (0..x.len()).step_by(TILE) {
        let lanes = TILE.min(x.len() - first);
        let (mask, pair_mask) = (u16::MAX >> (TILE - lanes), u16::MAX >> (TILE - lanes.next_multiple_of(2)));
        // SAFETY: the masks keep loads within `x`, and stores within the first half of `out`, or within its only
        // element.
        unsafe {
            let x = _mm512_maskz_loadu_ps(mask, x.as_ptr().add(first));
            let shifted = _mm512_mul_ps(x, _mm512_set1_ps(65_537.0));
            let near = _mm512_sub_ps(shifted, _mm512_sub_ps(shifted, x));
            let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(near), smallest);
            let kept = _mm512_maskz_mov_ps(!is_small, near);
            let upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(kept)));
            _mm256_mask_storeu_epi16(pairs.add(first).cast(), pair_mask, upper);
        }
    }
}

/// Multiplies a panel of pairs with one tile of weights.
///
/// # Safety
/// The conditions are those of [`super`], and the CPU must have the dot products.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(in crate::linear) unsafe fn linear_bf16(tile: &Tile<'_>, panel: &FloatPanel<'_>, out: &TileOutput<'_>) {
    assert!(tile.quants.len() >= panel.in_features * ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    // SAFETY: the lengths are checked; the caller guarantees the output.
    unsafe {
        match panel.num_rows {
            1 => multiply_rows::<1>(tile, panel, out),
            2 => multiply_rows::<2>(tile, panel, out),
            3 => multiply_rows::<3>(tile, panel, out),
            4 => multiply_rows::<4>(tile, panel, out),
            5 => multiply_rows::<5>(tile, panel, out),
            6 => multiply_rows::<6>(tile, panel, out),
            7 => multiply_rows::<7>(tile, panel, out),
            _ => multiply_rows::<PANEL>(tile, panel, out),
        }
    }
}

/// # Safety
/// The conditions are those of [`linear_bf16`], whose assertions must hold. The panel must have `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn multiply_rows<const R: usize>(tile: &Tile<'_>, panel: &FloatPanel<'_>, out: &TileOutput<'_>) {
    let mut sums = [_mm512_setzero_ps(); R];
    // SAFETY: elements and rows are within the checked lengths, and the caller guarantees the output.
    unsafe {
        let x = panel.values.as_ptr().cast::<i32>();
        for run_start in (0..panel.in_features).step_by(Bf16::RUN) {
            let end = (run_start + Bf16::RUN).min(panel.in_features);
            let mut parts = [_mm512_setzero_ps(); R];
            for element in (run_start..end).step_by(2) {
                let vector = tile.quants.as_ptr().add(element * ELEMENT_BYTES);
                prefetch(vector, 0);
                let weights = if element + 1 < end { load_pairs(vector) } else { load_halves(vector) };
                for (row, part) in parts.iter_mut().enumerate() {
                    let pair = *x.add(row * panel.row_stride + element / 2);
                    *part = _mm512_dpbf16_ps(*part, bits(weights), bits(_mm512_set1_epi32(pair)));
                }
            }
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = _mm512_add_ps(*sum, part);
            }
        }
        let lanes = u16::MAX >> (TILE - out.num_lanes);
        for (row, sum) in sums.into_iter().enumerate() {
            let value = match out.bias {
                Some(bias) => _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, bias.as_ptr())),
                None => sum,
            };
            _mm512_mask_storeu_ps(out.values.add(row * out.row_stride), lanes, value);
        }
    }
}

/// Loads the weights of two elements as a pair for each output feature.
///
/// # Safety
/// `vector` must point to the weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_pairs(vector: *const u8) -> __m512i {
    const ORDER: [u16; 2 * TILE] = {
        let mut order = [0; 2 * TILE];
        let mut lane = 0;
        while lane < TILE {
            order[2 * lane] = lane as u16;
            order[2 * lane + 1] = (TILE + lane) as u16;
            lane += 1;
        }
        order
    };
    // SAFETY: the caller guarantees the weights, and the order has as many bytes.
    unsafe {
        let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
        _mm512_permutexvar_epi16(order, _mm512_loadu_si512(vector.cast()))
    }
}

/// Loads the weights of a last element, whose pair has no second one.
///
/// # Safety
/// `vector` must point to the weights.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves(vector: *const u8) -> __m512i {
    // SAFETY: the caller guarantees the weights.
    _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(vector.cast()) })
}

#[inline(always)]
fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(vector) }
}
