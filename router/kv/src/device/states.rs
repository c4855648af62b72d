//! The states of recurrent layers: which of them later prompts may begin with.
//!
//! A prompt can begin only where a state is kept, and states are large. Those at two places of a sequence are kept
//! longest: at the last whole block of its prompt, where the same prompt or its continuation begins, and where the
//! prompt branches off another one, where the next prompt with the same beginning does. At the end of a sequence, the
//! state of its last whole block is kept for the next turn. A chunk ends at a branch for this purpose.
//!
//! While another sequence holds the blocks of the common beginning, the index has its blocks, without the state. The
//! shard then copies the whole block with its state onto that of the index, which has the same contents otherwise.

use trunkline_contract::BlockId;

use super::{BlockTable, DeviceTier, WindowParts};

impl WindowParts {
    /// Keeps the state of the last whole block of a sequence that ends, and gives up its offers.
    pub(super) fn close_states(&mut self, table: &BlockTable, num_whole_blocks: usize) {
        for shadow in table.shadows.iter().filter(|shadow| shadow.is_offered) {
            self.end_copy(table.blocks[shadow.block_idx].id());
        }
        if let Some(last) = num_whole_blocks.checked_sub(1).and_then(|block_idx| table.blocks.get(block_idx))
        {
            self.keep(last.id());
        }
    }
}

impl DeviceTier {
    /// Copies a state that a table offers onto the block of the index with the same tokens. Returns the source and the
    /// destination, if there is an offer and room.
    ///
    /// The plan that is being made must have this copy, and its drops must be taken before parts are given again.
    pub fn copy_state(&mut self, table: &mut BlockTable) -> Option<(BlockId, BlockId)> {
        let windows = self.windows.as_mut()?;
        let shadow = table.shadows.iter_mut().find(|shadow| shadow.is_offered)?;
        let (source, destination) = (table.blocks[shadow.block_idx].id(), shadow.indexed.id());
        shadow.is_offered = false;
        let is_given = windows.give_copy(destination);
        if is_given {
            windows.end_copy(destination);
        }
        windows.end_copy(source);
        is_given.then_some((source, destination))
    }
}
