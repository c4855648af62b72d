//! The instructions of experts: rows are sorted by expert, multiplied and added up.

use std::ops::Range;

use super::routing::Routing;
use super::run::Step;
use super::shares::{MIN_UNITS, Units, tiles_per_unit};
use crate::linear::{LinearInput, LinearOutput, QuantizedShape, linear};
use crate::ops::scaled_sum::add_scaled;
use crate::pack::TILE;
use crate::program::{BufferKind, ExpertsKernel, Instruction, Kernel, LinearSource, RowSet, View};

// The rules of `run` make these unsafe blocks sound, too: each place of the sorted rows, and each row that is combined,
// belongs to one thread, and the units of products do not overlap.
#[allow(clippy::undocumented_unsafe_blocks, reason = "all rest on the rules of `run`")]
impl Step<'_> {
    pub(super) fn run_experts(&self, instruction: &Instruction, thread_idx: usize, routing: &mut Routing) {
        let num_rows = self.num_rows(instruction.rows);
        if num_rows == 0 {
            return;
        }
        match instruction.kernel {
            Kernel::Dispatch { x, routes, num_experts, out } => {
                let num_used = num_used(routes);
                routing.sort(num_rows / num_used, num_experts, |row| self.experts_of(routes, row));
                for place in self.row_share(num_rows, thread_idx) {
                    self.dispatch(x, (routing.row(place), num_rows / num_used), out, (place, num_rows));
                }
            }
            Kernel::Combine { x, routes, out } => {
                let num_used = num_used(routes);
                for row in self.row_share(num_rows, thread_idx) {
                    let weights = &self.row(routes, row)[..num_used];
                    for (n, weight) in weights.iter().enumerate() {
                        let part = self.row(x, routing.place(row, num_used, n));
                        add_scaled(self.isa, self.row_mut(out, row), part, *weight, n == 0);
                    }
                }
            }
            _ => unreachable!("sorts rows or adds them up"),
        }
    }

    /// The experts that a row uses, in the order of its choices.
    fn experts_of(&self, routes: View, row: usize) -> impl Iterator<Item = usize> {
        self.row(routes, row)[num_used(routes)..].iter().map(|bits| bits.to_bits() as usize)
    }

    /// Copies a row, given with the number of rows, to a place.
    fn dispatch(
        &self,
        x: LinearSource,
        (row, num_rows): (usize, usize),
        out: LinearSource,
        (place, num_places): (usize, usize),
    ) {
        match (x, out) {
            (LinearSource::Float(x), LinearSource::Float(out))
            | (LinearSource::Rounded(x), LinearSource::Rounded(out)) => {
                self.row_mut(out, place).copy_from_slice(self.row(x, row));
            }
            (LinearSource::Quantized(_), LinearSource::Quantized(out)) => unsafe {
                let LinearInput::Quantized(rows) = self.linear_input(x, 0..num_rows, num_rows) else {
                    unreachable!("quantised")
                };
                let buffer = &self.program.buffers[out];
                let BufferKind::Quantized { width } = buffer.kind else { unreachable!("quantised") };
                let target = self.quantized.part(buffer.offset..buffer.offset + buffer.num_elements);
                rows.copy_row(row, QuantizedShape::new(num_places, width), place, target);
            },
            _ => unreachable!("rows keep their kind"),
        }
    }

    /// Multiplies the rows of each expert with its matrix. The tiles of all used experts are one run, which the threads
    /// share like the tiles of a product, so that each thread reads few long runs of weights.
    pub(super) fn multiply_experts(
        &self,
        kernel: &ExpertsKernel,
        rows: RowSet,
        (ordinal, thread_idx): (usize, usize),
        routing: &Routing,
    ) {
        let ExpertsKernel { x, first_weight, biases, out } = *kernel;
        let (num_places, stride) = (self.num_rows(rows), self.stride(out));
        if num_places == 0 {
            return self.cursors.skip(ordinal, thread_idx);
        }
        let any = &self.program.weights[first_weight];
        let num_tiles = any.num_tiles();
        let total = num_tiles * routing.num_used();
        let rows_each = num_places.div_ceil(routing.num_used());
        let most = total.div_ceil(self.num_threads * MIN_UNITS).min(num_tiles);
        let tiles = tiles_per_unit(rows_each, any.num_bytes() / num_tiles, TILE * any.in_features(), most);
        let multiply = |n: usize, tiles: Range<usize>| {
            let (expert, places) = routing.used(n);
            let weight = &self.program.weights[first_weight + expert];
            let bias = biases.map(|biases| &self.program.vectors[biases][expert * out.width..][..out.width]);
            let end = self.range(out, places.end - 1).end;
            let values = self.floats.part(self.range(out, places.start).start..end);
            let output = LinearOutput { values, row_stride: stride };
            unsafe {
                let input = self.linear_input(x, places.clone(), num_places);
                linear(self.isa, weight, input, 0..places.len(), tiles, output, bias);
            }
        };
        self.cursors.share(ordinal, thread_idx, &Units::of_tiles(total, tiles), |unit| {
            let mut first = unit.tiles.start;
            while first < unit.tiles.end {
                let n = first / num_tiles;
                let end = unit.tiles.end.min((n + 1) * num_tiles);
                multiply(n, first - n * num_tiles..end - n * num_tiles);
                first = end;
            }
        });
    }
}

/// The number of experts that a row uses.
fn num_used(routes: View) -> usize {
    routes.width / 2
}
