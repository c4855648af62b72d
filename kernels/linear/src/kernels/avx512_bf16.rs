//! Products of bfloat16 with `vdpbf16ps`, which multiplies a pair of weights per lane with a pair of activations.
//!
//! The instruction adds the product of the second elements first, then that of the first ones, each rounded once. So
//! the first element of a pair is the successor of the second one in its half of a run. It takes subnormal numbers for
//! 0, but neither weights nor activations are smaller than [`SMALLEST_BF16`], so that all sums are multiples of 2^-115
//! and none is subnormal.

use std::arch::x86_64::*;

use super::x86::prefetch;
use super::{FloatPanel, TileOutput};
use crate::PANEL;
use trunkline_kernels_core::pack::float::{Bf16, FloatFormat, RUN, SMALLEST_BF16};
use trunkline_kernels_core::pack::{TILE, Tile};

/// Elements of each half of a run.
const HALF: usize = RUN / 2;
/// Bytes of a vector of weights: elements `v` and `v + 16` of a run, for 16 output features.
const VECTOR: usize = TILE * Bf16::LANE_BYTES;
const SECOND: i32 = 0xffff_0000u32.cast_signed();

/// Rounds a row to pairs of bfloat16, as [`crate::round_row`] does: for AMX (`FOR_TILES`) the pairs of the
/// packed layout, otherwise adjacent elements, the earlier one second.
///
/// # Safety
/// The CPU must have AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn round_row<const FOR_TILES: bool>(x: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(RUN));
    let pairs = out.as_mut_ptr().cast::<i32>();
    for run in (0..x.len()).step_by(RUN) {
        // SAFETY: the run lies within `x`, and its pairs within the first half of `out`.
        unsafe {
            let (first, second) = (rounded(x.as_ptr().add(run)), rounded(x.as_ptr().add(run + HALF)));
            let pairs = pairs.add(run / 2);
            if FOR_TILES {
                let both = _mm512_or_si512(_mm512_srli_epi32::<16>(first), second);
                _mm512_storeu_si512(pairs.cast(), both);
            } else {
                let adjacent =
                    |half| _mm256_rol_epi32::<16>(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(half)));
                _mm256_storeu_si256(pairs.cast(), adjacent(first));
                _mm256_storeu_si256(pairs.add(HALF / 2).cast(), adjacent(second));
            }
        }
    }
}

/// Loads 16 elements and rounds them to bfloat16 in the upper half of each lane.
///
/// # Safety
/// `x` must point to 16 elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn rounded(x: *const f32) -> __m512i {
    // SAFETY: the caller guarantees the elements.
    let x = unsafe { _mm512_loadu_ps(x) };
    let shifted = _mm512_mul_ps(x, _mm512_set1_ps(65_537.0));
    let near = _mm512_sub_ps(shifted, _mm512_sub_ps(shifted, x));
    let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(near), _mm512_set1_ps(SMALLEST_BF16));
    _mm512_and_si512(_mm512_castps_si512(_mm512_maskz_mov_ps(!is_small, near)), _mm512_set1_epi32(SECOND))
}

/// Multiplies a panel of pairs with one tile of weights.
///
/// # Safety
/// The conditions are those of [`super`], and the CPU must have the dot products.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) unsafe fn linear_bf16(tile: &Tile<'_>, panel: &FloatPanel<'_>, out: &TileOutput<'_>) {
    assert!(panel.in_features.is_multiple_of(RUN));
    assert!(tile.quants.len() >= panel.in_features / 2 * VECTOR);
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
        for run in (0..panel.in_features).step_by(RUN) {
            let (mut first, mut second) = ([_mm512_setzero_ps(); R], [_mm512_setzero_ps(); R]);
            for pair in 0..HALF / 2 {
                let vectors = tile.quants.as_ptr().add((run / 2 + 2 * pair) * VECTOR);
                prefetch(vectors, 0);
                prefetch(vectors, VECTOR);
                let (earlier, later) =
                    (_mm512_loadu_si512(vectors.cast()), _mm512_loadu_si512(vectors.add(VECTOR).cast()));
                let mask = _mm512_set1_epi32(SECOND);
                let of_first =
                    _mm512_or_si512(_mm512_slli_epi32::<16>(earlier), _mm512_andnot_si512(mask, later));
                let of_second =
                    _mm512_or_si512(_mm512_and_si512(earlier, mask), _mm512_srli_epi32::<16>(later));
                for row in 0..R {
                    let x = x.add(row * panel.row_stride + run / 2 + pair);
                    first[row] = _mm512_dpbf16_ps(first[row], bits(of_first), bits(_mm512_set1_epi32(*x)));
                    let x = _mm512_set1_epi32(*x.add(HALF / 2));
                    second[row] = _mm512_dpbf16_ps(second[row], bits(of_second), bits(x));
                }
            }
            for (sum, (first, second)) in sums.iter_mut().zip(first.into_iter().zip(second)) {
                *sum = _mm512_add_ps(*sum, _mm512_add_ps(first, second));
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

#[inline(always)]
fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(vector) }
}
