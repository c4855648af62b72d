//! Lowers the operations of recurrent layers.

use super::Lowering;
use crate::program::graph::{Op, Recur, ShortConv};
use crate::program::instruction::{Kernel, RecurKernel, RowSet, ShortConvKernel, View};

impl Lowering<'_> {
    /// Lowers node `index`, if it is an operation of recurrent layers.
    pub(super) fn lower_recurrent(&mut self, op: &Op, rows: RowSet, index: usize, width: usize) -> View {
        let x = match *op {
            Op::Columns { x, begin } => {
                let whole = self.operand(x, rows);
                let x = View { column: whole.column + begin, width, ..whole };
                let out = self.new_view(width, rows);
                self.emit(Kernel::Copy { x, out }, rows);
                return out;
            }
            Op::ShortConv(conv) => return self.lower_short_conv(&conv, rows, width),
            Op::Recur(recur) => return self.lower_recur(&recur, rows, width),
            Op::Silu { x } | Op::Sigmoid { x } | Op::HeadL2Norm { x, .. } => x,
            Op::Softplus { x, .. } | Op::Decay { x, .. } => x,
            _ => unreachable!("`lower_node` lowers the other operations"),
        };
        let x = self.writable(x, rows, index, None);
        let kernel = match *op {
            Op::Silu { .. } => Kernel::Silu { x },
            Op::Sigmoid { .. } => Kernel::Sigmoid { x },
            Op::HeadL2Norm { head_size, eps, .. } => Kernel::HeadL2Norm { x, head_size, eps },
            Op::Softplus { bias, .. } => Kernel::Softplus { x, bias: self.plan.vector(&[bias]) },
            Op::Decay { log_rate, .. } => Kernel::Decay { x, log_rate: self.plan.vector(&[log_rate]) },
            _ => unreachable!("the operation has one operand"),
        };
        self.emit(kernel, rows);
        x
    }

    fn lower_short_conv(&mut self, conv: &ShortConv, rows: RowSet, width: usize) -> View {
        let weight = self.plan.vector(&[conv.weight]);
        let bias = conv.bias.map(|bias| self.plan.vector(&[bias]));
        let x = self.operand(conv.x, rows);
        let out = self.new_view(width, rows);
        let kernel = ShortConvKernel { x, weight, bias, state: conv.state, out };
        self.emit(Kernel::ShortConv(kernel), rows);
        out
    }

    fn lower_recur(&mut self, recur: &Recur, rows: RowSet, width: usize) -> View {
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
