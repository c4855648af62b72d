//! Products with integer weights for sets whose registers hold at most half a tile, which is 8 output features.
//!
//! The sums of up to 4 rows stay in registers.

use std::ops::Range;

use super::{TileOutput, run_vectors};
use crate::quantized::{QUANT_GROUP, QuantGroup, QuantizedBlock, VECTOR_BYTES};
use trunkline_kernels_core::pack::codes::scale_bytes;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, TILE, Tile};

/// Number of output features in half a tile.
const LANES: usize = TILE / 2;
/// The most rows whose sums are kept in registers.
const MAX_ROWS: usize = 4;

/// A vector of eight f32 values.
///
/// # Safety
/// For all functions, the CPU must have the instructions, and pointers must be valid for the elements that are read or
/// written.
pub(super) trait Floats: Copy {
    /// A vector of eight i32 values.
    type Ints: Copy;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn splat_int(x: i32) -> Self::Ints;
    unsafe fn load(p: *const f32) -> Self;
    /// Loads eight IEEE half-precision elements from `p`, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Loads the first `n <= 8` elements from `p`. Reads nothing beyond them.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Stores the first `n <= 8` lanes to `p` and nothing beyond them.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// Converts each integer to the nearest float.
    unsafe fn from_ints(x: Self::Ints) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// Computes `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
}

/// The integer products of an instruction set.
///
/// # Safety
/// For all functions, the CPU must have the set, and `quants` must point to the first of 8 lanes of the weights for a
/// group of activations.
pub(super) trait Products {
    type Floats: Floats;

    /// Calls [`int_part`]. [`part_with`] defines it.
    unsafe fn part<F: IntFormat, const R: usize>(
        in_features: usize,
        tile: &Tile<'_>,
        block: &QuantizedBlock<'_>,
        out: &TileOutput<'_>,
        part: Part,
    );

    /// The zero point of weights as they are multiplied.
    #[inline(always)]
    fn zero_point<F: IntFormat>() -> i32 {
        i32::from(F::ZERO_POINT)
    }

    /// Adds the products of the weights of `quads` and the low bytes of each row's quants. `quads` has even bounds.
    unsafe fn add_low<F: IntFormat, const R: usize>(
        sums: &mut [Ints<Self>; R],
        quants: *const u8,
        x: &[*const QuantGroup; R],
        quads: Range<usize>,
    );

    /// Adds 256 times the products of the high bytes of a group's top quad and their weights.
    unsafe fn add_high<F: IntFormat>(sum: Ints<Self>, quants: *const u8, group: &QuantGroup) -> Ints<Self>;
}

/// The sums of eight output features.
pub(super) type Ints<P> = <<P as Products>::Floats as Floats>::Ints;

/// A part of a product: up to [`MAX_ROWS`] rows and half a tile.
#[derive(Clone, Copy)]
pub(super) struct Part {
    first_row: usize,
    /// First lane in the tile, 0 or 8.
    first_lane: usize,
}

/// Defines [`Products::part`] within an implementation, compiled with the features of the set.
macro_rules! part_with {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn part<F: IntFormat, const R: usize>(
            in_features: usize,
            tile: &Tile<'_>,
            block: &QuantizedBlock<'_>,
            out: &TileOutput<'_>,
            part: Part,
        ) {
            // SAFETY: the conditions are the same.
            unsafe { int_part::<F, Self, R>(in_features, tile, block, out, part) }
        }
    };
}
pub(super) use part_with;

/// Multiplies rows with one tile of integer weights, one part after another.
///
/// # Safety
/// The conditions are those of [`super`]; the CPU must have `P`.
pub(super) unsafe fn linear_int<F: IntFormat, P: Products>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    for first_lane in (0..out.num_lanes).step_by(LANES) {
        for first_row in (0..block.num_rows()).step_by(MAX_ROWS) {
            let part = Part { first_row, first_lane };
            // SAFETY: the conditions are the same, and the part has as many rows.
            unsafe {
                match block.num_rows() - first_row {
                    1 => P::part::<F, 1>(in_features, tile, block, out, part),
                    2 => P::part::<F, 2>(in_features, tile, block, out, part),
                    3 => P::part::<F, 3>(in_features, tile, block, out, part),
                    _ => P::part::<F, MAX_ROWS>(in_features, tile, block, out, part),
                }
            }
        }
    }
}

/// Multiplies the `R` rows of a part with half a tile.
///
/// # Safety
/// The conditions are those of [`linear_int`]. The part must have `R` rows.
#[inline(always)]
pub(super) unsafe fn int_part<F: IntFormat, P: Products, const R: usize>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
    Part { first_row, first_lane }: Part,
) {
    let parts = QUANT_GROUP / F::GROUP;
    // SAFETY: groups, rows and lanes are within the lengths that the caller guarantees.
    unsafe {
        let groups = block.groups.as_ptr().add(first_row * block.row_stride);
        let mut acc = [P::Floats::splat(0.0); R];
        let lanes = LANES.min(out.num_lanes - first_lane);
        let target = out.values.add(first_row * out.row_stride + first_lane);
        for (row, acc) in acc.iter_mut().enumerate() {
            *acc = if out.continues {
                P::Floats::load_first(target.add(row * out.row_stride), lanes)
            } else {
                P::Floats::splat(*block.starts.as_ptr().add(first_row + row))
            };
        }
        for x_group in 0..in_features / QUANT_GROUP {
            let x: [*const QuantGroup; R] =
                std::array::from_fn(|row| groups.add(row * block.row_stride + x_group));
            let vectors = x_group * run_vectors::<F>();
            let quants = tile.quants.as_ptr().add(vectors * VECTOR_BYTES + first_lane * QUAD);
            for w_part in 0..parts {
                let dots = dots::<F, P, R>(quants, &x, w_part);
                let at = ((x_group * parts + w_part) * TILE + first_lane) * scale_bytes::<F>();
                let scale = load_scales::<F, P>(tile.scales.as_ptr().add(at));
                for row in 0..R {
                    let scale = scale.mul(P::Floats::splat((*x[row]).scale));
                    acc[row] = scale.fma(P::Floats::from_ints(dots[row]), acc[row]);
                }
                if F::HAS_MIN {
                    let min = load_scales::<F, P>(tile.mins.as_ptr().add(at));
                    for (acc, x) in acc.iter_mut().zip(x) {
                        *acc = min.fma(P::Floats::splat((*x).part_sum::<F>(w_part)), *acc);
                    }
                }
            }
        }
        for (row, acc) in acc.into_iter().enumerate() {
            let value = match out.bias {
                Some(bias) => acc.add(P::Floats::load_first(bias.as_ptr().add(first_lane), lanes)),
                None => acc,
            };
            value.store_first(target.add(row * out.row_stride), lanes);
        }
    }
}

/// Computes the dot products of weights, minus the zero point, and quants, for the weights' group `part` within the
/// groups `x`.
#[inline(always)]
unsafe fn dots<F: IntFormat, P: Products, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    part: usize,
) -> [Ints<P>; R] {
    // SAFETY: the caller guarantees the groups and their weights.
    unsafe {
        let mut sums = [P::Floats::splat_int(0); R];
        for (sum, x) in sums.iter_mut().zip(x) {
            let group = &**x;
            let negated_sum = match (F::GROUP < QUANT_GROUP, part) {
                (false, _) => group.negated_sum,
                (true, 0) => group.negated_half_sum,
                (true, _) => group.negated_sum - group.negated_half_sum,
            };
            *sum = P::Floats::splat_int(P::zero_point::<F>() * negated_sum);
        }
        P::add_low::<F, R>(&mut sums, quants, x, part * F::GROUP / QUAD..(part + 1) * F::GROUP / QUAD);
        for (sum, x) in sums.iter_mut().zip(x) {
            if (**x).top_quad() * QUAD / F::GROUP == part {
                *sum = P::add_high::<F>(*sum, quants, &**x);
            }
        }
        sums
    }
}

/// # Safety
/// `pointer` must point to 8 scales.
#[inline(always)]
unsafe fn load_scales<F: IntFormat, P: Products>(pointer: *const u8) -> P::Floats {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        if F::HALF_SCALES { P::Floats::load_f16(pointer.cast()) } else { P::Floats::load(pointer.cast()) }
    }
}
