//! Kernels for AArch64 NEON with matrix products of bytes (`smmla` of I8MM).
//!
//! One `smmla` multiplies 8 weights of two output features with 8 quants of two rows, which is twice the products of an
//! `sdot`. The other functions are those of [`super::neon`].

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::TileOutput;
use super::half_tile::{self, Part, Products, int_part, part_with};
pub(crate) use super::neon::quantize_rows;
use super::neon::{REGISTERS, Sdot, load_quad};
use crate::quantized::{QuantGroup, QuantizedBlock};
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, Tile};

/// Number of rows of one matrix product.
const PAIR: usize = 2;
const MAX_PAIRS: usize = 2;

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
    unsafe { half_tile::linear_int::<F, Smmla>(in_features, tile, block, out) }
}

/// Adds the products of two rows of 8 signed bytes with two others to `sums`: `[a0 b0, a0 b1, a1 b0, a1 b1]`.
///
/// # Safety
/// The CPU must have I8MM.
#[inline(always)]
unsafe fn multiply(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees I8MM, and only registers are used.
    unsafe {
        asm!(
            ".arch_extension i8mm", "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

enum Smmla {}

impl Products for Smmla {
    type Floats = [float32x4_t; REGISTERS];

    // Matrix products are inline assembly.
    part_with!("neon,dotprod");

    #[inline(always)]
    fn zero_point<F: IntFormat>() -> i32 {
        Sdot::zero_point::<F>()
    }

    #[inline(always)]
    unsafe fn add_low<F: IntFormat, const R: usize>(
        sums: &mut [[int32x4_t; REGISTERS]; R],
        quants: *const u8,
        x: &[*const QuantGroup; R],
        quads: Range<usize>,
    ) {
        if R == 1 {
            // SAFETY: the conditions are the same, and every CPU with I8MM has dot products.
            return unsafe { Sdot::add_low::<F, R>(sums, quants, x, quads) };
        }
        // SAFETY: the caller guarantees the conditions.
        unsafe {
            // For each pair of rows and each register of 4 output features: the products of the first two features,
            // and of the last two.
            let mut products = [[[vdupq_n_s32(0); 2]; REGISTERS]; MAX_PAIRS];
            for quad in quads.step_by(2) {
                let (first, second) = (load_quad::<F>(quants, quad), load_quad::<F>(quants, quad + 1));
                let mut weights = [[first[0]; 2]; REGISTERS];
                for at in 0..REGISTERS {
                    let (a, b) = (vreinterpretq_s32_s8(first[at]), vreinterpretq_s32_s8(second[at]));
                    weights[at] =
                        [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))];
                }
                for pair in 0..R.div_ceil(PAIR) {
                    let low = |row: usize| (*x[row.min(R - 1)]).low.as_ptr().add(quad * QUAD);
                    let rows = vcombine_s8(vld1_s8(low(pair * PAIR)), vld1_s8(low(pair * PAIR + 1)));
                    for at in 0..REGISTERS {
                        for half in 0..2 {
                            let sum = &mut products[pair][at][half];
                            *sum = multiply(*sum, weights[at][half], rows);
                        }
                    }
                }
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    let [first, last] = products[row / PAIR][at];
                    let of_row =
                        if row % PAIR == 0 { vuzp1q_s32(first, last) } else { vuzp2q_s32(first, last) };
                    *sum = vaddq_s32(*sum, of_row);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_high<F: IntFormat>(
        sum: [int32x4_t; REGISTERS],
        quants: *const u8,
        group: &QuantGroup,
    ) -> [int32x4_t; REGISTERS] {
        // SAFETY: the conditions are the same.
        unsafe { Sdot::add_high::<F>(sum, quants, group) }
    }
}
