//! The window parts that one sequence needs.

use std::ops::Range;

use trunkline_contract::BlockId;

#[derive(Debug, Default)]
pub(crate) struct WindowNeeds {
    /// The indices of blocks from the first that the next position attends to up to the last with a planned step.
    pub(super) blocks: Range<u32>,
    /// Blocks among them that the last chunk filled without giving them the state of recurrent layers.
    pub(super) stateless: Range<u32>,
    pub(super) copy_source: Option<BlockId>,
    /// The indices of the blocks at whose ends later prompts may begin, if layers are recurrent.
    pub(super) ends: [Option<u32>; 2],
}

impl WindowNeeds {
    pub(crate) fn num_parts(&self) -> usize {
        self.blocks_with_parts().count() + usize::from(self.copy_source.is_some())
    }

    pub(super) fn blocks_with_parts(&self) -> impl Iterator<Item = u32> + use<> {
        let stateless = self.stateless.clone();
        self.blocks.clone().filter(move |block_idx| !stateless.contains(block_idx))
    }

    /// Returns true if later prompts may begin at the end of this block.
    pub(super) fn is_end(&self, block_idx: u32) -> bool {
        self.ends.contains(&Some(block_idx))
    }

    /// Returns how many of `num_tokens` positions a chunk may compute so that it leaves states where later prompts may
    /// begin.
    pub(super) fn up_to_end(&self, first_position: u32, num_tokens: u32, block_size: u32) -> u32 {
        let ends = self.ends.iter().flatten().map(|block_idx| (block_idx + 1) * block_size);
        // The last but one block of the chunk gets its state, too.
        let missed =
            ends.filter(|&end| first_position < end && end + block_size < first_position + num_tokens);
        missed.min().map_or(num_tokens, |end| end - first_position)
    }

    pub(crate) fn first_block(&self) -> usize {
        self.blocks.start as usize
    }

    /// Forgets the blocks from `first` on without releasing their parts.
    pub(crate) fn detach_from(&mut self, first: u32) {
        self.blocks = self.blocks.start.min(first)..self.blocks.end.min(first);
    }
}
