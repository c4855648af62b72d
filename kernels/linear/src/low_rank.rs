//! Adds products with narrow matrices to rows, for adapters.
//!
//! The sum of an element is `acc = fma(w, x, acc)` from 0 over the columns of the matrix, in order. It is then added to
//! the element, so its bits depend on neither the other rows nor the division into tiles. A [`Gain`] acts on an
//! element and its sum alone.

use std::ops::Range;

use super::product::{FloatRows, LinearOutput};
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::pack::float::FloatFormat;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{KernelVisitor, PackedWeight, TILE};
use trunkline_kernels_core::vector::{LANES, Lanes, simd_entry};

/// Distance in bytes at which weights are prefetched.
const PREFETCH_BYTES: usize = 4 << 10;

const _: () = assert!(LANES == TILE);

/// The gain of DoRA. With k = 1 + scale · (gain − 1), an element becomes element · k + gain · sum + bias · (1 − k).
#[derive(Clone, Copy)]
pub struct Gain<'a> {
    /// The gain of each output feature.
    pub gain: &'a [f32],
    /// The bias that the elements contain already, and that has no gain.
    pub bias: Option<&'a [f32]>,
    pub scale: f32,
}

/// A product that is checked, and whose part of the output no other thread accesses.
struct Job<'a> {
    isa: Isa,
    weight: &'a PackedWeight,
    input: FloatRows<'a>,
    num_rows: usize,
    tiles: Range<usize>,
    out: LinearOutput<'a>,
    gain: Option<Gain<'a>>,
}

/// Adds the products of `num_rows` rows with the output features of `tiles` to `out`, whose first column is that of the
/// matrix. The matrix has floats that need no rounded input.
///
/// # Panics
/// Panics if the shapes do not match, or for a matrix of another kind.
///
/// # Safety
/// During the call no other thread may read or write the rows' elements of `tiles` in `out`.
pub unsafe fn add_low_rank(
    isa: Isa,
    weight: &PackedWeight,
    input: FloatRows<'_>,
    num_rows: usize,
    tiles: Range<usize>,
    out: LinearOutput<'_>,
    gain: Option<Gain<'_>>,
) {
    if num_rows == 0 || tiles.is_empty() {
        return;
    }
    assert!(!weight.needs_quantized_input() && !weight.needs_rounded_input(), "{}", weight.format());
    assert!(tiles.end <= weight.num_tiles(), "{tiles:?} of {} tiles", weight.num_tiles());
    assert!((num_rows - 1) * input.row_stride + weight.in_features() <= input.values.len(), "input rows");
    assert!(out.row_stride >= weight.out_features(), "output rows overlap");
    assert!((num_rows - 1) * out.row_stride + weight.out_features() <= out.values.len(), "output rows");
    if let Some(Gain { gain, bias, .. }) = gain {
        assert_eq!(gain.len(), weight.out_features(), "gains");
        assert!(bias.is_none_or(|bias| bias.len() == gain.len()), "biases");
    }
    weight.format().visit_kernels(&Job { isa, weight, input, num_rows, tiles, out, gain });
}

impl KernelVisitor for &Job<'_> {
    fn int<F: IntFormat, K: IntFormat>(self) {
        unreachable!("checked")
    }

    fn float<F: FloatFormat>(self) {
        // SAFETY: the lengths are checked, and the output is this job's.
        unsafe { add_products::<F>(self.isa, self) }
    }
}

#[inline(always)]
unsafe fn add_generic<L: Lanes, F: FloatFormat>(job: &Job<'_>) {
    // The most rows whose sums fit in registers.
    let most = match (L::IS_WIDE, L::IS_VECTOR) {
        (true, _) => 8,
        (_, true) => 4,
        _ => 1,
    };
    for tile in job.tiles.clone() {
        let weights = job.weight.tile(tile).quants;
        assert!(weights.len() >= F::num_vectors(job.weight.in_features()) * TILE * F::LANE_BYTES);
        let mut first = 0;
        while first < job.num_rows {
            // SAFETY: the lengths are checked, and the caller guarantees the output.
            unsafe {
                match most.min(job.num_rows - first) {
                    8 if L::IS_WIDE => first += add_rows::<L, F, 8>(job, tile, weights, first),
                    4.. if L::IS_VECTOR => first += add_rows::<L, F, 4>(job, tile, weights, first),
                    2.. if L::IS_VECTOR => first += add_rows::<L, F, 2>(job, tile, weights, first),
                    _ => first += add_rows::<L, F, 1>(job, tile, weights, first),
                }
            }
        }
    }
}

/// Adds the products of `R` rows with a tile, and returns `R`.
#[inline(always)]
unsafe fn add_rows<L: Lanes, F: FloatFormat, const R: usize>(
    job: &Job<'_>,
    tile: usize,
    weights: &[u8],
    first: usize,
) -> usize {
    // SAFETY: elements and rows are within the checked lengths, and the caller guarantees the output.
    unsafe {
        let (weights, x) = (weights.as_ptr(), job.input.values.as_ptr().add(first * job.input.row_stride));
        let mut sums = [L::splat(0.0); R];
        for element in 0..job.weight.in_features() {
            L::prefetch_near(weights.wrapping_add(F::offset(element) + PREFETCH_BYTES));
            let weight = F::load_element::<L>(weights, element);
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = weight.fma(L::splat(*x.add(row * job.input.row_stride + element)), *sum);
            }
        }
        let column = tile * TILE;
        let num_lanes = TILE.min(job.weight.out_features() - column);
        for (row, sum) in sums.into_iter().enumerate() {
            let values = job.out.values.as_mut_ptr().add((first + row) * job.out.row_stride + column);
            let before = L::load_first(values, num_lanes);
            let after = match &job.gain {
                Some(gain) => gained(gain, before, sum, column, num_lanes),
                None => before.add(sum),
            };
            after.store_first(values, num_lanes);
        }
        R
    }
}

/// Applies the gains of the features from `column` on to their elements and sums.
#[inline(always)]
unsafe fn gained<L: Lanes>(gain: &Gain<'_>, before: L, sum: L, column: usize, num_lanes: usize) -> L {
    // SAFETY: the lengths are checked.
    unsafe {
        let (one, gains) = (L::splat(1.0), L::load_first(gain.gain.as_ptr().add(column), num_lanes));
        let factor = gains.sub(one).fma(L::splat(gain.scale), one);
        let after = before.fma(factor, gains.mul(sum));
        match gain.bias {
            Some(bias) => one.sub(factor).fma(L::load_first(bias.as_ptr().add(column), num_lanes), after),
            None => after,
        }
    }
}

simd_entry! {
    unsafe fn add_products<F: FloatFormat> = add_generic(job: &Job<'_>);
}
