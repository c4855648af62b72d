//! Computes what adapters add to products: `LoraDown` multiplies rows with A, and `LoraUp` adds their products with B.
//!
//! Both take only rows of sequences that use an adapter, in blocks of one adapter ([`AdapterRows`]), and divide the
//! columns of the results among the threads.

use super::rows::AdapterRows;
use super::run::Step;
use super::shares::Units;
use crate::adapter::Factors;
use crate::linear::{FloatRows, Gain, LinearInput, LinearOutput, add_low_rank, linear};
use crate::ops::scale::scale_in_place;
use crate::pack::TILE;
use crate::program::{AdaptedProduct, RowSet, View};

/// Tiles of B times rows that are worth a unit of work.
const UNIT_TILE_ROWS: usize = 64;
/// The fewest tiles of a unit.
const MIN_UNIT_TILES: usize = 8;

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
    pub(super) fn lora_down(&self, (x, product, out): (View, usize, View), rows: RowSet, thread_idx: usize) {
        let max_rank = self.program.max_adapter_rank;
        let num_members = self.program.adapted[product].weights.len();
        let mut unit = 0;
        for block in self.adapter_rows(rows) {
            for member in 0..num_members {
                let Some(factors) = self.factors(block, product, member) else { continue };
                let matrix = &factors.down;
                let first = out.column + member * max_rank;
                let out = View { buffer: out.buffer, column: first, width: matrix.out_features() };
                for tile in 0..matrix.num_tiles() {
                    unit += 1;
                    if unit % self.num_threads != thread_idx {
                        continue;
                    }
                    let (input, output) = self.lora_operands(block, x, out);
                    let num_rows = block.rows.len();
                    let input = LinearInput::Float(input);
                    unsafe { linear(self.isa, matrix, input, 0..num_rows, tile..tile + 1, output, None) };
                    let width = TILE.min(matrix.out_features() - tile * TILE);
                    let columns = View { column: first + tile * TILE, width, ..out };
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
    ) {
        let max_rank = self.program.max_adapter_rank;
        let blocks = self.adapter_rows(rows);
        let AdaptedProduct { weights, bias, .. } = &self.program.adapted[product];
        let num_rows: usize = blocks.iter().map(|block| block.rows.len()).sum();
        let unit_tiles = (UNIT_TILE_ROWS * blocks.len() / num_rows.max(1)).max(MIN_UNIT_TILES);
        let num_parts = |width: usize| width.div_ceil(unit_tiles * TILE);
        let block_parts: usize = weights.iter().map(|weight| num_parts(weight.width)).sum();
        let units = Units::of_tiles(blocks.len() * block_parts, 1);
        self.cursors.share(ordinal, thread_idx, &units, |unit| {
            let (block, mut part) = (&blocks[unit.tiles.start / block_parts], unit.tiles.start % block_parts);
            let mut members = weights.iter().enumerate();
            let (member, weight) = members
                .find(|(_, weight)| {
                    let is_it = part < num_parts(weight.width);
                    part -= if is_it { 0 } else { num_parts(weight.width) };
                    is_it
                })
                .expect("a part of one of the weights");
            let Some(factors) = self.factors(block, product, member) else { return };
            let x = View { column: x.column + member * max_rank, width: factors.up.in_features(), ..x };
            let out = View { column: out.column + weight.column, width: weight.width, ..out };
            let (input, output) = self.lora_operands(block, x, out);
            let tiles = part * unit_tiles..factors.up.num_tiles().min((part + 1) * unit_tiles);
            let columns = weight.column..weight.column + weight.width;
            let gain = factors.gain.as_ref().map(|gain| Gain {
                gain,
                bias: bias.map(|bias| &self.program.vectors[bias][columns]),
                scale: block.adapter.scale,
            });
            unsafe { add_low_rank(self.isa, &factors.up, input, block.rows.len(), tiles, output, gain) };
        });
    }

    /// A block's rows of `x` and of `out`.
    fn lora_operands(&self, block: &AdapterRows, x: View, out: View) -> (FloatRows<'_>, LinearOutput<'_>) {
        let range = |view| self.range(view, block.rows.start).start..self.range(view, block.rows.end - 1).end;
        let input = FloatRows { values: unsafe { self.floats.slice(range(x)) }, row_stride: self.stride(x) };
        (input, LinearOutput { values: self.floats.part(range(out)), row_stride: self.stride(out) })
    }
}
