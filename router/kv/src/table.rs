//! The blocks of one sequence.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey, SlotId};

use crate::block::BlockHold;
use crate::evict::Trail;
use crate::quota::TenantIdx;
use crate::radix::Cursor;
use crate::salt::Salt;

/// The blocks of one sequence in order, and how far they are in the KV index. Made, grown, indexed and closed by
/// [`crate::KvCache`]; dropping it releases every block and indexes nothing more (and leaves slots of the store that it
/// began to fill without a name, and window parts as needed: with a store or windows it is closed).
///
/// ```text
/// blocks       [ 7 | 3 | 5 | 8 | 9 ]
///                indexed ^   ^ being filled, or reserved
/// shadows      3 → 4          the index has block 4 where this sequence has its own block 3 with the same contents
/// ```
///
/// Invariant: every block of the index on the way to `cursor` is held, by `blocks` or by `shadows`. So whoever holds a
/// node holds its ancestors, and what nobody holds can be evicted to the last block.
#[derive(Debug)]
pub struct BlockTable {
    pub(crate) salt: Salt,
    pub(crate) tenant: TenantIdx,
    pub(crate) blocks: Vec<BlockHold>,
    pub(crate) shadows: Vec<Shadow>,
    pub(crate) copy_source: Option<BlockHold>,
    pub(crate) cursor: Cursor,
    pub(crate) trail: Trail,
    /// Of the last indexed block; before the first, the salt's.
    pub(crate) key: BlockKey,
    /// Leading blocks that need not be stored: they are, or will be, or cannot be.
    pub(crate) num_stored_blocks: usize,
    /// Blocks on their way to the store whose key is not known yet, in order.
    pub(crate) unnamed: VecDeque<UnnamedStore>,
    /// Whose window parts the sequence needs: blocks that its next position looks at, and what was planned after.
    pub(crate) needed: Range<u32>,
    /// And that of the block which is copied from.
    pub(crate) needed_source: Option<BlockId>,
    /// Of what it computes.
    pub(crate) worth: Worth,
    /// What its requests are called together.
    pub(crate) group: Option<Arc<str>>,
}

/// How much what a sequence computes is worth keeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worth {
    /// As the policy says.
    #[default]
    Normal,
    /// Nothing: it goes before all else of its tenant, and never to the store.
    Low,
}

/// A block is being stored before all its tokens are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnnamedStore {
    pub(crate) block_idx: usize,
    pub(crate) slot: SlotId,
}

/// The index has another block than the sequence for the same tokens, because two computed them side by side.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) block_idx: usize,
    pub(crate) indexed: BlockHold,
}

impl BlockTable {
    /// Blocks in order.
    pub fn blocks(&self) -> &[BlockHold] {
        &self.blocks
    }

    /// How many of them are in the KV index, from the first on.
    pub fn num_indexed_blocks(&self) -> usize {
        self.cursor.num_blocks as usize
    }

    /// The namespace.
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// How many blocks, from the first on, [`crate::KvCache::begin_store`] has nothing to do for.
    pub fn num_stored_blocks(&self) -> usize {
        self.num_stored_blocks
    }

    /// How many window parts the sequence needs.
    pub fn num_needed_parts(&self) -> usize {
        self.needed.len() + usize::from(self.needed_source.is_some())
    }

    /// Handles on blocks of the index that the sequence does not use itself.
    pub fn num_extra_holds(&self) -> usize {
        self.shadows.len() + usize::from(self.copy_source.is_some())
    }
}
