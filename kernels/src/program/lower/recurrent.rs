//! Lowers the operations of recurrent layers.

use super::Lowering;
use crate::program::graph::{Recur, ShortConv};
use crate::program::instruction::{Kernel, RecurKernel, RowSet, ShortConvKernel, View};

impl Lowering<'_> {
    pub(super) fn lower_short_conv(&mut self, conv: &ShortConv, rows: RowSet, width: usize) -> View {
        let weight = self.plan.vector(&[conv.weight]);
        let bias = conv.bias.map(|bias| self.plan.vector(&[bias]));
        let x = self.operand(conv.x, rows);
        let state = conv.state;
        self.emit_new(width, rows, |out| Kernel::ShortConv(ShortConvKernel { x, weight, bias, state, out }))
    }

    pub(super) fn lower_recur(&mut self, recur: &Recur, rows: RowSet, width: usize) -> View {
        let skip = recur.skip.map(|skip| self.plan.vector(&[skip]));
        let [value, key, query, decay, strength] =
            [recur.value, recur.key, recur.query, recur.decay, recur.strength].map(|x| self.operand(x, rows));
        let out = self.new_view(width, rows);
        let kernel = RecurKernel {
            rule: recur.rule,
            value,
            key,
            query,
            decay,
            strength,
            skip,
            num_heads: recur.num_heads,
            key_size: recur.key_size,
            state: recur.state,
            out,
        };
        self.emit(Kernel::Recur(kernel), rows);
        out
    }
}
