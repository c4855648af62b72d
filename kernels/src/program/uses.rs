//! The matrices that the instructions of a program read.

use super::instruction::{Instruction, Kernel};
use super::weights::MatrixUse;

pub(super) fn matrix_uses(instructions: &[Instruction]) -> Vec<MatrixUse> {
    let (mut uses, mut num_dispatched) = (Vec::new(), 0);
    for (instruction, Instruction { kernel, .. }) in instructions.iter().enumerate() {
        let (first, count) = match *kernel {
            Kernel::Embedding { weight, .. } | Kernel::Linear { weight, .. } => (weight, 1),
            Kernel::HeadLinear(kernel) => (kernel.first_weight, kernel.num_heads),
            Kernel::Dispatch { num_experts, .. } => {
                num_dispatched = num_experts;
                continue;
            }
            Kernel::Experts(kernel) => (kernel.first_weight, num_dispatched),
            _ => continue,
        };
        let is_by_row = matches!(kernel, Kernel::Embedding { .. });
        uses.push(MatrixUse { instruction, matrices: first..first + count, is_by_row });
    }
    uses
}
