use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey};

use super::hold::BlockHold;
use super::window_needs::WindowNeeds;
use crate::evict::{CachePriority, Trail};
use crate::index::Cursor;
use crate::salt::Salt;
use crate::store::StoreProgress;
use crate::tenants::TenantIdx;

/// The blocks of one sequence in order, and how many of them are in the index.
///
/// [`crate::KvCache`] opens, indexes and closes tables. Dropping a table releases its blocks without indexing any more
/// of them. With a store or windows, a table must be closed, because dropping it leaves unnamed slots in the store and
/// needed window parts behind.
///
/// ```text
/// blocks       [ 7 | 3 | 5 | 8 | 9 ]
///                indexed ^   ^ being filled, or reserved
/// shadows      3 → 4          the index has block 4 where this sequence has its own block 3 with the same contents
/// ```
///
/// Invariant: the sequence holds every block of the index on the way to `cursor`, by `blocks` or by `shadows`. So a
/// sequence that holds a block of the index holds those before it, and all blocks that nobody holds can be evicted.
#[derive(Debug)]
pub struct BlockTable {
    pub(super) salt: Salt,
    pub(super) tenant: TenantIdx,
    pub(super) blocks: Vec<BlockHold>,
    pub(super) shadows: Vec<Shadow>,
    pub(super) copy_source: Option<BlockHold>,
    pub(super) cursor: Cursor,
    pub(super) trail: Trail,
    /// The key of the last indexed block, or the root key of the salt.
    pub(super) key: BlockKey,
    pub(super) windows: WindowNeeds,
    pub(super) priority: CachePriority,
    pub(super) group: Option<Arc<str>>,
    pub(crate) store: StoreProgress,
}

/// A block of the index that holds the same tokens as the sequence's own block, because two sequences computed them at
/// the same time.
#[derive(Debug)]
pub(super) struct Shadow {
    pub(super) block_idx: usize,
    pub(super) indexed: BlockHold,
    /// True if the own block has a state that the block of the index lacks and later prompts may begin with.
    pub(super) is_offered: bool,
}

impl BlockTable {
    pub fn blocks(&self) -> &[BlockHold] {
        &self.blocks
    }

    /// Returns the number of leading blocks that are in the index.
    pub fn num_indexed_blocks(&self) -> usize {
        self.cursor.num_blocks as usize
    }

    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    pub(crate) fn priority(&self) -> CachePriority {
        self.priority
    }

    /// Returns the number of leading blocks that [`crate::KvCache::begin_store`] has nothing to do for.
    pub fn num_stored_blocks(&self) -> usize {
        self.store.num_blocks()
    }

    pub fn num_needed_parts(&self) -> usize {
        self.windows.num_parts() + self.shadows.iter().filter(|shadow| shadow.is_offered).count()
    }

    /// Returns the index of the first block whose window part the sequence needs.
    pub(crate) fn first_windowed_block(&self) -> usize {
        self.windows.first_block()
    }

    /// Returns the block that the index has at `block_idx`, which the table has indexed.
    pub(super) fn indexed_block(&self, block_idx: usize) -> BlockId {
        let shadow = self.shadows.iter().find(|shadow| shadow.block_idx == block_idx);
        shadow.map_or_else(|| self.blocks[block_idx].id(), |shadow| shadow.indexed.id())
    }

    pub(crate) fn detach_last(&mut self, num_blocks: usize) -> Vec<BlockHold> {
        let first = self.blocks.len() - num_blocks;
        self.windows.detach_from(first as u32);
        self.blocks.split_off(first)
    }
}
