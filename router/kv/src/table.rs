//! The blocks of one sequence.

use crate::block::BlockHold;
use crate::evict::Trail;
use crate::radix::Cursor;
use crate::salt::Salt;

/// The blocks of one sequence in order, and how far they are in the KV index. Made, grown, indexed and closed by
/// [`crate::KvCache`]; dropping it releases every block and indexes nothing more.
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
    pub(crate) blocks: Vec<BlockHold>,
    pub(crate) shadows: Vec<Shadow>,
    pub(crate) copy_source: Option<BlockHold>,
    pub(crate) cursor: Cursor,
    pub(crate) trail: Trail,
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

    /// The copy out of the partly matching block is done (its step is acknowledged): releases that block.
    pub fn release_copy_source(&mut self) {
        self.copy_source = None;
    }

    /// Handles on blocks of the index that the sequence does not use itself.
    pub fn num_extra_holds(&self) -> usize {
        self.shadows.len() + usize::from(self.copy_source.is_some())
    }
}
