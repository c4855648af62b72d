//! Lowers products of each head with a matrix of its own.

use super::Lowering;
use crate::program::graph::{ValueId, WeightId};
use crate::program::instruction::{HeadLinearKernel, Kernel, LinearSource, RowSet, View};

impl Lowering<'_> {
    pub(super) fn lower_head_linear(
        &mut self,
        x: ValueId,
        weights: Vec<WeightId>,
        rows: RowSet,
        width: usize,
    ) -> View {
        let (num_heads, format) = (weights.len(), self.raw(weights[0]).format);
        let x = self.operand(x, rows);
        let head_width = x.width / num_heads;
        let head =
            |x: View, head: usize| View { column: x.column + head * head_width, width: head_width, ..x };
        let x = if format.needs_quantized_input() {
            // Each head has its own buffer, because the layout of quantised rows depends on their width.
            let heads: Vec<_> = (0..num_heads).map(|n| self.prepared(head(x, n), rows, format)).collect();
            heads[0]
        } else if format.needs_rounded_input() {
            LinearSource::Rounded(head(self.rounded(x, head_width, rows), 0))
        } else {
            LinearSource::Float(head(x, 0))
        };
        let first_weight = self.plan.matrices(weights.into_iter().map(|weight| vec![weight]).collect());
        let out = self.new_view(width, rows);
        let kernel =
            HeadLinearKernel { x, num_heads, first_weight, out: View { width: width / num_heads, ..out } };
        self.emit(Kernel::HeadLinear(kernel), rows);
        out
    }
}
