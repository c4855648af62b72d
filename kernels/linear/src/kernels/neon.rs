//! Kernels for AArch64 NEON with dot products (`sdot`).
//!
//! Half a tile is two registers. Weights of at most 7 bits fit in signed bytes; the zero point of 128 of 8-bit weights
//! is subtracted when they are loaded.
//!
//! `sdot` and half-precision conversions are inline assembly, because their intrinsics need a newer compiler than this
//! crate does.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::TileOutput;
use super::half_tile::{self, Floats, Part, Products, int_part, part_with};
use crate::quantized::{
    GROUP_QUADS, GroupCode, QUANT_GROUP, QuantGroup, QuantizeJob, QuantizedBlock, VECTOR_BYTES,
};
use trunkline_kernels_core::pack::codes::has_ready_quants;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, Tile};

const LANES: usize = 4;
pub(super) const REGISTERS: usize = 2;
/// Prefetch distance of weights, the same as measured on x86-64.
const PREFETCH_BYTES: usize = 8 << 10;

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

/// Quantises rows; see [`crate::quantized`].
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
/// The conditions are those of [`super`].
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    // SAFETY: the conditions are the same.
    unsafe { half_tile::linear_int::<F, Sdot>(in_features, tile, block, out) }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "the conditions of every block are those of the trait")]
impl Floats for [float32x4_t; REGISTERS] {
    type Ints = [int32x4_t; REGISTERS];
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { [vdupq_n_f32(x); REGISTERS] }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        unsafe { [vdupq_n_s32(x); REGISTERS] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(LANES))] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { [widen(vld1_u16(p)), widen(vld1_u16(p.add(LANES)))] }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; REGISTERS * LANES];
        unsafe {
            p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        let mut lanes = [0.0; REGISTERS * LANES];
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), self[0]);
            vst1q_f32(lanes.as_mut_ptr().add(LANES), self[1]);
            p.copy_from_nonoverlapping(lanes.as_ptr(), n);
        }
    }
    #[inline(always)]
    unsafe fn from_ints(x: Self::Ints) -> Self {
        unsafe { [vcvtq_f32_s32(x[0]), vcvtq_f32_s32(x[1])] }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { [vaddq_f32(self[0], other[0]), vaddq_f32(self[1], other[1])] }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { [vmulq_f32(self[0], other[0]), vmulq_f32(self[1], other[1])] }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { [vfmaq_f32(c[0], self[0], b[0]), vfmaq_f32(c[1], self[1], b[1])] }
    }
}

/// Dot products, which every CPU that runs these kernels has.
pub(super) enum Sdot {}

impl Products for Sdot {
    type Floats = [float32x4_t; REGISTERS];

    part_with!("neon,dotprod");

    #[inline(always)]
    fn zero_point<F: IntFormat>() -> i32 {
        if takes_off_zero_point::<F>() { 0 } else { i32::from(F::ZERO_POINT) }
    }

    #[inline(always)]
    unsafe fn add_low<F: IntFormat, const R: usize>(
        sums: &mut [[int32x4_t; REGISTERS]; R],
        quants: *const u8,
        x: &[*const QuantGroup; R],
        quads: Range<usize>,
    ) {
        for quad in quads {
            // SAFETY: the caller guarantees the conditions.
            unsafe {
                let weights = load_quad::<F>(quants, quad);
                for (sums, x) in sums.iter_mut().zip(x) {
                    let x = broadcast_quad((**x).low.as_ptr().add(quad * QUAD));
                    sums.iter_mut().zip(weights).for_each(|(sum, weights)| *sum = dot(*sum, weights, x));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_high<F: IntFormat>(
        mut sum: [int32x4_t; REGISTERS],
        quants: *const u8,
        group: &QuantGroup,
    ) -> [int32x4_t; REGISTERS] {
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            let x = broadcast_quad(group.high.as_ptr());
            for (sum, weights) in sum.iter_mut().zip(load_quad::<F>(quants, group.top_quad())) {
                *sum = vaddq_s32(*sum, vshlq_n_s32::<8>(dot(vdupq_n_s32(0), weights, x)));
            }
        }
        sum
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
        let vector = quants.add(quad % num_vectors * VECTOR_BYTES);
        if has_ready_quants::<F>() {
            prefetch(vector);
        }
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
