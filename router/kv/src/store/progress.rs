use std::collections::VecDeque;

use trunkline_contract::{BlockKey, SlotId};

use super::StoreIndex;

/// The progress of storing the blocks of one sequence.
#[derive(Debug, Default)]
pub(crate) struct StoreProgress {
    /// The number of leading blocks that are stored, are being written, or cannot be stored.
    num_blocks: usize,
    /// Blocks that are being written and whose keys are not known yet, in order.
    unnamed: VecDeque<UnnamedWrite>,
}

/// A write of a block whose last tokens are not known yet.
#[derive(Clone, Copy, Debug)]
struct UnnamedWrite {
    block_idx: usize,
    slot: SlotId,
}

impl StoreProgress {
    pub(crate) fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    pub(crate) fn set_num_blocks(&mut self, num_blocks: usize) {
        self.num_blocks = num_blocks;
    }

    /// Writes no more blocks of the sequence, because a missing block would make them unreachable.
    pub(crate) fn stop(&mut self) {
        self.num_blocks = usize::MAX;
    }

    /// Records a write of a block whose key is not known yet.
    pub(crate) fn add_unnamed(&mut self, block_idx: usize, slot: SlotId) {
        self.unnamed.push_back(UnnamedWrite { block_idx, slot });
    }

    pub(crate) fn has_unnamed(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Names the slot of a block whose key is known now, if the block is being written.
    pub(crate) fn name_block(
        &mut self,
        store: &mut StoreIndex,
        block_idx: usize,
        key: BlockKey,
        parent: Option<BlockKey>,
    ) {
        if let Some(&unnamed) = self.unnamed.front()
            && unnamed.block_idx == block_idx
        {
            self.unnamed.pop_front();
            self.name_slot(store, unnamed.slot, key, parent);
        }
    }

    /// Names a slot, and stops if its block is not kept.
    pub(crate) fn name_slot(
        &mut self,
        store: &mut StoreIndex,
        slot: SlotId,
        key: BlockKey,
        parent: Option<BlockKey>,
    ) {
        if !store.name(slot, key, parent) {
            self.stop();
        }
    }

    /// Gives up the writes whose keys will never be known.
    pub(crate) fn abandon(&mut self, store: &mut StoreIndex) {
        self.unnamed.drain(..).for_each(|unnamed| store.abandon(unnamed.slot));
    }
}
