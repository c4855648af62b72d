//! Computes what adapters add to products: `LoraDown` multiplies rows with A, and `LoraUp` adds their products with B.
//!
//! Both take only rows of sequences that use an adapter, in blocks of one adapter ([`AdapterRows`]), and divide the
//! columns of the results among the threads.

use super::lora_scratch::{LoraScratch, ROUNDED_PADDING};
use super::rows::AdapterRows;
use super::run::Step;
use super::shares::Units;
use crate::adapter::{Factors, PART_ROWS};
use crate::linear::{FloatRows, LinearInput, LinearOutput, linear, round_row};
use crate::ops::add::add_in_place;
use crate::ops::scale::scale_in_place;
use crate::pack::{PackedWeight, TILE};
use crate::program::{RowSet, View};
use crate::shared_mut::SharedMut;

#[allow(clippy::undocumented_unsafe_blocks, reason = "all rest on the two rules in `run.rs`")]
impl Step<'_> {
    pub(super) fn has_adapters(&self) -> bool {
        !self.rows.adapter_tokens.is_empty()
    }

    fn adapter_rows(&self, rows: RowSet) -> &[AdapterRows] {
        match rows {
            RowSet::Tokens => &self.rows.adapter_tokens,
            RowSet::Samples => &self.rows.adapter_samples,
            RowSet::TokenRoutes { .. } | RowSet::SampleRoutes { .. } => {
                unreachable!("experts take no adapters")
            }
        }
    }

    fn factors(&self, block: &AdapterRows, product: usize, member: usize) -> Option<&Factors> {
        let adapter = self.adapters[block.adapter.slot - 1].as_ref();
        adapter.and_then(|adapter| adapter.factors(&self.program.adapted[product].weights[member]))
    }

    /// Multiplies rows with A of each weight of a product. The results of member m begin at column m · max rank.
    pub(super) fn lora_down(
        &self,
        (x, product, out): (View, usize, View),
        rows: RowSet,
        thread_idx: usize,
        scratch: &mut LoraScratch,
    ) {
        let max_rank = self.program.max_adapter_rank;
        let num_members = self.program.adapted[product].weights.len();
        let mut unit = 0;
        for block in self.adapter_rows(rows) {
            let mut is_rounded = false;
            for member in 0..num_members {
                let Some(factors) = self.factors(block, product, member) else { continue };
                let matrix = &factors.down;
                for tile in 0..matrix.num_tiles() {
                    unit += 1;
                    if unit % self.num_threads != thread_idx {
                        continue;
                    }
                    let input = self.lora_input(x, block, matrix, &mut scratch.rounded, &mut is_rounded);
                    let first = member * max_rank;
                    let out =
                        View { buffer: out.buffer, column: out.column + first, width: matrix.out_features() };
                    let range =
                        self.range(out, block.rows.start).start..self.range(out, block.rows.end - 1).end;
                    let output =
                        LinearOutput { values: self.floats.part(range), row_stride: self.stride(out) };
                    let num_rows = block.rows.len();
                    unsafe { linear(self.isa, matrix, input, 0..num_rows, tile..tile + 1, output, None) };
                    let width = TILE.min(matrix.out_features() - tile * TILE);
                    let columns = View { column: out.column + tile * TILE, width, ..out };
                    let scale = factors.scale * block.adapter.scale;
                    for row in block.rows.clone() {
                        scale_in_place(self.isa, self.row_mut(columns, row), scale);
                    }
                }
            }
        }
    }

    /// Multiplies the results of [`Step::lora_down`] with B of each weight, and adds them to `out`.
    pub(super) fn lora_up(
        &self,
        (x, product, out): (View, usize, View),
        rows: RowSet,
        (ordinal, thread_idx): (usize, usize),
        scratch: &mut LoraScratch,
    ) {
        let max_rank = self.program.max_adapter_rank;
        let blocks = self.adapter_rows(rows);
        let weights = &self.program.adapted[product].weights;
        let num_parts: usize = weights.iter().map(|weight| weight.width.div_ceil(PART_ROWS)).sum();
        let units = Units::of_tiles(blocks.len() * num_parts, 1);
        self.cursors.share(ordinal, thread_idx, &units, |unit| {
            let (block, mut index) = (&blocks[unit.tiles.start / num_parts], unit.tiles.start % num_parts);
            let mut members = weights.iter().enumerate();
            let (member, weight) = members
                .find(|(_, weight)| {
                    let num_parts = weight.width.div_ceil(PART_ROWS);
                    let is_it = index < num_parts;
                    index -= if is_it { 0 } else { num_parts };
                    is_it
                })
                .expect("a part of one of the weights");
            let Some(factors) = self.factors(block, product, member) else { return };
            let part = &factors.up[index];
            let x = View { column: x.column + member * max_rank, width: factors.down.out_features(), ..x };
            let LoraScratch { rounded, sums } = scratch;
            let input = self.lora_input(x, block, part, rounded, &mut false);
            let output = LinearOutput { values: SharedMut::new(&mut sums[..]), row_stride: PART_ROWS };
            let num_rows = block.rows.len();
            unsafe { linear(self.isa, part, input, 0..num_rows, 0..part.num_tiles(), output, None) };
            let column = out.column + weight.column + index * PART_ROWS;
            let columns = View { buffer: out.buffer, column, width: part.out_features() };
            for (row, sums) in block.rows.clone().zip(sums.chunks_exact(PART_ROWS)) {
                add_in_place(self.isa, self.row_mut(columns, row), &sums[..part.out_features()]);
            }
        });
    }

    /// A block's rows of `x` as a matrix needs them. They are rounded to `rounded` unless they are there already.
    fn lora_input<'a>(
        &'a self,
        x: View,
        block: &AdapterRows,
        matrix: &PackedWeight,
        rounded: &'a mut [f32],
        is_rounded: &mut bool,
    ) -> LinearInput<'a> {
        if !matrix.needs_rounded_input() {
            let range = self.range(x, block.rows.start).start..self.range(x, block.rows.end - 1).end;
            let values = unsafe { self.floats.slice(range) };
            return LinearInput::Float(FloatRows { values, row_stride: self.stride(x) });
        }
        let row_stride = x.width + ROUNDED_PADDING;
        if !std::mem::replace(is_rounded, true) {
            for (row, into) in block.rows.clone().zip(rounded.chunks_exact_mut(row_stride)) {
                round_row(self.isa, self.row(x, row), &mut into[..x.width]);
            }
        }
        LinearInput::Rounded(FloatRows { values: rounded, row_stride })
    }
}
