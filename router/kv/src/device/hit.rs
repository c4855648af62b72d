use trunkline_contract::BlockId;

use crate::index::PrefixMatch;
use crate::store::StoredHit;

/// The part of a prompt that device and store have. Plain data that is valid until the index changes.
#[derive(Clone, Debug)]
pub struct PrefixHit {
    pub(super) found: PrefixMatch,
    pub(super) stored: Vec<StoredHit>,
    pub(super) block_size: u32,
    pub(super) index_version: u64,
    pub(super) num_prompt_blocks: u32,
    pub(super) num_whole_prompt_blocks: u32,
}

impl PrefixHit {
    /// Returns the number of whole blocks on the device.
    pub fn num_blocks(&self) -> usize {
        self.found.blocks.len()
    }

    pub fn num_block_tokens(&self) -> u32 {
        self.found.blocks.len() as u32 * self.block_size
    }

    pub fn block_ids(&self) -> &[BlockId] {
        &self.found.blocks
    }

    /// Returns a block to copy from and how many of its leading tokens agree with those after the whole blocks.
    pub fn partial(&self) -> Option<(BlockId, u32)> {
        self.found.partial.map(|partial| (partial.block, partial.num_tokens))
    }

    /// Returns the number of tokens that need not be computed because the device has them.
    pub fn num_tokens(&self) -> u32 {
        self.num_block_tokens() + self.partial().map_or(0, |(_, num_tokens)| num_tokens)
    }

    /// Returns the blocks of the store that follow the whole blocks on the device.
    pub fn stored(&self) -> &[StoredHit] {
        &self.stored
    }

    pub fn num_stored_tokens(&self) -> u32 {
        self.stored.len() as u32 * self.block_size
    }

    /// Returns the indices of the blocks at whose ends later prompts may begin: the last whole block of this prompt,
    /// and the last one that the index knows, where this prompt branches off another.
    pub(super) fn ends(&self) -> [Option<u32>; 2] {
        let known = self.found.num_known_blocks;
        let branch = (known > self.found.blocks.len()).then(|| known as u32 - 1);
        [self.num_whole_prompt_blocks.checked_sub(1), branch]
    }

    /// Returns the first position to compute once the stored blocks are restored.
    pub(super) fn next_position(&self) -> u32 {
        match self.num_stored_tokens() {
            0 => self.num_tokens(),
            // A partly matching block is not copied if a stored block follows.
            num_stored_tokens => self.num_block_tokens() + num_stored_tokens,
        }
    }

    pub fn without_stored(mut self) -> Self {
        self.stored.clear();
        self
    }

    pub fn without_partial(mut self) -> Self {
        self.found.partial = None;
        self
    }
}
