//! Started sequences: their tokens, their blocks, and whether a chunk fits them.

use std::collections::HashMap;
use std::ops::Range;

use super::block_transfers::KeyChain;
use crate::sampling::{SamplingParams, TokenCounts};

/// Tokens of a sequence that starts, at most: positions are u32, and a longer list is a mistake.
const MAX_TOKENS: usize = 1 << 30;

/// A run of consecutive positions of one sequence, as `Chunk` in shard.proto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which sequence.
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
pub(super) struct SequenceCapacity {
    /// Positions and blocks of the whole pool.
    pub(super) num_tokens: usize,
    pub(super) num_blocks: usize,
    /// Rows of the output head.
    pub(super) vocab_size: usize,
}

/// Room is made at once for this many tokens, as far as the pool holds them, so that no step makes it. Untouched room
/// takes no memory.
const MAX_RESERVED_TOKENS: usize = 1 << 18;

/// What the next sample of a sequence may choose.
#[derive(Debug, Default)]
pub(super) enum Allowed {
    /// Any token.
    #[default]
    All,
    /// Those whose bit is set: bit `i % 8` of byte `i / 8` is token `i`.
    Mask(Vec<u8>),
    /// A mask that is none; the text says why, and the chunk fails with it.
    Invalid(String),
}

/// One started sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and output.
    pub(super) token_ids: Vec<u32>,
    pub(super) num_prompt_tokens: usize,
    pub(super) block_table: Vec<u32>,
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
    pub(super) fn new(
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
        sampling.check()?;
        let counts = TokenCounts::new(&sampling, &token_ids, num_prompt_tokens, capacity.vocab_size);
        let allowed_always = sampling.allowed_mask(capacity.vocab_size);
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

    /// The masks of the next sample, each as `Allowed::Mask`.
    pub(super) fn masks(&self) -> [Option<&[u8]>; 2] {
        let next = match &self.allowed {
            Allowed::Mask(mask) => Some(&mask[..]),
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
    pub(super) fn accept(&mut self, chunk: &Chunk, limits: &ChunkLimits) -> Result<(), String> {
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
    pub(super) fn written_blocks(&self, chunk: &Chunk, block_size: usize) -> &[u32] {
        let first = chunk.first_position as usize;
        &self.block_table[first / block_size..(first + chunk.num_tokens as usize).div_ceil(block_size)]
    }
}

/// What every chunk is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkLimits {
    pub(super) num_blocks: usize,
    pub(super) block_size: usize,
    pub(super) num_embeddings: usize,
}

/// All started sequences by id.
#[derive(Debug, Default)]
pub(super) struct SequenceTable {
    slots: Vec<Option<Sequence>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
}

impl SequenceTable {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a sequence; false if the id is taken.
    pub(super) fn insert(&mut self, id: u64, sequence: Sequence) -> bool {
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
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.by_id.remove(&id) else { return false };
        self.slots[slot] = None;
        self.free.push(slot);
        true
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Slot of a sequence.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ChunkLimits = ChunkLimits { num_blocks: 4, block_size: 16, num_embeddings: 100 };

    const CAPACITY: SequenceCapacity = SequenceCapacity { num_tokens: 64, num_blocks: 4, vocab_size: 100 };

    fn sequence() -> Sequence {
        Sequence::new((0..20).collect(), 18, SamplingParams::default(), &CAPACITY).unwrap()
    }

    fn chunk(first_position: u32, num_tokens: u32, new_block_ids: &[u32], sample: bool) -> Chunk {
        Chunk {
            sequence_id: 1,
            first_position,
            num_tokens,
            new_block_ids: new_block_ids.to_vec(),
            sample,
            score: false,
        }
    }

    #[test]
    fn chunks_that_cannot_be_are_refused_and_change_nothing() {
        let cases = [
            (chunk(0, 0, &[0], false), "`num_tokens` is 0"),
            (chunk(3, 18, &[0, 1], false), "20 tokens are known"),
            (chunk(0, 19, &[0, 1], true), "`sample` after position 18, but 20"),
            (chunk(0, 20, &[0, 4], true), "block 4 does not exist, the pool has 4 blocks"),
            (chunk(0, 20, &[0], true), "1 blocks of 16 do not hold 20 positions"),
        ];
        let mut s = sequence();
        for (bad, message) in cases {
            let error = s.accept(&bad, &LIMITS).unwrap_err();
            assert!(error.contains(message), "{bad:?}: {error}");
            assert!(s.block_table.is_empty());
        }
        s.token_ids[7] = 100;
        assert_eq!(
            s.accept(&chunk(0, 8, &[1], false), &LIMITS).unwrap_err(),
            "the token at position 7 is not below 100"
        );
        s.accept(&chunk(8, 4, &[1], false), &LIMITS).unwrap();
        let error = s.accept(&chunk(8, 4, &[], false), &LIMITS).unwrap_err();
        assert_eq!(error, "`first_position` is 8, but 12 positions are computed");
        s.accept(&chunk(12, 8, &[3], true), &LIMITS).unwrap();
        assert_eq!(s.written_blocks(&chunk(12, 8, &[], true), 16), [1, 3]);
    }

    #[test]
    fn bad_starts_are_refused() {
        let start = |tokens: Vec<u32>, num_prompt| {
            Sequence::new(tokens, num_prompt, SamplingParams::default(), &CAPACITY)
        };
        assert!(start(vec![], 0).unwrap_err().contains("`token_ids` has 0 tokens"));
        assert!(start(vec![1], 2).unwrap_err().contains("`num_prompt_tokens` is 2, expected 1 to 1"));
        assert!(start(vec![1], 0).is_err());
    }

    #[test]
    fn slots_are_reused_and_ids_are_unique() {
        let mut table = SequenceTable::default();
        assert!(table.insert(5, sequence()) && table.insert(9, sequence()));
        assert!(!table.insert(5, sequence()));
        let slot = table.find(5).unwrap();
        assert!(table.remove(5) && !table.remove(5));
        assert!(table.insert(6, sequence()));
        assert_eq!(table.find(6), Some(slot));
        table.clear();
        assert!(table.is_empty() && table.find(9).is_none());
    }
}
