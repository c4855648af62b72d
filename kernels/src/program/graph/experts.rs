//! Checks of layers of experts.

use super::{Experts, ProgramBuilder, ProgramError, WeightId, shape_error};

impl ProgramBuilder {
    /// Checks how rows choose among `num_experts` experts.
    pub(super) fn check_choice(&self, num_experts: usize, experts: &Experts) -> Result<(), ProgramError> {
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
