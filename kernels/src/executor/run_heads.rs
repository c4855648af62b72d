//! Products of each head with a matrix of its own.

use std::ops::Range;

use super::run::Step;
use super::shares::{MIN_UNITS, Units, tiles_per_unit};
use crate::linear::{LinearOutput, linear};
use crate::pack::{PackedWeight, TILE};
use crate::program::{HeadLinearKernel, RowSet};

impl Step<'_> {
    /// Multiplies each head with its matrix.
    pub(super) fn multiply_heads(
        &self,
        kernel: &HeadLinearKernel,
        rows: RowSet,
        (ordinal, thread_idx): (usize, usize),
    ) {
        let num_rows = self.num_rows(rows);
        if num_rows == 0 {
            return self.cursors.skip(ordinal, thread_idx);
        }
        let any = &self.program.weights[kernel.first_weight];
        self.share_tiles((ordinal, thread_idx), any, kernel.num_heads, num_rows, |head, tiles| {
            let (x, out) = kernel.head(head);
            let range = self.range(out, 0).start..self.range(out, num_rows - 1).end;
            let output = LinearOutput { values: self.floats.part(range), row_stride: self.stride(out) };
            let weight = &self.program.weights[kernel.first_weight + head];
            // SAFETY: units do not overlap, and no thread writes the input (`run`).
            unsafe {
                let input = self.linear_input(x, 0..num_rows, num_rows);
                linear(self.isa, weight, input, 0..num_rows, tiles, output, None);
            }
        });
    }

    /// Calls `multiply` with tiles of `count` matrices like `any`, each multiplied with about `num_rows` rows. The
    /// tiles of all matrices are one run, which the threads share like those of a product, so that each thread reads
    /// few long runs of weights.
    pub(super) fn share_tiles(
        &self,
        (ordinal, thread_idx): (usize, usize),
        any: &PackedWeight,
        count: usize,
        num_rows: usize,
        multiply: impl Fn(usize, Range<usize>),
    ) {
        let num_tiles = any.num_tiles();
        let total = num_tiles * count;
        let most = total.div_ceil(self.num_threads * MIN_UNITS).min(num_tiles);
        let tiles = tiles_per_unit(num_rows, any.num_bytes() / num_tiles, TILE * any.in_features(), most);
        self.cursors.share(ordinal, thread_idx, &Units::of_tiles(total, tiles), |unit| {
            let mut first = unit.tiles.start;
            while first < unit.tiles.end {
                let matrix = first / num_tiles;
                let end = unit.tiles.end.min((matrix + 1) * num_tiles);
                multiply(matrix, first - matrix * num_tiles..end - matrix * num_tiles);
                first = end;
            }
        });
    }
}
