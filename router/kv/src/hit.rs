//! What the KV index has of a prompt.

use trunkline_contract::BlockId;

use crate::radix::PrefixMatch;
use crate::store::StoredHit;

/// What the KV index has of a prompt. Plain data, right until the index changes.
#[derive(Clone, Debug)]
pub struct PrefixHit {
    pub(crate) found: PrefixMatch,
    pub(crate) stored: Vec<StoredHit>,
    pub(crate) block_size: u32,
    pub(crate) index_version: u64,
    /// Blocks that all of the prompt needs.
    pub(crate) num_prompt_blocks: u32,
}

impl PrefixHit {
    /// Whole blocks to hold.
    pub fn num_blocks(&self) -> usize {
        self.found.blocks.len()
    }

    /// Tokens in them.
    pub fn num_block_tokens(&self) -> u32 {
        self.found.blocks.len() as u32 * self.block_size
    }

    /// The whole blocks.
    pub fn block_ids(&self) -> &[BlockId] {
        &self.found.blocks
    }

    /// A block whose first tokens, so many, agree with those that follow the whole blocks: to be copied from.
    pub fn partial(&self) -> Option<(BlockId, u32)> {
        self.found.partial
    }

    /// All tokens that need not be computed.
    pub fn num_tokens(&self) -> u32 {
        self.num_block_tokens() + self.partial().map_or(0, |(_, num_tokens)| num_tokens)
    }

    /// Whole blocks after those on the device that the store has.
    pub fn stored(&self) -> &[StoredHit] {
        &self.stored
    }

    /// Tokens in them.
    pub fn num_stored_tokens(&self) -> u32 {
        self.stored.len() as u32 * self.block_size
    }

    /// The same without what the store has.
    pub fn without_stored(mut self) -> Self {
        self.stored.clear();
        self
    }

    /// The same without the partly matching block.
    pub fn without_partial(mut self) -> Self {
        self.found.partial = None;
        self.found.partial_node = None;
        self
    }
}
