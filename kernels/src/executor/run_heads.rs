//! Products of each head with a matrix of its own.

use super::run::Step;
use super::shares::{MIN_UNITS, Units, tiles_per_unit};
use crate::linear::{LinearOutput, linear};
use crate::pack::TILE;
use crate::program::{HeadLinearKernel, RowSet};

impl Step<'_> {
    /// Multiplies each head with its matrix. The tiles of all heads are one run, which the threads share like the tiles
    /// of a product.
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
        let num_tiles = any.num_tiles();
        let total = num_tiles * kernel.num_heads;
        let most = total.div_ceil(self.num_threads * MIN_UNITS).min(num_tiles);
        let tiles = tiles_per_unit(num_rows, any.num_bytes() / num_tiles, TILE * any.in_features(), most);
        self.cursors.share(ordinal, thread_idx, &Units::of_tiles(total, tiles), |unit| {
            let mut first = unit.tiles.start;
            while first < unit.tiles.end {
                let head = first / num_tiles;
                let end = unit.tiles.end.min((head + 1) * num_tiles);
                let tiles = first - head * num_tiles..end - head * num_tiles;
                let (x, out) = kernel.head(head);
                let range = self.range(out, 0).start..self.range(out, num_rows - 1).end;
                let output = LinearOutput { values: self.floats.part(range), row_stride: self.stride(out) };
                let weight = &self.program.weights[kernel.first_weight + head];
                // SAFETY: units do not overlap, and no thread writes the input (`run`).
                unsafe {
                    let input = self.linear_input(x, 0..num_rows, num_rows);
                    linear(self.isa, weight, input, 0..num_rows, tiles, output, None);
                }
                first = end;
            }
        });
    }
}
