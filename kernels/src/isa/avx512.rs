//! Kernels for AVX-512 F, BW, VL, DQ and VNNI.
//!
//! A tile's 16 output features are the 16 lanes of a register. `vpdpbusd` takes 4 unsigned weights a lane times 4
//! signed activations, which are broadcast from memory; 8 rows keep 8 integer and 8 float sums in registers, so each
//! weight is loaded and unpacked once for 8 rows. What bounds products of many rows is the pipe that multiplies (Zen 4:
//! one instruction of 512 bits a cycle, be it `vpdpbusd`, FMA or `vmulps`). Per 16 output features, group of 32 and row
//! it takes 8 low quads, 1 high quad, 1 FMA, 1 FMA for minima, and 1 product of scales unless those come from a table;
//! unpacking, shifts, conversions and additions have pipes of their own.

mod scale_table;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use self::scale_table::{Levels, TABLE, TABLE_GROUPS, TABLE_ROWS, fill_table, looked_up};
pub(crate) use crate::isa::avx512_quantize::quantize_rows;
use crate::isa::x86::{prefetch, prefetch_far};
use crate::linear::{FLOAT_RUN, PANEL, QUAD, TILE};
use crate::linear::{FloatPanel, TileOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{GROUP_QUADS, QUANT_GROUP, QuantGroup, QuantizedBlock};

/// Bytes of a register.
const VECTOR: usize = 64;

/// Calls `$function::<F, R>`, or with a further constant, with the constant `R` of 1 to 8 that equals `$rows`.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident $(, $constant:literal)?>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1 $(, $constant)?>($($argument),*),
            2 => $function::<$format, 2 $(, $constant)?>($($argument),*),
            3 => $function::<$format, 3 $(, $constant)?>($($argument),*),
            4 => $function::<$format, 4 $(, $constant)?>($($argument),*),
            5 => $function::<$format, 5 $(, $constant)?>($($argument),*),
            6 => $function::<$format, 6 $(, $constant)?>($($argument),*),
            7 => $function::<$format, 7 $(, $constant)?>($($argument),*),
            8 => $function::<$format, 8 $(, $constant)?>($($argument),*),
            rows => unreachable!("a panel of {rows} rows"),
        }
    };
}

/// Neighbouring groups of activations, and the table of the weights' scales that they meet, or nothing.
struct Span<'a> {
    groups: Range<usize>,
    table: &'a [Levels],
    /// Sums go on from those in the output, instead of from their start.
    continues: bool,
}

/// Rows times one tile of integer weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the block's rows and `num_lanes` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * scale_vector_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * scale_vector_bytes::<F>());
    block.check(in_features);
    let num_x_groups = in_features / QUANT_GROUP;
    if block.num_rows() < TABLE_ROWS {
        let span = Span { groups: 0..num_x_groups, table: &[], continues: false };
        // SAFETY: lengths are checked; the rest by the contract.
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
                let span = Span { groups, table: if is_usable { table } else { &[] }, continues: first > 0 };
                int_panels::<F>(tile, &span, block, &out);
            }
        }
    });
}

/// All rows of a block over a span of groups.
///
/// # Safety
/// As [`linear_int`], which has checked the lengths.
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
        // SAFETY: by the contract.
        unsafe {
            if rows == PANEL && !span.table.is_empty() {
                int_panel::<F, PANEL, true>(tile, span, block, first_row, &out);
            } else {
                dispatch_rows!(rows, int_panel::<F, false>(tile, span, block, first_row, &out));
            }
        }
    }
}

/// # Safety
/// As [`int_panels`]; the block has `R` rows from `first_row` on; there is a table if `HAS_TABLE`.
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
    // SAFETY: every pointer advances by one group a turn, within the lengths checked before.
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
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(mins);
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = _mm512_fmadd_ps(min, _mm512_set1_ps((*x).sum), *acc);
                }
                mins = mins.add(scale_vector_bytes::<F>());
            }
            quants = quants.add(x_group_bytes::<F>());
        }
        store(&acc, out);
    }
}

/// Bytes of the weights that meet one group of activations.
const fn x_group_bytes<F: IntFormat>() -> usize {
    group_vectors::<F>() * VECTOR * (QUANT_GROUP / F::GROUP)
}

/// The high bytes of each row's top quad times their weights, times 256.
///
/// # Safety
/// `quants` points to the weights that meet the groups `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn high_dots<F: IntFormat, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
) -> [__m512i; R] {
    let mut dots = [_mm512_setzero_si512(); R];
    for (dot, x) in dots.iter_mut().zip(x) {
        // SAFETY: by the contract; the offset is kept within a group's vectors whatever it is.
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

/// `lanes` shifted left by `count`, below 32.
///
/// The compiler would make the shift by one number for all lanes of it, which takes a second operation on the pipes
/// that multiply (Zen 4, a panel of 8 rows: 12.5 cycles a row and group instead of 11.6).
#[inline]
#[target_feature(enable = "avx512f")]
fn shift_left(lanes: __m512i, count: &u32) -> __m512i {
    let shifted;
    // SAFETY: reads 4 bytes of `count`.
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

/// Keeps the compiler from moving what is after this before what is before it, as it would to compute row by row: rows
/// must take turns, since each dot waits for its row's last one.
#[inline(always)]
fn keep_order() {
    compiler_fence(Ordering::SeqCst);
}

/// Weights, less the zero point, times quants: of the weights' group `part` among those that meet the groups `x`.
///
/// # Safety
/// As [`high_dots`], whose result is `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<F: IntFormat, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    high: &[__m512i; R],
    part: usize,
) -> [__m512i; R] {
    let mut dots = *high;
    // SAFETY: by the contract.
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

/// Quad `quad` of the weights that meet a group of activations: 4 unsigned weights a lane. They are for `R` rows.
///
/// # Safety
/// `quants` points to those weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_quad<F: IntFormat, const R: usize>(quants: *const u8, quad: usize) -> __m512i {
    let vector = if F::NIBBLES { quad % (GROUP_QUADS / 2) } else { quad };
    // One row reads each weight once and waits for it; so do nibbles for a whole panel. Otherwise rows, weights and the
    // weights to come are more than the first-level cache holds, or evict each other (Zen 4, a model of Q8_0: 4 rows
    // 500 and 680 tokens/s a core, 8 rows 810 and 1,050; of Q4_1: 2 rows 550 and 640, but 8 rows 1,165 and 1,115).
    match (vector == quad, R == 1 || (F::NIBBLES && R == PANEL)) {
        (true, true) => prefetch(quants, vector * VECTOR),
        (true, false) => prefetch_far(quants, vector * VECTOR),
        (false, _) => {}
    }
    // SAFETY: by the contract.
    let bytes = unsafe { _mm512_loadu_si512(quants.add(vector * VECTOR).cast()) };
    match (F::NIBBLES, vector == quad) {
        (false, _) => bytes,
        (true, true) => _mm512_and_si512(bytes, _mm512_set1_epi8(15)),
        (true, false) => _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)),
    }
}

/// One panel times one tile of float weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    assert!(tile.quants.len() >= panel.in_features * TILE * F::ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    // SAFETY: lengths are checked; the rest by the contract.
    unsafe { dispatch_rows!(panel.num_rows, float_panel::<F>(tile, panel, out)) }
}

/// # Safety
/// As [`linear_float`], which has checked the lengths; the panel has `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn float_panel<F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let (weights, x) = (tile.quants.as_ptr(), panel.values.as_ptr());
    // SAFETY: elements and rows are within the lengths checked before.
    unsafe {
        for run_start in (0..panel.in_features).step_by(FLOAT_RUN) {
            let mut part = [_mm512_setzero_ps(); R];
            for element in run_start..(run_start + FLOAT_RUN).min(panel.in_features) {
                prefetch(weights, element * TILE * F::ELEMENT_BYTES);
                let weight = load_weights::<F>(weights.add(element * TILE * F::ELEMENT_BYTES));
                for (row, part) in part.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.add(row * panel.row_stride + element));
                    *part = _mm512_fmadd_ps(weight, x, *part);
                }
            }
            for (acc, part) in acc.iter_mut().zip(part) {
                *acc = _mm512_add_ps(*acc, part);
            }
        }
        store(&acc, out);
    }
}

/// Bytes of the 16 scales (or minima) of a group.
const fn scale_vector_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { TILE * 2 } else { TILE * 4 }
}

/// # Safety
/// `pointer` has `scale_vector_bytes` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        if F::HALF_SCALES {
            _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast()))
        } else {
            _mm512_loadu_ps(pointer.cast())
        }
    }
}

/// 16 weights as f32, exactly.
///
/// # Safety
/// `pointer` has 16 elements.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn load_weights<F: FloatFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        match F::FORMAT {
            Format::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast())),
            Format::BF16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            _ => _mm512_loadu_ps(pointer.cast()),
        }
    }
}

/// # Safety
/// `pointer` has 4 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast_quad(pointer: *const i8) -> __m512i {
    // SAFETY: by the contract.
    _mm512_set1_epi32(unsafe { pointer.cast::<i32>().read_unaligned() })
}

/// `sum` times the zero point, a power of two.
#[inline]
#[target_feature(enable = "avx512f")]
fn shift_by_zero_point<F: IntFormat>(sum: __m512i) -> __m512i {
    match F::ZERO_POINT {
        8 => _mm512_slli_epi32::<3>(sum),
        32 => _mm512_slli_epi32::<5>(sum),
        128 => _mm512_slli_epi32::<7>(sum),
        zero_point => _mm512_mullo_epi32(sum, _mm512_set1_epi32(i32::from(zero_point))),
    }
}

/// The first `num_lanes` of 16.
fn lane_mask(num_lanes: usize) -> __mmask16 {
    u16::MAX >> (TILE - num_lanes)
}

/// Adds the bias and writes rows' sums.
///
/// # Safety
/// `out` may be written for `R` rows and its lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn store<const R: usize>(acc: &[__m512; R], out: &TileOutput<'_>) {
    let lanes = lane_mask(out.num_lanes);
    // SAFETY: masked to the lanes that exist, in the output and in the bias.
    unsafe {
        let bias = out.bias.map(|bias| _mm512_maskz_loadu_ps(lanes, bias.as_ptr()));
        for (row, acc) in acc.iter().enumerate() {
            let value = bias.map_or(*acc, |bias| _mm512_add_ps(*acc, bias));
            _mm512_mask_storeu_ps(out.values.add(row * out.row_stride), lanes, value);
        }
    }
}
