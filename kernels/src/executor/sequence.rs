//! Started sequences: their tokens, their blocks, and whether a chunk fits them.

use std::collections::HashMap;
use std::ops::Range;

use super::block_transfers::KeyChain;
use super::late_masks::LateMask;
use crate::sampling::processors::allowed_mask;
use crate::sampling::{SamplingParams, TokenCounts};

/// Tokens of a sequence that starts, at most: positions are u32, and a longer list is a mistake.
const MAX_TOKENS: usize = 1 << 30;

/// A run of consecutive positions of one sequence, as `Chunk` in shard.proto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub sequence_id: u64,
    /// Position of the first token to compute.
    pub first_position: u32,
    /// How many, at least 1.
    pub num_tokens: u32,
    /// Appended to the block table first.
    pub new_block_ids: Vec<u32>,
    /// Sample one token after the last position and append it.
    pub sample: bool,
    /// Report the logprob of each token of the prompt that follows a position.
    pub score: bool,
}

/// How far a sequence may grow.
#[derive(Clone, Copy, Debug)]
pub struct SequenceCapacity {
    /// Positions and blocks of the whole pool.
    pub num_tokens: usize,
    pub num_blocks: usize,
    /// Rows of the output head.
    pub vocab_size: usize,
}

/// Room is made at once for this many tokens, as far as the pool holds them, so that no step makes it. Untouched room
/// takes no memory.
const MAX_RESERVED_TOKENS: usize = 1 << 18;

/// What the next sample of a sequence may choose.
#[derive(Debug, Default)]
pub(super) enum Allowed {
    #[default]
    All,
    /// Those whose bit is set: bit `i % 8` of byte `i / 8` is token `i`.
    Mask(Vec<u8>),
    /// Those of a mask that comes while the step runs.
    Late(LateMask),
    /// A mask that is none; the text says why, and the chunk fails with it.
    Invalid(String),
}

#[derive(Debug)]
pub struct Sequence {
    pub token_ids: Vec<u32>,
    pub(super) num_prompt_tokens: usize,
    pub block_table: Vec<u32>,
    /// Positions computed by chunks or by prefix hits; unknown until the first chunk.
    num_computed: Option<usize>,
    pub(super) sampling: SamplingParams,
    pub(super) counts: TokenCounts,
    /// The only tokens that the next sample may choose.
    pub(super) allowed: Allowed,
    /// The only tokens that any sample may choose, as a mask; none: any.
    allowed_always: Option<Vec<u8>>,
    /// `None` if its blocks are not stored.
    pub(super) keys: Option<KeyChain>,
}

impl Sequence {
    /// Checks what `start` was told.
    pub fn new(
        mut token_ids: Vec<u32>,
        num_prompt_tokens: usize,
        sampling: SamplingParams,
        capacity: &SequenceCapacity,
    ) -> Result<Self, String> {
        let num_tokens = token_ids.len();
        if num_tokens == 0 || num_tokens > MAX_TOKENS {
            return Err(format!("`token_ids` has {num_tokens} tokens, expected 1 to {MAX_TOKENS}"));
        }
        if num_prompt_tokens == 0 || num_prompt_tokens > num_tokens {
            return Err(format!("`num_prompt_tokens` is {num_prompt_tokens}, expected 1 to {num_tokens}"));
        }
        sampling.check().map_err(|error| error.to_string())?;
        let counts = TokenCounts::new(&sampling, &token_ids, num_prompt_tokens, capacity.vocab_size);
        let allowed_always = allowed_mask(&sampling, capacity.vocab_size);
        // One more than positions: the token that is sampled behind the last one.
        let reserved = capacity.num_tokens.min(MAX_RESERVED_TOKENS) + 1;
        token_ids.reserve_exact(reserved.saturating_sub(num_tokens));
        Ok(Self {
            token_ids,
            num_prompt_tokens,
            block_table: Vec::with_capacity(capacity.num_blocks.min(MAX_RESERVED_TOKENS)),
            num_computed: None,
            sampling,
            counts,
            allowed: Allowed::All,
            allowed_always,
            keys: None,
        })
    }

    /// The positions of a chunk whose logits are asked for, where tokens of the prompt follow; without `score` none.
    pub(super) fn scored_positions(&self, chunk: &Chunk) -> Range<usize> {
        let first = chunk.first_position as usize;
        let end = (first + chunk.num_tokens as usize).min(self.num_prompt_tokens - 1);
        if chunk.score { first..end.max(first) } else { first..first }
    }

    /// Positions computed so far, prefix hits included.
    pub(super) fn num_computed(&self) -> usize {
        self.num_computed.unwrap_or(0)
    }

    /// Appends tokens of the output that were not sampled.
    pub(super) fn append(&mut self, token_ids: &[u32]) {
        token_ids.iter().for_each(|token_id| self.push_sampled(*token_id));
    }

    /// The masks of the next sample, each as `Allowed::Mask`; waits for one that comes late.
    pub(super) fn masks(&self) -> [Option<&[u8]>; 2] {
        let next = match &self.allowed {
            Allowed::Mask(mask) => Some(&mask[..]),
            Allowed::Late(late) => Some(late.wait()),
            Allowed::All | Allowed::Invalid(_) => None,
        };
        [next, self.allowed_always.as_deref()]
    }

    /// Restricts the next sample; a mask of the wrong size fails the next chunk.
    pub(super) fn allow(&mut self, mask: Vec<u8>, vocab_size: usize) {
        let num_bytes = vocab_size.div_ceil(8);
        self.allowed = if mask.len() == num_bytes {
            Allowed::Mask(mask)
        } else {
            Allowed::Invalid(format!("a mask of {} bytes, expected {num_bytes}", mask.len()))
        };
    }

    pub(super) fn push_sampled(&mut self, token_id: u32) {
        self.token_ids.push(token_id);
        self.counts.push_output(token_id);
    }

    /// Appends the chunk's blocks and moves on by its tokens, if it fits. On an error nothing has changed.
    pub fn accept(&mut self, chunk: &Chunk, limits: &ChunkLimits) -> Result<(), String> {
        let (first, count) = (chunk.first_position as usize, chunk.num_tokens as usize);
        let (known, end) = (self.token_ids.len(), first + count);
        if let Allowed::Invalid(problem) = &self.allowed {
            return Err(problem.clone());
        }
        if count == 0 {
            return Err("`num_tokens` is 0, expected at least 1".to_owned());
        }
        if let Some(computed) = self.num_computed.filter(|computed| *computed != first) {
            return Err(format!("`first_position` is {first}, but {computed} positions are computed"));
        }
        if end > known {
            return Err(format!(
                "positions {first} to {} are asked for, but {known} tokens are known",
                end - 1
            ));
        }
        if chunk.sample && end != known {
            return Err(format!("`sample` after position {}, but {known} tokens are known", end - 1));
        }
        if let Some(block_id) = chunk.new_block_ids.iter().find(|id| **id as usize >= limits.num_blocks) {
            return Err(format!(
                "block {block_id} does not exist, the pool has {} blocks",
                limits.num_blocks
            ));
        }
        let num_blocks = self.block_table.len() + chunk.new_block_ids.len();
        if num_blocks * limits.block_size < end {
            let block_size = limits.block_size;
            return Err(format!("{num_blocks} blocks of {block_size} do not hold {end} positions"));
        }
        let vocab_size = limits.num_embeddings;
        if let Some(at) = self.token_ids[first..end].iter().position(|id| *id as usize >= vocab_size) {
            return Err(format!("the token at position {} is not below {vocab_size}", first + at));
        }
        self.block_table.extend_from_slice(&chunk.new_block_ids);
        self.num_computed = Some(end);
        Ok(())
    }

    /// Blocks that a chunk writes, by index in the table.
    pub fn written_blocks(&self, chunk: &Chunk, block_size: usize) -> &[u32] {
        let first = chunk.first_position as usize;
        &self.block_table[first / block_size..(first + chunk.num_tokens as usize).div_ceil(block_size)]
    }
}

/// What every chunk is checked against.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_embeddings: usize,
}

/// All started sequences by id.
#[derive(Debug, Default)]
pub struct SequenceTable {
    slots: Vec<Option<Sequence>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
}

impl SequenceTable {
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a sequence; false if the id is taken.
    pub fn insert(&mut self, id: u64, sequence: Sequence) -> bool {
        if self.by_id.contains_key(&id) {
            return false;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(sequence);
        self.by_id.insert(id, slot);
        true
    }

    /// Forgets a sequence; false if there is none.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.by_id.remove(&id) else { return false };
        self.slots[slot] = None;
        self.free.push(slot);
        true
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Slot of a sequence.
    pub fn find(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The sequence in a slot that [`SequenceTable::find`] gave.
    pub(super) fn at(&self, slot: usize) -> &Sequence {
        self.slots[slot].as_ref().expect("the slot of a started sequence is filled")
    }

    /// As [`SequenceTable::at`], for changing it.
    pub(super) fn at_mut(&mut self, slot: usize) -> &mut Sequence {
        self.slots[slot].as_mut().expect("the slot of a started sequence is filled")
    }
}
