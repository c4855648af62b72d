//! Kernels for AVX-512 F, BW, VL, DQ and VNNI.
//!
//! The 16 output features of a tile are the 16 lanes of a register. `vpdpbusd` multiplies 4 unsigned weights per lane
//! with 4 signed activations, which are broadcast from memory. 8 rows keep 8 integer and 8 float sums in registers, so
//! each weight is loaded and unpacked once for 8 rows.
//!
//! Products of many rows are limited by the multiplication pipes (Zen 4: one 512-bit `vpdpbusd`, FMA or `vmulps` per
//! cycle). For 16 output features, a group of 32 and one row, there are 8 low quads, 1 high quad, 1 FMA, 1 FMA for
//! minima, and 1 product of scales unless it comes from a table. Unpacking, shifts, conversions and additions use other
//! pipes.

mod scale_table;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use self::scale_table::{Levels, TABLE, TABLE_GROUPS, TABLE_ROWS, fill_table, looked_up};
pub(crate) use super::avx512_quantize::quantize_rows;
use super::x86::{prefetch, prefetch_far};
use super::{TileOutput, run_vectors};
use crate::PANEL;
use crate::quantized::{GROUP_QUADS, QUANT_GROUP, QuantGroup, QuantizedBlock};
use trunkline_kernels_core::pack::codes::{has_ready_quants, scale_bytes};
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, TILE, Tile};

const VECTOR: usize = 64;

/// Consecutive groups of activations, with the table of their weights' scales, which is empty if it is not used.
struct Span<'a> {
    groups: Range<usize>,
    table: &'a [Levels],
    /// If set, sums continue from those in the output instead of from their start values.
    continues: bool,
}

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The conditions are those of [`super`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    let num_x_groups = in_features / QUANT_GROUP;
    if block.num_rows() < TABLE_ROWS {
        let span = Span { groups: 0..num_x_groups, table: &[], continues: out.continues };
        // SAFETY: the conditions are the same.
        return unsafe { int_panels::<F>(tile, &span, block, out) };
    }
    TABLE.with_borrow_mut(|table| {
        for first in (0..num_x_groups).step_by(TABLE_GROUPS) {
            let groups = first..num_x_groups.min(first + TABLE_GROUPS);
            let is_last = groups.end == num_x_groups;
            let table = &mut table[..groups.len() * (QUANT_GROUP / F::GROUP)];
            let first_scale = first * (QUANT_GROUP / F::GROUP) * scale_vector_bytes::<F>();
            let out = TileOutput { bias: out.bias.filter(|_| is_last), ..*out };
            // SAFETY: as above.
            unsafe {
                let is_usable =
                    fill_table::<F>(tile.scales.as_ptr().add(first_scale), lane_mask(out.num_lanes), table);
                let span = Span {
                    groups,
                    table: if is_usable { table } else { &[] },
                    continues: out.continues || first > 0,
                };
                int_panels::<F>(tile, &span, block, &out);
            }
        }
    });
}

/// Multiplies all rows of a block over a span of groups.
///
/// # Safety
/// The conditions are those of [`linear_int`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn int_panels<F: IntFormat>(
    tile: &Tile<'_>,
    span: &Span<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    for first_row in (0..block.num_rows()).step_by(PANEL) {
        let rows = PANEL.min(block.num_rows() - first_row);
        let out = out.row(first_row);
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            match rows {
                1 => int_panel::<F, 1, false>(tile, span, block, first_row, &out),
                2 => int_panel::<F, 2, false>(tile, span, block, first_row, &out),
                3 => int_panel::<F, 3, false>(tile, span, block, first_row, &out),
                4 => int_panel::<F, 4, false>(tile, span, block, first_row, &out),
                5 => int_panel::<F, 5, false>(tile, span, block, first_row, &out),
                6 => int_panel::<F, 6, false>(tile, span, block, first_row, &out),
                7 => int_panel::<F, 7, false>(tile, span, block, first_row, &out),
                _ if span.table.is_empty() => {
                    int_panel::<F, PANEL, false>(tile, span, block, first_row, &out);
                }
                _ => int_panel::<F, PANEL, true>(tile, span, block, first_row, &out),
            }
        }
    }
}

/// # Safety
/// The conditions are those of [`int_panels`]. The block must have `R` rows from `first_row` on, and the span a table
/// if `HAS_TABLE`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn int_panel<F: IntFormat, const R: usize, const HAS_TABLE: bool>(
    tile: &Tile<'_>,
    span: &Span<'_>,
    block: &QuantizedBlock<'_>,
    first_row: usize,
    out: &TileOutput<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let (first, parts) = (span.groups.start, QUANT_GROUP / F::GROUP);
    // SAFETY: every pointer advances by one group per iteration, within the checked lengths.
    unsafe {
        let mut quants = tile.quants.as_ptr().add(first * x_group_bytes::<F>());
        let mut scales = tile.scales.as_ptr().add(first * parts * scale_vector_bytes::<F>());
        let mut mins = tile.mins.as_ptr().wrapping_add(first * parts * scale_vector_bytes::<F>());
        let mut levels = span.table.as_ptr();
        let groups = block.groups.as_ptr().add(first_row * block.row_stride);
        for (row, acc) in acc.iter_mut().enumerate() {
            *acc = if span.continues {
                _mm512_maskz_loadu_ps(lane_mask(out.num_lanes), out.values.add(row * out.row_stride))
            } else {
                _mm512_set1_ps(*block.starts.as_ptr().add(first_row + row))
            };
        }
        for x_group in span.groups.clone() {
            let x: [*const QuantGroup; R] =
                std::array::from_fn(|row| groups.add(row * block.row_stride + x_group));
            let high = high_dots::<F, R>(quants, &x);
            for part in 0..parts {
                let dot = dots::<F, R>(quants, &x, &high, part);
                if HAS_TABLE {
                    for row in 0..R {
                        let scale = looked_up(levels, &*x[row]);
                        acc[row] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[row]), acc[row]);
                    }
                    levels = levels.add(1);
                } else {
                    let scale = load_scales::<F>(scales);
                    for row in 0..R {
                        let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*x[row]).scale));
                        acc[row] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[row]), acc[row]);
                    }
                    scales = scales.add(scale_vector_bytes::<F>());
                }
                if F::HAS_MIN {
                    let min = load_scales::<F>(mins);
                    for (acc, x) in acc.iter_mut().zip(x) {
                        *acc = _mm512_fmadd_ps(min, _mm512_set1_ps((*x).part_sum::<F>(part)), *acc);
                    }
                    mins = mins.add(scale_vector_bytes::<F>());
                }
            }
            quants = quants.add(x_group_bytes::<F>());
        }
        store(&acc, out);
    }
}

/// Bytes of the weights for one group of activations.
const fn x_group_bytes<F: IntFormat>() -> usize {
    run_vectors::<F>() * VECTOR
}

/// Computes 256 times the dot products of the high bytes of each row's top quad and their weights.
///
/// # Safety
/// `quants` must point to the weights for the groups `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn high_dots<F: IntFormat, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
) -> [__m512i; R] {
    let mut dots = [_mm512_setzero_si512(); R];
    for (dot, x) in dots.iter_mut().zip(x) {
        // SAFETY: the caller guarantees the weights, and the mask keeps the offset within them.
        unsafe {
            let offset = usize::from((**x).top_offset) & (x_group_bytes::<F>() - VECTOR);
            let weights = _mm512_loadu_si512(quants.add(offset).cast());
            let high = broadcast_quad((**x).high.as_ptr());
            *dot = if F::NIBBLES {
                let mask = _mm512_set1_epi32((**x).nibble_mask.cast_signed());
                let dot = _mm512_dpbusd_epi32(*dot, _mm512_and_si512(weights, mask), high);
                shift_left(dot, &(**x).nibble_shift)
            } else {
                _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(*dot, weights, high))
            };
        }
    }
    keep_order();
    dots
}

/// Shifts `lanes` left by `count`, which is below 32.
///
/// The compiler would use the shift by a scalar, which needs a second operation on the multiplication pipes (Zen 4, a
/// panel of 8 rows: 12.5 cycles per row and group instead of 11.6).
#[inline]
#[target_feature(enable = "avx512f")]
fn shift_left(lanes: __m512i, count: &u32) -> __m512i {
    let shifted;
    // SAFETY: reads the 4 bytes of `count`.
    unsafe {
        asm!(
            "vpsllvd {shifted}, {lanes}, dword ptr [{count}]{{1to16}}",
            shifted = lateout(zmm_reg) shifted,
            lanes = in(zmm_reg) lanes,
            count = in(reg) count,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    shifted
}

/// Keeps the compiler from reordering operations across this point. It would otherwise compute row by row, but rows
/// must alternate, because each dot product waits for the previous one of its row.
#[inline(always)]
fn keep_order() {
    compiler_fence(Ordering::SeqCst);
}

/// Computes the dot products of weights, minus the zero point, and quants, for the weights' group `part` within the
/// groups `x`. `high` is the result of [`high_dots`].
///
/// # Safety
/// The conditions are those of [`high_dots`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<F: IntFormat, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    high: &[__m512i; R],
    part: usize,
) -> [__m512i; R] {
    let mut dots = *high;
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        for (dot, x) in dots.iter_mut().zip(x) {
            if F::GROUP < QUANT_GROUP {
                let is_here = (**x).top_quad() / (F::GROUP / QUAD) == part;
                *dot = _mm512_maskz_mov_epi32(if is_here { u16::MAX } else { 0 }, *dot);
            }
            if F::ZERO_POINT != 0 {
                let half = _mm512_set1_epi32((**x).negated_half_sum);
                let whole = _mm512_set1_epi32((**x).negated_sum);
                let sum = match (F::GROUP < QUANT_GROUP, part) {
                    (false, _) => whole,
                    (true, 0) => half,
                    (true, _) => _mm512_sub_epi32(whole, half),
                };
                *dot = _mm512_add_epi32(*dot, shift_by_zero_point::<F>(sum));
            }
        }
        for quad in part * F::GROUP / QUAD..(part + 1) * F::GROUP / QUAD {
            let weights = load_quad::<F, R>(quants, quad);
            for (dot, x) in dots.iter_mut().zip(x) {
                let low = broadcast_quad((**x).low.as_ptr().add(quad * QUAD));
                *dot = _mm512_dpbusd_epi32(*dot, weights, low);
            }
            keep_order();
        }
    }
    dots
}

/// Loads quad `quad` of the weights for a group of activations of `R` rows, 4 unsigned weights per lane.
///
/// # Safety
/// `quants` must point to these weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_quad<F: IntFormat, const R: usize>(quants: *const u8, quad: usize) -> __m512i {
    let vector = if F::NIBBLES { quad % (GROUP_QUADS / 2) } else { quad };
    // A product of one row, or of a whole panel with nibbles, waits for weights, so they are prefetched to the
    // first-level cache. Otherwise rows, weights and prefetched weights do not fit in it, and prefetching to the
    // second-level cache is faster. Tokens/s per core with prefetch to the first and the second level (Zen 4): Q8_0
    // with 4 rows 500 and 680, with 8 rows 810 and 1,050; Q4_1 with 2 rows 550 and 640, but with 8 rows 1,165 and
    // 1,115.
    match (has_ready_quants::<F>() && vector == quad, R == 1 || (F::NIBBLES && R == PANEL)) {
        (true, true) => prefetch(quants, vector * VECTOR),
        (true, false) => prefetch_far(quants, vector * VECTOR),
        (false, _) => {}
    }
    // SAFETY: the caller guarantees the conditions.
    let bytes = unsafe { _mm512_loadu_si512(quants.add(vector * VECTOR).cast()) };
    match (F::NIBBLES, vector == quad) {
        (false, _) => bytes,
        (true, true) => _mm512_and_si512(bytes, _mm512_set1_epi8(15)),
        (true, false) => _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)),
    }
}

/// Size of the 16 scales (or minima) of a group in bytes.
const fn scale_vector_bytes<F: IntFormat>() -> usize {
    TILE * scale_bytes::<F>()
}

/// # Safety
/// `pointer` must point to `scale_vector_bytes` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        if F::HALF_SCALES {
            _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast()))
        } else {
            _mm512_loadu_ps(pointer.cast())
        }
    }
}

/// # Safety
/// `pointer` must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast_quad(pointer: *const i8) -> __m512i {
    // SAFETY: the caller guarantees the conditions.
    _mm512_set1_epi32(unsafe { pointer.cast::<i32>().read_unaligned() })
}

/// Multiplies `sum` by the zero point, a power of two.
#[inline]
#[target_feature(enable = "avx512f")]
fn shift_by_zero_point<F: IntFormat>(sum: __m512i) -> __m512i {
    match F::ZERO_POINT {
        8 => _mm512_slli_epi32::<3>(sum),
        16 => _mm512_slli_epi32::<4>(sum),
        32 => _mm512_slli_epi32::<5>(sum),
        64 => _mm512_slli_epi32::<6>(sum),
        128 => _mm512_slli_epi32::<7>(sum),
        zero_point => _mm512_mullo_epi32(sum, _mm512_set1_epi32(i32::from(zero_point))),
    }
}

/// The mask of the first `num_lanes` of 16 lanes.
fn lane_mask(num_lanes: usize) -> __mmask16 {
    u16::MAX >> (TILE - num_lanes)
}

/// Adds the bias and stores the sums of rows.
///
/// # Safety
/// `out` must be writable for `R` rows and its lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn store<const R: usize>(acc: &[__m512; R], out: &TileOutput<'_>) {
    let lanes = lane_mask(out.num_lanes);
    // SAFETY: the mask limits accesses to the lanes in use, in the output and in the bias.
    unsafe {
        let bias = out.bias.map(|bias| _mm512_maskz_loadu_ps(lanes, bias.as_ptr()));
        for (row, acc) in acc.iter().enumerate() {
            let value = bias.map_or(*acc, |bias| _mm512_add_ps(*acc, bias));
            _mm512_mask_storeu_ps(out.values.add(row * out.row_stride), lanes, value);
        }
    }
}
