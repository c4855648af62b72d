//! Records layers of experts.

use super::{Experts, Op, ProgramBuilder, ValueId, WeightId, shape_error};
use crate::ops::route::MAX_EXPERTS;
use crate::program::ProgramError;

impl ProgramBuilder {
    /// The weighted sum of the outputs of each row's experts: `[T, N]`. A row of `x` `[T, N]` uses the experts with the
    /// largest `logits` `[T, E]`; see [`route`](crate::ops::route::route).
    pub fn experts(
        &mut self,
        x: ValueId,
        logits: ValueId,
        experts: Experts,
    ) -> Result<ValueId, ProgramError> {
        let op = "experts";
        let (width, num_experts) = (self.width(op, x)?, self.width(op, logits)?);
        if num_experts > MAX_EXPERTS {
            return Err(shape_error(op, "number of experts", num_experts, format!("at most {MAX_EXPERTS}")));
        }
        if !(1..=num_experts).contains(&experts.num_used) {
            let expected = format!("1 to {num_experts}");
            return Err(shape_error(op, "number of used experts", experts.num_used, expected));
        }
        self.check_choice(num_experts, &experts)?;
        let Experts { gate, up, down, .. } = &experts;
        let inner = self.experts_shape(op, gate, num_experts)?[0];
        for (weights, shape) in [(gate, [inner, width]), (up, [inner, width]), (down, [width, inner])] {
            let found = self.experts_shape(op, weights, num_experts)?;
            if found != shape {
                return Err(shape_error(op, "shape of the weight", found, shape));
            }
        }
        for (biases, width) in experts.biases.iter().flatten().zip([inner, inner, width]) {
            if biases.len() != num_experts {
                return Err(shape_error(op, "number of biases", biases.len(), num_experts));
            }
            for bias in biases {
                self.vector(op, *bias, width)?;
            }
        }
        Ok(self.push(Op::Experts { x, logits, experts }, width))
    }

    /// Multiplies each row of `x` by the sigmoid of its row of `gate` `[T, 1]`.
    pub fn sigmoid_scale(&mut self, x: ValueId, gate: ValueId) -> Result<ValueId, ProgramError> {
        let width = self.width("sigmoid_scale", x)?;
        match self.width("sigmoid_scale", gate)? {
            1 => Ok(self.push(Op::SigmoidScale { x, gate }, width)),
            other => Err(shape_error("sigmoid_scale", "width of the gate", other, 1)),
        }
    }

    /// Checks how rows choose among `num_experts` experts.
    fn check_choice(&self, num_experts: usize, experts: &Experts) -> Result<(), ProgramError> {
        let (op, rule) = ("experts", experts.rule);
        if let Some(bias) = experts.choice_bias {
            self.vector(op, bias, num_experts)?;
            if !rule.is_sigmoid {
                return Err(shape_error(op, "bias of the choice", "present", "none without sigmoids"));
            }
        }
        let groups = rule.num_groups;
        if groups == 0 || !num_experts.is_multiple_of(groups) {
            let expected = format!("a divisor of {num_experts}");
            return Err(shape_error(op, "number of groups", groups, expected));
        }
        if !(1..=groups).contains(&rule.num_used_groups) {
            let expected = format!("1 to {groups}");
            return Err(shape_error(op, "number of used groups", rule.num_used_groups, expected));
        }
        let (size, num_used) = (num_experts / groups, experts.num_used);
        if rule.num_used_groups * size < num_used {
            let expected = format!("at least {num_used}");
            return Err(shape_error(op, "experts of the used groups", rule.num_used_groups * size, expected));
        }
        if rule.is_sigmoid && rule.num_used_groups < groups && size < 2 {
            return Err(shape_error(op, "experts of a group", size, "at least 2"));
        }
        Ok(())
    }

    /// Checks that there is one matrix for each expert, all in the same shape and format, and returns the shape.
    pub(super) fn experts_shape(
        &self,
        op: &'static str,
        weights: &[WeightId],
        num_experts: usize,
    ) -> Result<[usize; 2], ProgramError> {
        if weights.len() != num_experts {
            return Err(shape_error(op, "number of weights", weights.len(), num_experts));
        }
        let (shape, format) = (self.matrix(op, weights[0])?, self.weights[weights[0].0].format);
        for weight in weights {
            let found = (self.matrix(op, *weight)?, self.weights[weight.0].format);
            if found != (shape, format) {
                return Err(shape_error(op, "an expert's weight", found, (shape, format)));
            }
        }
        Ok(shape)
    }
}
