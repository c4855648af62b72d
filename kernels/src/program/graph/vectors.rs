//! Records the operations of encoders and of models that make vectors.

use super::{Op, ProgramBuilder, ValueId};
use crate::program::{PooledRows, ProgramError};

impl ProgramBuilder {
    /// Makes every token see all tokens of its sequence, whose prompt is then one chunk.
    pub fn see_all(&mut self) {
        self.sees_all = true;
    }

    /// Computes `x / 2 * (1 + erf(x / sqrt(2)))`, which is GELU without approximation.
    pub fn gelu_erf(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("gelu_erf", x)?;
        Ok(self.push(Op::GeluErf { x }, width))
    }

    /// Computes the hyperbolic tangent of each element.
    pub fn tanh(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("tanh", x)?;
        Ok(self.push(Op::Tanh { x }, width))
    }

    /// Computes `x * y` for each element.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.same_width("mul", x, y)?;
        Ok(self.push(Op::Mul { x, y }, width))
    }

    /// Computes the mean of `x` over all positions of each sequence, in f64 and in their order. Only rows that sample
    /// may be read of the result, and only after [`ProgramBuilder::see_all`], because chunks must be whole.
    pub fn mean(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        if !self.sees_all {
            let what = "takes the mean of prompts that may be cut into chunks".to_owned();
            return Err(ProgramError::Structure { what });
        }
        let width = self.width("mean", x)?;
        Ok(self.push(Op::Mean { x }, width))
    }

    /// Marks `x` as the output from which the vectors of pooled sequences are made, by `rows`.
    pub fn pooled(&mut self, x: ValueId, rows: PooledRows) -> Result<ValueId, ProgramError> {
        let width = self.width("pooled", x)?;
        Ok(self.push(Op::Pooled { x, rows }, width))
    }
}
