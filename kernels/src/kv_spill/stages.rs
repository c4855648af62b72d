//! The parts of a program that need K and V of one layer each.

use crate::program::{Instruction, Kernel};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) layer: usize,
    /// The window of the layer's attention; `None` if the stage only writes.
    pub(super) window: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Stages {
    stages: Vec<Stage>,
    /// The stage that begins or goes on with each instruction.
    at: Vec<Option<usize>>,
}

impl Stages {
    pub(super) fn of(instructions: &[Instruction]) -> Self {
        let (mut stages, mut at) = (Vec::<Stage>::new(), vec![None; instructions.len()]);
        let mut group = 0;
        for (index, instruction) in instructions.iter().enumerate() {
            if instruction.barrier_before {
                group = index;
            }
            let (layer, window) = match instruction.kernel {
                Kernel::WriteKv { layer, .. } => (layer, None),
                Kernel::Attention(kernel) => (kernel.layer, Some(kernel.window)),
                _ => continue,
            };
            match stages.last_mut() {
                Some(stage) if stage.layer == layer => stage.window = stage.window.or(window),
                _ => stages.push(Stage { layer, window }),
            }
            // Threads ask before the first of the instructions that they execute together.
            at[group] = Some(stages.len() - 1);
        }
        Self { stages, at }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Stage> + '_ {
        self.stages.iter().copied()
    }

    pub(super) fn at(&self, instruction: usize) -> Option<(usize, Stage)> {
        self.at[instruction].map(|index| (index, self.stages[index]))
    }
}
