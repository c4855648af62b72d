//! The entry point of products: checks shapes, divides the work into blocks and calls kernels.

use std::ops::Range;

use super::PANEL;
#[cfg(all(target_arch = "x86_64", isa = "avx512"))]
use super::bf16::has_pairs;
use super::expand::{Expanded, check_planes, is_expanded};
use super::float;
#[cfg(all(target_arch = "x86_64", isa = "avx512"))]
use super::kernels::amx;
use super::kernels::{FloatPanel, TileOutput, call_isa};
use super::quantized::{QUANT_GROUP, QuantGroup, QuantizedRows};
use trunkline_kernels_core::isa::Isa;
#[cfg(all(target_arch = "x86_64", isa = "avx512"))]
use trunkline_kernels_core::isa::IsaKind;
use trunkline_kernels_core::pack::float::FloatFormat;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{KernelVisitor, PackedWeight, TILE};
use trunkline_kernels_core::shared_mut::SharedMut;

/// Bytes of the input rows of a block, chosen so that they stay in the second-level cache while tiles are read.
const ROW_BLOCK_BYTES: usize = 384 << 10;

#[derive(Debug, Clone, Copy)]
pub struct FloatRows<'a> {
    pub values: &'a [f32],
    /// Distance between rows, in elements.
    pub row_stride: usize,
}

/// The input of a product. [`PackedWeight::needs_quantized_input`] and [`PackedWeight::needs_rounded_input`] tell which
/// variant a weight needs.
#[derive(Debug, Clone, Copy)]
pub enum LinearInput<'a> {
    Float(FloatRows<'a>),
    /// Rows that [`crate::round_row`] has written for the same instruction set.
    Rounded(FloatRows<'a>),
    Quantized(QuantizedRows<'a>),
}

#[derive(Debug, Clone, Copy)]
pub struct LinearOutput<'a> {
    pub values: SharedMut<'a, f32>,
    /// Distance between rows, in elements; at least `out_features`.
    pub row_stride: usize,
}

/// Computes `rows` of the output features of `tiles`. Tile `t` has the output features `16 t..16 t + 16`, as far as
/// they exist.
///
/// `rows` must begin at a multiple of [`PANEL`] and end at one or at the last row. `bias` has `out_features` elements.
///
/// # Panics
/// Panics if the shapes do not match, or if the input is not of the kind that the weight needs.
///
/// # Safety
/// During the call no other thread may read or write the same rows of the same output features of `out`.
pub unsafe fn linear(
    isa: Isa,
    weight: &PackedWeight,
    input: LinearInput<'_>,
    rows: Range<usize>,
    tiles: Range<usize>,
    out: LinearOutput<'_>,
    bias: Option<&[f32]>,
) {
    if rows.is_empty() || tiles.is_empty() {
        return;
    }
    let job = Job { isa, weight, input, rows, tiles, out, bias };
    job.check();
    weight.format().visit_kernels(Checked(&job));
}

struct Job<'a> {
    isa: Isa,
    weight: &'a PackedWeight,
    input: LinearInput<'a>,
    rows: Range<usize>,
    tiles: Range<usize>,
    out: LinearOutput<'a>,
    bias: Option<&'a [f32]>,
}

/// A job whose shapes are checked, and whose part of the output no other thread accesses.
struct Checked<'a>(&'a Job<'a>);

impl KernelVisitor for Checked<'_> {
    fn int<F: IntFormat, K: IntFormat>(self) {
        // SAFETY: these are the conditions of the type.
        unsafe { linear_int::<F, K>(self.0) }
    }

    fn float<F: FloatFormat>(self) {
        // SAFETY: as above.
        unsafe { linear_float::<F>(self.0) }
    }
}

impl Job<'_> {
    fn check(&self) {
        let (rows, weight) = (&self.rows, self.weight);
        assert!(self.tiles.end <= weight.num_tiles(), "{:?} of {} tiles", self.tiles, weight.num_tiles());
        assert!(rows.start.is_multiple_of(PANEL), "{rows:?} does not begin at a panel");
        match (&self.input, weight.needs_quantized_input(), weight.needs_rounded_input()) {
            (LinearInput::Quantized(input), true, _) => {
                let shape = input.shape();
                assert_eq!(shape.in_features(), weight.in_features(), "features of the input");
                assert!(rows.end <= shape.num_rows(), "{rows:?} of {} rows", shape.num_rows());
            }
            (LinearInput::Float(input), false, false) | (LinearInput::Rounded(input), _, true) => {
                let end = (rows.end - 1) * input.row_stride + weight.in_features();
                assert!(end <= input.values.len(), "{rows:?} end at {end} of {}", input.values.len());
            }
            (_, true, _) => panic!("{} weights need a quantised input", weight.format()),
            (_, _, true) => panic!("{} weights need a rounded input", weight.format()),
            _ => panic!("{} weights need a float input", weight.format()),
        }
        assert!(self.out.row_stride >= weight.out_features(), "output rows overlap");
        let end = (rows.end - 1) * self.out.row_stride + weight.out_features();
        assert!(end <= self.out.values.len(), "{rows:?} end at {end} of {}", self.out.values.len());
        assert!(self.bias.is_none_or(|bias| bias.len() == weight.out_features()), "length of the bias");
    }

    /// Calls `kernel(rows, tiles)` for all tiles of one block of rows, up to `at_once` of them at a time, then of the
    /// next block, which reuses the cached rows.
    fn for_each_tile(
        &self,
        row_bytes: usize,
        at_once: usize,
        mut kernel: impl FnMut(Range<usize>, Range<usize>),
    ) {
        let block = (ROW_BLOCK_BYTES / row_bytes).next_multiple_of(PANEL).max(PANEL);
        for block_start in self.rows.clone().step_by(block) {
            let block_end = (block_start + block).min(self.rows.end);
            for tile in self.tiles.clone().step_by(at_once) {
                kernel(block_start..block_end, tile..(tile + at_once).min(self.tiles.end));
            }
        }
    }

    /// # Safety
    /// `first_row` and `tiles` must belong to this job.
    unsafe fn tile_output(&self, first_row: usize, tiles: Range<usize>) -> TileOutput<'_> {
        let first = tiles.start * TILE;
        let num_lanes = (tiles.len() * TILE).min(self.weight.out_features() - first);
        TileOutput {
            // SAFETY: `check` ensures that the offset is inside `out`.
            values: unsafe { self.out.values.as_mut_ptr().add(first_row * self.out.row_stride + first) },
            row_stride: self.out.row_stride,
            num_lanes,
            bias: self.bias.map(|bias| &bias[first..first + num_lanes]),
            continues: false,
        }
    }
}

/// # Safety
/// `job` must be checked, and no other thread may access its part of the output.
unsafe fn linear_int<F: IntFormat, K: IntFormat>(job: &Job<'_>) {
    let LinearInput::Quantized(input) = &job.input else { unreachable!("checked") };
    let in_features = job.weight.in_features();
    let row_bytes = input.shape().row_stride() * size_of::<QuantGroup>();
    job.for_each_tile(row_bytes, 1, |rows, tiles| {
        let (weights, block) = (job.weight.tile(tiles.start), input.block(rows.clone()));
        block.check(in_features);
        // SAFETY: tile and rows have `in_features` elements; the output is this job's; the `Isa` proves the CPU.
        unsafe {
            let out = job.tile_output(rows.start, tiles);
            if is_expanded::<F>() {
                Expanded::each_span::<F>(job.isa, &weights, in_features, |span, weights| {
                    let block = block.starting_at(span.start / QUANT_GROUP);
                    let bias = out.bias.filter(|_| span.end == in_features);
                    let out = TileOutput { bias, continues: span.start > 0, ..out };
                    call_isa!(job.isa, linear_int::<K>(span.len(), weights, &block, &out));
                });
            } else {
                check_planes::<F>(&weights, in_features);
                call_isa!(job.isa, linear_int::<K>(in_features, &weights, &block, &out));
            }
        }
    });
}

/// # Safety
/// `job` must be checked, and no other thread may access its part of the output.
unsafe fn linear_float<F: FloatFormat>(job: &Job<'_>) {
    let (LinearInput::Float(input) | LinearInput::Rounded(input)) = &job.input else {
        unreachable!("checked")
    };
    let in_features = job.weight.in_features();
    let panel = |rows: Range<usize>| {
        let (num_rows, start) = (rows.len(), rows.start * input.row_stride);
        let values = &input.values[start..start + (num_rows - 1) * input.row_stride + in_features];
        FloatPanel { num_rows, in_features, values, row_stride: input.row_stride }
    };
    #[cfg(all(target_arch = "x86_64", isa = "avx512"))]
    if F::ROUNDS_INPUT && has_pairs(job.isa, in_features) && job.isa.kind() == IsaKind::Amx {
        return job.for_each_tile(in_features * size_of::<f32>(), amx::TILES, |rows, tiles| {
            let weights = [job.weight.tile(tiles.start), job.weight.tile(tiles.end - 1)];
            // SAFETY: as below.
            unsafe {
                let out = job.tile_output(rows.start, tiles.clone());
                amx::linear_bf16(&weights[..tiles.len()], &panel(rows), &out);
            }
        });
    }
    job.for_each_tile(in_features * size_of::<f32>(), 1, |rows, tiles| {
        let weights = job.weight.tile(tiles.start);
        for first_row in rows.clone().step_by(PANEL) {
            let panel = panel(first_row..rows.end.min(first_row + PANEL));
            // SAFETY: tile and panel have `in_features` elements; the output is this job's; the `Isa` proves the CPU.
            unsafe {
                let out = job.tile_output(first_row, tiles.clone());
                float::linear_float::<F>(job.isa, &weights, &panel, &out);
            }
        }
    });
}
