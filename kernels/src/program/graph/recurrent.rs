//! Records the operations of recurrent layers. Each has a part of the state that a block keeps.

use super::{Op, ProgramBuilder, Recur, ShortConv, ValueId, WeightId, shape_error};
use crate::ops::recurrence::Recurrence;
use crate::ops::short_conv::WIDTHS;
use crate::program::ProgramError;

/// The most f32 elements of the state of all layers, so that offsets in bytes stay far from overflow.
const MAX_STATE_SIZE: usize = 1 << 36;

/// The operands of a recurrence over `H` heads: value `[T, H * P]`, key and query `[T, G * N]`, each of which `H / G`
/// neighbouring heads share, decay and strength `[T, H]`, and the factor of values in the result `[H]`.
#[derive(Clone, Copy, Debug)]
pub struct RecurOperands {
    pub value: ValueId,
    pub key: ValueId,
    pub query: ValueId,
    pub decay: ValueId,
    pub strength: ValueId,
    pub skip: Option<WeightId>,
}

impl ProgramBuilder {
    /// The columns of `x` from `begin` on.
    pub fn columns(&mut self, x: ValueId, begin: usize, width: usize) -> Result<ValueId, ProgramError> {
        let whole = self.width("columns", x)?;
        if width == 0 || begin.checked_add(width).is_none_or(|end| end > whole) {
            return Err(shape_error("columns", "end", begin.saturating_add(width), format!("1 to {whole}")));
        }
        Ok(self.push(Op::Columns { x, begin }, width))
    }

    /// Computes `x / (1 + e^-x)`.
    pub fn silu(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("silu", x)?;
        Ok(self.push(Op::Silu { x }, width))
    }

    /// Computes `1 / (1 + e^-x)`.
    pub fn sigmoid(&mut self, x: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("sigmoid", x)?;
        Ok(self.push(Op::Sigmoid { x }, width))
    }

    /// Divides each head by the root of its sum of squares plus `eps`.
    pub fn head_l2_norm(&mut self, x: ValueId, eps: f32, head_size: usize) -> Result<ValueId, ProgramError> {
        let width = self.heads("head_l2_norm", x, head_size)?;
        Ok(self.push(Op::HeadL2Norm { x, head_size, eps }, width))
    }

    /// Computes `ln(1 + e^(x + bias))`, with a bias `[width of x]`.
    pub fn softplus(&mut self, x: ValueId, bias: WeightId) -> Result<ValueId, ProgramError> {
        let width = self.width("softplus", x)?;
        self.vector("softplus", bias, width)?;
        Ok(self.push(Op::Softplus { x, bias }, width))
    }

    /// Computes `e^(-x * e^log_rate)`, with logarithms of rates `[width of x]`.
    pub fn decay(&mut self, x: ValueId, log_rate: WeightId) -> Result<ValueId, ProgramError> {
        let width = self.width("decay", x)?;
        self.vector("decay", log_rate, width)?;
        Ok(self.push(Op::Decay { x, log_rate }, width))
    }

    /// Convolves each of the C channels of `x` `[T, C]` over the last positions of its sequence. `weight` `[C * width]`
    /// has the taps of each channel, that of the oldest position first; `bias` is `[C]`.
    pub fn short_conv(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Result<ValueId, ProgramError> {
        let channels = self.width("short_conv", x)?;
        let shape = self.shape("short_conv", weight)?;
        let &[num_taps] = shape else {
            return Err(shape_error("short_conv", "shape of the weight", shape, "[channels * width]"));
        };
        let width = num_taps / channels.max(1);
        if width * channels != num_taps || !WIDTHS.contains(&width) {
            let expected = format!("{channels} channels of {} to {} taps", WIDTHS.start(), WIDTHS.end());
            return Err(shape_error("short_conv", "number of taps", num_taps, expected));
        }
        if let Some(bias) = bias {
            self.vector("short_conv", bias, channels)?;
        }
        let state = self.new_state("short_conv", (width - 1) * channels)?;
        Ok(self.push(Op::ShortConv(ShortConv { x, weight, bias, state }), channels))
    }

    /// Computes the [recurrence](crate::ops::recurrence) of each of `num_heads` heads: `[T, H * P]`.
    pub fn recur(
        &mut self,
        rule: Recurrence,
        operands: RecurOperands,
        num_heads: usize,
        key_size: usize,
    ) -> Result<ValueId, ProgramError> {
        let RecurOperands { value, key, query, decay, strength, skip } = operands;
        let width = self.width("recur", value)?;
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            return Err(shape_error("recur", "width of values", width, format!("{num_heads} heads")));
        }
        let num_groups = self.heads("recur", key, key_size)? / key_size;
        if num_groups == 0 || !num_heads.is_multiple_of(num_groups) {
            let expected = format!("a divisor of {num_heads} heads");
            return Err(shape_error("recur", "number of keys", num_groups, expected));
        }
        self.same_width("recur", key, query)?;
        for operand in [decay, strength] {
            let width = self.width("recur", operand)?;
            if width != num_heads {
                return Err(shape_error("recur", "width of decay and strength", width, num_heads));
            }
        }
        if let Some(skip) = skip {
            self.vector("recur", skip, num_heads)?;
        }
        let state = self.new_state("recur", width.saturating_mul(key_size))?;
        let recur = Recur { rule, value, key, query, decay, strength, skip, num_heads, key_size, state };
        Ok(self.push(Op::Recur(recur), width))
    }

    /// Returns the first element of a new part of the state.
    fn new_state(&mut self, op: &'static str, size: usize) -> Result<usize, ProgramError> {
        let state = self.state_size;
        self.state_size = state.saturating_add(size);
        if self.state_size > MAX_STATE_SIZE {
            let expected = format!("at most {MAX_STATE_SIZE}");
            return Err(shape_error(op, "size of all states", self.state_size, expected));
        }
        Ok(state)
    }
}
