//! The parts of a program that need K and V of one layer each.

use super::instruction::{Instruction, Kernel};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvStage {
    pub(crate) layer: usize,
    /// The window of the layer's attention; `None` if the stage only writes.
    pub(crate) window: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct KvStages {
    stages: Vec<KvStage>,
    /// The stage that begins or goes on with each instruction.
    at: Vec<Option<usize>>,
}

impl KvStages {
    pub(crate) fn of(instructions: &[Instruction]) -> Self {
        let (mut stages, mut at) = (Vec::<KvStage>::new(), vec![None; instructions.len()]);
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
                _ => stages.push(KvStage { layer, window }),
            }
            // Threads ask before the first of the instructions that they execute together.
            at[group] = Some(stages.len() - 1);
        }
        Self { stages, at }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = KvStage> + '_ {
        self.stages.iter().copied()
    }

    pub(crate) fn at(&self, instruction: usize) -> Option<(usize, KvStage)> {
        self.at[instruction].map(|index| (index, self.stages[index]))
    }
}
