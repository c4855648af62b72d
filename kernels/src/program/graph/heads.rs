//! Operations on each head by itself.

use super::{Op, ProgramBuilder, ProgramError, ValueId, WeightId, shape_error};

impl ProgramBuilder {
    /// The products of each head of `x` `[T, H * K]` and the transpose of its own weight `[N, K]`: `[T, H * N]`. The
    /// weights have one format.
    pub fn head_linear(&mut self, x: ValueId, weights: Vec<WeightId>) -> Result<ValueId, ProgramError> {
        let op = "head_linear";
        let width = self.width(op, x)?;
        if weights.is_empty() {
            return Err(shape_error(op, "number of weights", 0, "at least 1"));
        }
        let [outputs, inputs] = self.experts_shape(op, &weights, weights.len())?;
        if width != weights.len() * inputs {
            return Err(shape_error(op, "width of the input", width, weights.len() * inputs));
        }
        let width = weights.len() * outputs;
        Ok(self.push(Op::HeadLinear { x, weights }, width))
    }

    /// Each head of `x` `[T, H * N]` followed by the same head of `y` `[T, H * M]`: `[T, H * (N + M)]`.
    pub fn join_heads(&mut self, x: ValueId, y: ValueId, num_heads: usize) -> Result<ValueId, ProgramError> {
        let op = "join_heads";
        let widths = [self.width(op, x)?, self.width(op, y)?];
        for width in widths {
            if num_heads == 0 || !width.is_multiple_of(num_heads) {
                return Err(shape_error(op, "width", width, format!("a multiple of {num_heads} heads")));
            }
        }
        Ok(self.push(Op::JoinHeads { x, y, num_heads }, widths[0] + widths[1]))
    }
}
