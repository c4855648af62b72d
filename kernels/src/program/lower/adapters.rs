//! Lowers what adapters add to products.

use super::Lowering;
use crate::program::graph::{ValueId, WeightId};
use crate::program::instruction::{AdaptedProduct, AdaptedWeight, Kernel, RowSet, View};

impl Lowering<'_> {
    /// Emits the product of `x` with the first matrices of adapters, if the program takes any, and returns it. It comes
    /// before the product with the weights, because its input ends there.
    pub(super) fn lower_lora_down(
        &mut self,
        x: ValueId,
        rows: RowSet,
        weights: &[WeightId],
        bias: Option<usize>,
    ) -> Option<(View, usize)> {
        if self.max_adapter_rank == 0 {
            return None;
        }
        let x = self.operand(x, rows);
        let mut column = 0;
        let weights = weights.iter().map(|&weight| {
            let width = self.raw(weight).shape[0];
            column += width;
            AdaptedWeight { weight, column: column - width, width }
        });
        let weights: Vec<_> = weights.collect();
        let out = self.new_view(weights.len() * self.max_adapter_rank, rows);
        let product = self.adapted.len();
        self.adapted.push(AdaptedProduct { num_inputs: x.width, weights, bias });
        self.emit(Kernel::LoraDown { x, product, out }, rows);
        Some((out, product))
    }

    /// Emits the sum of a product and of what adapters add to it.
    pub(super) fn lower_lora_up(&mut self, down: Option<(View, usize)>, out: View, rows: RowSet) {
        if let Some((x, product)) = down {
            self.emit(Kernel::LoraUp { x, product, out }, rows);
        }
    }
}
