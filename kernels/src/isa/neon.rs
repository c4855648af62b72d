//! Kernels for AArch64 NEON with dot products (`sdot`).
//!
//! The 16 output features of a tile are computed 8 at a time, in two registers. The sums of up to 4 rows stay in
//! registers. Weights of at most 6 bits fit in signed bytes; the zero point of 128 of 8-bit weights is subtracted when
//! they are loaded.
//!
//! `sdot` and half-precision conversions are inline assembly, because their intrinsics need a newer compiler than this
//! crate does.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, TileOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{GROUP_QUADS, GroupCode, QUANT_GROUP, QuantGroup, QuantizeJob, QuantizedBlock};

/// Number of lanes per register.
const LANES: usize = 4;
/// Number of registers per part of a tile.
pub(super) const REGISTERS: usize = 2;
/// Number of output features per part of a tile.
const PART: usize = REGISTERS * LANES;
const VECTOR: usize = TILE * QUAD;
/// The most rows whose sums are kept in registers.
const MAX_ROWS: usize = 4;
/// Prefetch distance of weights, the same as measured on x86-64.
const PREFETCH_BYTES: usize = 8 << 10;

/// Calls `$function::<F, R>`, optionally with a further constant, with the constant `R` equal to `$rows`, 1 to 4.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident $(, $constant:ident)?>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1 $(, $constant)?>($($argument),*),
            2 => $function::<$format, 2 $(, $constant)?>($($argument),*),
            3 => $function::<$format, 3 $(, $constant)?>($($argument),*),
            4 => $function::<$format, 4 $(, $constant)?>($($argument),*),
            rows => unreachable!("a part of {rows} rows"),
        }
    };
}

/// A part of a product: up to [`MAX_ROWS`] rows and half a tile.
#[derive(Clone, Copy)]
struct Part {
    first_row: usize,
    /// First lane in the tile, 0 or 8.
    first_lane: usize,
}

/// Calls `kernel(part, rows)` for every part with a lane in use.
fn for_each_part(num_rows: usize, num_lanes: usize, mut kernel: impl FnMut(Part, usize)) {
    for first_lane in (0..num_lanes).step_by(PART) {
        for first_row in (0..num_rows).step_by(MAX_ROWS) {
            kernel(Part { first_row, first_lane }, MAX_ROWS.min(num_rows - first_row));
        }
    }
}

/// Adds the four products of each lane's signed bytes to `sums`, exactly.
///
/// # Safety
/// The CPU must have dot products.
#[inline(always)]
unsafe fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the feature, and only registers are used.
    unsafe {
        asm!(
            ".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Widens four half-precision numbers to f32, exactly.
#[inline(always)]
fn widen(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: every AArch64 CPU has NEON, and only registers are used.
    unsafe {
        asm!(
            "fcvtl {0:v}.4s, {1:v}.4h",
            lateout(vreg) wide, in(vreg) half,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}

/// Prefetches the cache line [`PREFETCH_BYTES`] after `pointer`, which may be beyond the end of the weights.
#[inline(always)]
fn prefetch(pointer: *const u8) {
    let pointer = pointer.wrapping_add(PREFETCH_BYTES);
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) pointer, options(readonly, nostack, preserves_flags)) }
}

/// Quantises rows; see [`crate::quantize`].
///
/// # Safety
/// There are no conditions, because every AArch64 CPU has NEON. The function is `unsafe` only because the kernels of
/// other sets are.
pub(crate) unsafe fn quantize_rows(job: &QuantizeJob<'_>) {
    job.each_row(quantize_row);
}

/// Quantises one row. Returns false if it is not finite.
fn quantize_row(x: &[f32], groups: &mut [QuantGroup]) -> bool {
    let mut is_finite = true;
    for (x, group) in x.chunks_exact(QUANT_GROUP).zip(groups) {
        // Each register holds one quad.
        // SAFETY: a group has 32 elements.
        let x: [float32x4_t; GROUP_QUADS] =
            std::array::from_fn(|quad| unsafe { vld1q_f32(x.as_ptr().add(quad * QUAD)) });
        // SAFETY: every AArch64 CPU has NEON.
        let mut quads = x.map(|x| unsafe { vmaxvq_s32(vreinterpretq_s32_f32(vabsq_f32(x))) });
        let top = quads.into_iter().fold(0, i32::max);
        let top_quad = quads.iter().position(|&quad| quad == top).unwrap_or(0);
        quads[top_quad] = 0;
        let code = GroupCode::new(top, quads.into_iter().fold(0, i32::max));
        is_finite &= code.is_finite;
        // SAFETY: every AArch64 CPU has NEON, and a group has 32 low bytes and 4 high bytes.
        unsafe {
            let quants = x.map(|x| {
                let steps = vcvtnq_s32_f32(vmulq_n_f32(x, code.reciprocal));
                if code.is_finite { steps } else { vdupq_n_s32(0) }
            });
            // Narrow each lane to its low byte.
            let words: [int16x4_t; GROUP_QUADS] = quants.map(|quants| vmovn_s32(quants));
            for (at, words) in words.chunks_exact(2).enumerate() {
                vst1_s8(group.low.as_mut_ptr().add(8 * at), vmovn_s16(vcombine_s16(words[0], words[1])));
            }
            let mut high = [0; QUAD];
            vst1q_s32(high.as_mut_ptr(), vshrq_n_s32::<8>(vaddq_s32(quants[top_quad], vdupq_n_s32(128))));
            // |quant| <= 127 + 256 * 127, so the high byte fits.
            group.high = high.map(|high| high as i8);
            let sum = |quants: &[int32x4_t]| quants.iter().map(|quants| vaddvq_s32(*quants)).sum::<i32>();
            let half_sum = sum(&quants[..GROUP_QUADS / 2]);
            // The top quad of a group that is not finite does not matter, but must be the same on every set.
            let top_quad = if code.is_finite { top_quad as u32 } else { 0 };
            group.put_numbers(code, top_quad, half_sum + sum(&quants[GROUP_QUADS / 2..]), half_sum);
        }
    }
    is_finite
}

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The CPU must have dot products, and `out` must be writable for the block's rows and `num_lanes` lanes.
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    // SAFETY: the conditions are the same.
    unsafe { linear_int_with::<F, false>(in_features, tile, block, out) }
}

/// Like [`linear_int`], with matrix products of bytes if `I8MM`.
///
/// # Safety
/// The conditions are those of [`linear_int`]; the CPU must have I8MM if `I8MM`.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn linear_int_with<F: IntFormat, const I8MM: bool>(
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
    for_each_part(block.num_rows(), out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the caller guarantees the rest.
        unsafe { dispatch_rows!(rows, int_part::<F, I8MM>(in_features, tile, block, out, part)) }
    });
}

/// # Safety
/// The conditions are those of [`linear_int_with`], which has checked the lengths. The part must have `R` rows.
#[target_feature(enable = "neon,dotprod")]
unsafe fn int_part<F: IntFormat, const R: usize, const I8MM: bool>(
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
        let mut acc: [[float32x4_t; REGISTERS]; R] = std::array::from_fn(|row| {
            [vdupq_n_f32(*block.starts.as_ptr().add(part.first_row + row)); REGISTERS]
        });
        for x_group in 0..in_features / QUANT_GROUP {
            let x: [*const QuantGroup; R] =
                std::array::from_fn(|row| groups.add(row * block.row_stride + x_group));
            let vectors = x_group * parts * group_vectors::<F>();
            let quants = tile.quants.as_ptr().add(vectors * VECTOR + part.first_lane * QUAD);
            for w_part in 0..parts {
                let dots = dots::<F, R, I8MM>(quants, &x, w_part);
                let at = ((x_group * parts + w_part) * TILE + part.first_lane) * scale_bytes::<F>();
                let scales = load_scales::<F>(tile.scales.as_ptr().add(at));
                for row in 0..R {
                    let x_scale = (*x[row]).scale;
                    for (at, acc) in acc[row].iter_mut().enumerate() {
                        let scale = vmulq_n_f32(scales[at], x_scale);
                        *acc = vfmaq_f32(*acc, scale, vcvtq_f32_s32(dots[row][at]));
                    }
                }
            }
            if F::HAS_MIN {
                let at = (x_group * TILE + part.first_lane) * scale_bytes::<F>();
                let mins = load_scales::<F>(tile.mins.as_ptr().add(at));
                for (acc, x) in acc.iter_mut().zip(x) {
                    let sum = vdupq_n_f32((*x).sum);
                    acc.iter_mut().zip(mins).for_each(|(acc, min)| *acc = vfmaq_f32(*acc, min, sum));
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
/// `quants` must point to the first of 8 lanes of the weights for `x`, and the CPU must have dot products.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dots<F: IntFormat, const R: usize, const I8MM: bool>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    part: usize,
) -> [[int32x4_t; REGISTERS]; R] {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        let mut sums: [[int32x4_t; REGISTERS]; R] = std::array::from_fn(|row| {
            let group = &*x[row];
            let negated_sum = match (F::GROUP < QUANT_GROUP, part) {
                (false, _) => group.negated_sum,
                (true, 0) => group.negated_half_sum,
                (true, _) => group.negated_sum - group.negated_half_sum,
            };
            // This is 0 without a zero point, or if it is subtracted when weights are loaded.
            let zero_point = if takes_off_zero_point::<F>() { 0 } else { i32::from(F::ZERO_POINT) };
            [vdupq_n_s32(zero_point * negated_sum); REGISTERS]
        });
        let quads = part * F::GROUP / QUAD..(part + 1) * F::GROUP / QUAD;
        if I8MM && R > 1 {
            super::neon_i8mm::add_low::<F, R>(&mut sums, quants, x, quads);
        } else {
            for quad in quads {
                let weights = load_quad::<F>(quants, quad);
                for (sums, x) in sums.iter_mut().zip(x) {
                    let x = broadcast_quad((**x).low.as_ptr().add(quad * QUAD));
                    sums.iter_mut().zip(weights).for_each(|(sum, weights)| *sum = dot(*sum, weights, x));
                }
            }
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            let (group, quad) = (&**x, (**x).top_quad());
            if quad * QUAD / F::GROUP == part {
                let x = broadcast_quad(group.high.as_ptr());
                for (sum, weights) in sums.iter_mut().zip(load_quad::<F>(quants, quad)) {
                    *sum = vaddq_s32(*sum, vshlq_n_s32::<8>(dot(vdupq_n_s32(0), weights, x)));
                }
            }
        }
        sums
    }
}

/// Returns true if the zero point is subtracted when weights are loaded, because they do not fit in signed bytes.
const fn takes_off_zero_point<F: IntFormat>() -> bool {
    F::ZERO_POINT == 128
}

/// Loads 8 lanes of quad `quad` of the weights for a group of activations, 4 weights per lane as signed bytes.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of these weights.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn load_quad<F: IntFormat>(quants: *const u8, quad: usize) -> [int8x16_t; REGISTERS] {
    let num_vectors = if F::NIBBLES { GROUP_QUADS / 2 } else { GROUP_QUADS };
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        let vector = quants.add(quad % num_vectors * VECTOR);
        prefetch(vector);
        std::array::from_fn(|at| {
            let bytes = vld1q_u8(vector.add(at * LANES * QUAD));
            vreinterpretq_s8_u8(match (F::NIBBLES, quad < num_vectors) {
                (true, true) => vandq_u8(bytes, vdupq_n_u8(15)),
                (true, false) => vshrq_n_u8::<4>(bytes),
                // Flipping the top bit subtracts 128.
                (false, _) if takes_off_zero_point::<F>() => veorq_u8(bytes, vdupq_n_u8(128)),
                (false, _) => bytes,
            })
        })
    }
}

/// # Safety
/// `pointer` must point to 4 bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn broadcast_quad(pointer: *const i8) -> int8x16_t {
    // SAFETY: the caller guarantees the conditions.
    vreinterpretq_s8_s32(vdupq_n_s32(unsafe { pointer.cast::<i32>().read_unaligned() }))
}

/// Multiplies one panel with one tile of float weights.
///
/// # Safety
/// `out` must be writable for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    assert!(tile.quants.len() >= panel.in_features * TILE * F::ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    for_each_part(panel.num_rows, out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the caller guarantees the rest.
        unsafe { dispatch_rows!(rows, float_part::<F>(tile, panel, out, part)) }
    });
}

/// # Safety
/// The conditions are those of [`linear_float`], which has checked the lengths. The part must have `R` rows.
#[target_feature(enable = "neon")]
unsafe fn float_part<F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    let mut acc = [[vdupq_n_f32(0.0); REGISTERS]; R];
    // SAFETY: elements, rows and lanes are within the checked lengths.
    unsafe {
        let weights = tile.quants.as_ptr().add(part.first_lane * F::ELEMENT_BYTES);
        let x = panel.values.as_ptr().add(part.first_row * panel.row_stride);
        for run_start in (0..panel.in_features).step_by(FLOAT_RUN) {
            let mut sums = [[vdupq_n_f32(0.0); REGISTERS]; R];
            for element in run_start..(run_start + FLOAT_RUN).min(panel.in_features) {
                let vector = weights.add(element * TILE * F::ELEMENT_BYTES);
                prefetch(vector);
                let weights: [float32x4_t; REGISTERS] =
                    std::array::from_fn(|at| load_weights::<F>(vector.add(at * LANES * F::ELEMENT_BYTES)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = *x.add(row * panel.row_stride + element);
                    sums.iter_mut()
                        .zip(weights)
                        .for_each(|(sum, weight)| *sum = vfmaq_n_f32(*sum, weight, x));
                }
            }
            for (acc, sum) in acc.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *acc = vaddq_f32(*acc, *sum);
            }
        }
        store(&acc, out, part);
    }
}

/// Size of a scale or minimum in bytes.
const fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// # Safety
/// `pointer` must point to 8 scales.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> [float32x4_t; REGISTERS] {
    // SAFETY: the caller guarantees the conditions.
    std::array::from_fn(|at| unsafe {
        if F::HALF_SCALES {
            widen(vld1_u16(pointer.cast::<u16>().add(at * LANES)))
        } else {
            vld1q_f32(pointer.cast::<f32>().add(at * LANES))
        }
    })
}

/// Loads 4 weights as f32, exactly.
///
/// # Safety
/// `pointer` must point to 4 elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_weights<F: FloatFormat>(pointer: *const u8) -> float32x4_t {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        match F::FORMAT {
            Format::F16 => widen(vld1_u16(pointer.cast())),
            Format::BF16 => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(pointer.cast()))),
            _ => vld1q_f32(pointer.cast()),
        }
    }
}

/// Adds the bias and stores the sums of a part.
///
/// # Safety
/// `out` must be writable for the part's `R` rows and its lanes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store<const R: usize>(acc: &[[float32x4_t; REGISTERS]; R], out: &TileOutput<'_>, part: Part) {
    let num_lanes = PART.min(out.num_lanes - part.first_lane);
    let mut bias = [0.0; PART];
    if let Some(all) = out.bias {
        bias[..num_lanes].copy_from_slice(&all[part.first_lane..][..num_lanes]);
    }
    for (row, acc) in acc.iter().enumerate() {
        let mut values = [0.0; PART];
        // SAFETY: the arrays have 8 elements, and the caller guarantees as many elements of `out` as there are lanes.
        unsafe {
            for (at, acc) in acc.iter().enumerate() {
                let sum = vaddq_f32(*acc, vld1q_f32(bias.as_ptr().add(at * LANES)));
                vst1q_f32(values.as_mut_ptr().add(at * LANES), if out.bias.is_some() { sum } else { *acc });
            }
            let target = out.values.add((part.first_row + row) * out.row_stride + part.first_lane);
            target.copy_from_nonoverlapping(values.as_ptr(), num_lanes);
        }
    }
}
