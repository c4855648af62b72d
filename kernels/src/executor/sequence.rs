//! Started sequences: their tokens and block tables, and the checks of their chunks.

use std::collections::HashMap;
use std::ops::Range;

use super::adapters::AdapterUse;
use super::block_transfers::KeyChain;
use super::late_masks::LateMask;
use crate::sampling::processors::check_mask_size;
use crate::sampling::{SamplingParams, TokenCounts};

/// The most tokens that a sequence may start with. Positions are u32, and a longer list is a mistake.
const MAX_TOKENS: usize = 1 << 30;

/// A run of consecutive positions of one sequence: `Chunk` in shard.proto.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub sequence_id: u64,
    pub first_position: u32,
    /// Number of tokens to compute, at least 1.
    pub num_tokens: u32,
    /// Blocks to append to the block table before computing.
    pub new_block_ids: Vec<u32>,
    /// If set, samples one token after the last position and appends it.
    pub sample: bool,
    /// If set, reports the logprob of each prompt token that follows a position of the chunk.
    pub score: bool,
    /// With `sample`: tokens that are likely to follow. They are computed as if they had been sampled, and a token is
    /// sampled after each. The samples count up to the first one that differs from its draft.
    pub draft_token_ids: Vec<u32>,
    /// If the next sample has a mask: one for the sample after each draft, in the format of
    /// [`Executor::allow`](super::Executor::allow).
    pub draft_masks: Vec<Vec<u8>>,
}

impl Chunk {
    /// The positions that are computed: `num_tokens`, then the drafts.
    pub(super) fn num_rows(&self) -> usize {
        self.num_tokens as usize + self.draft_token_ids.len()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SequenceCapacity {
    /// Positions in the whole pool.
    pub num_tokens: usize,
    pub num_blocks: usize,
    pub vocab_size: usize,
}

/// A sequence reserves room for up to this many tokens when it starts, so that steps do not allocate. Untouched room
/// takes no physical memory.
const MAX_RESERVED_TOKENS: usize = 1 << 18;

/// The tokens that the next sample of a sequence may choose.
#[derive(Debug, Default)]
pub(super) enum Allowed {
    #[default]
    All,
    /// The tokens of a mask in the format of [`Executor::allow`](super::Executor::allow).
    Mask(Vec<u8>),
    /// The tokens of a mask that arrives while the step runs.
    Late(LateMask),
    /// The mask was invalid. The chunk fails with this message.
    Invalid(String),
}

#[derive(Debug)]
pub struct Sequence {
    pub token_ids: Vec<u32>,
    pub(super) num_prompt_tokens: usize,
    pub block_table: Vec<u32>,
    /// Number of positions computed by chunks or found in the prefix cache; `None` until the first chunk.
    num_computed: Option<usize>,
    pub(super) sampling: SamplingParams,
    pub(super) counts: TokenCounts,
    pub(super) allowed: Allowed,
    /// The masks of the samples after drafts.
    draft_masks: Vec<Vec<u8>>,
    /// Set if the sequence gets a vector: the sums of the outputs of its positions, empty unless they are needed.
    pub(super) sums: Option<Vec<f64>>,
    /// The position at which the second of two texts begins.
    pub(super) second_text: usize,
    /// The keys of the sequence's blocks; `None` if they are not stored.
    pub(super) keys: Option<KeyChain>,
    pub(super) adapter: Option<AdapterUse>,
}

impl Sequence {
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
        let num_mask_bytes = capacity.vocab_size.div_ceil(8);
        if let Some(mask) = sampling.allowed_tokens.as_ref().filter(|mask| mask.0.len() != num_mask_bytes) {
            return Err(format!("a mask of {} bytes, expected {num_mask_bytes}", mask.0.len()));
        }
        // One more than positions: the token that is sampled after the last one.
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
            draft_masks: Vec::new(),
            sums: None,
            second_text: usize::MAX,
            keys: None,
            adapter: None,
        })
    }

    /// The positions of a chunk with `score` that a prompt token follows; empty without `score`.
    pub(super) fn scored_positions(&self, chunk: &Chunk) -> Range<usize> {
        let first = chunk.first_position as usize;
        let end = (first + chunk.num_tokens as usize).min(self.num_prompt_tokens - 1);
        if chunk.score { first..end.max(first) } else { first..first }
    }

    /// Number of positions computed so far, including prefix hits.
    pub(super) fn num_computed(&self) -> usize {
        self.num_computed.unwrap_or(0)
    }

    /// Appends tokens to the output that were not sampled.
    pub(super) fn append(&mut self, token_ids: &[u32]) {
        token_ids.iter().for_each(|token_id| self.push_sampled(*token_id));
    }

    /// Drops all tokens but the first `num_tokens`, of which the prompt is a part.
    pub(super) fn rewind(&mut self, num_tokens: usize, vocab_size: usize) -> Result<(), String> {
        let known = self.num_prompt_tokens..=self.token_ids.len();
        if !known.contains(&num_tokens) {
            return Err(format!("{num_tokens} tokens, expected {} to {}", known.start(), known.end()));
        }
        self.token_ids.truncate(num_tokens);
        self.num_computed = self.num_computed.map(|computed| computed.min(num_tokens));
        self.counts = TokenCounts::new(&self.sampling, &self.token_ids, self.num_prompt_tokens, vocab_size);
        Ok(())
    }

    /// Returns true if the next sample waits for a mask.
    pub(super) fn awaits_mask(&self) -> bool {
        matches!(self.allowed, Allowed::Late(_))
    }

    /// The masks of the sample after `num_drafts` drafts, in the format of [`Allowed::Mask`]. Waits for a late mask.
    pub(super) fn masks(&self, num_drafts: usize) -> [Option<&[u8]>; 2] {
        let next = match &self.allowed {
            Allowed::Mask(mask) if num_drafts == 0 => Some(&mask[..]),
            Allowed::Mask(_) => self.draft_masks.get(num_drafts - 1).map(Vec::as_slice),
            Allowed::Late(late) => Some(late.wait()),
            Allowed::All | Allowed::Invalid(_) => None,
        };
        [next, self.sampling.allowed_tokens.as_ref().map(|mask| &mask.0[..])]
    }

    /// Restricts the next sample. A mask of the wrong size fails the next chunk.
    pub(super) fn allow(&mut self, mask: Vec<u8>, vocab_size: usize) {
        self.allowed = match check_mask_size(mask.len(), vocab_size) {
            Ok(()) => Allowed::Mask(mask),
            Err(problem) => Allowed::Invalid(problem),
        };
    }

    pub(super) fn push_sampled(&mut self, token_id: u32) {
        self.token_ids.push(token_id);
        self.counts.push_output(token_id);
    }

    /// Checks that a chunk with drafts samples, with a mask for each draft if its first sample has one.
    fn check_drafts(&self, chunk: &Chunk) -> Result<(), String> {
        let num_drafts = chunk.draft_token_ids.len();
        if num_drafts > 0 && (!chunk.sample || matches!(self.allowed, Allowed::Late(_))) {
            return Err("`draft_token_ids` without `sample`, or with a late mask".to_owned());
        }
        let (num_masks, num_bytes) = match &self.allowed {
            Allowed::Mask(mask) => (num_drafts, mask.len()),
            Allowed::All | Allowed::Late(_) | Allowed::Invalid(_) => (0, 0),
        };
        if chunk.draft_masks.len() == num_masks
            && chunk.draft_masks.iter().all(|mask| mask.len() == num_bytes)
        {
            return Ok(());
        }
        Err(format!("{} `draft_masks`, expected {num_masks} of {num_bytes} bytes", chunk.draft_masks.len()))
    }

    /// Checks a chunk, appends its blocks and counts its positions as computed. Changes nothing on an error.
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
                "positions {first} to {} are requested, but only {known} tokens are known",
                end - 1
            ));
        }
        if chunk.sample && end != known {
            return Err(format!("`sample` after position {}, but {known} tokens are known", end - 1));
        }
        if self.sums.is_some() && (chunk.score || !chunk.draft_token_ids.is_empty()) {
            return Err("`score` or `draft_token_ids` in a sequence that gets a vector".to_owned());
        }
        self.check_drafts(chunk)?;
        let num_positions = first + chunk.num_rows();
        if let Some(block_id) = chunk.new_block_ids.iter().find(|id| **id as usize >= limits.num_blocks) {
            return Err(format!(
                "block {block_id} does not exist, the pool has {} blocks",
                limits.num_blocks
            ));
        }
        let num_blocks = self.block_table.len() + chunk.new_block_ids.len();
        if num_blocks * limits.block_size < num_positions {
            let block_size = limits.block_size;
            return Err(format!("{num_blocks} blocks of {block_size} do not hold {num_positions} positions"));
        }
        let vocab_size = limits.num_embeddings;
        if num_positions > limits.max_positions {
            return Err(format!("{num_positions} positions, the model has {}", limits.max_positions));
        }
        if limits.is_whole && (first > 0 || end != known) {
            return Err(format!("a chunk of {count} tokens, but the model needs all {known} at once"));
        }
        if let Some(at) = self.token_ids[first..end].iter().position(|id| *id as usize >= vocab_size) {
            return Err(format!("the token at position {} is not below {vocab_size}", first + at));
        }
        if let Some(draft) = chunk.draft_token_ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(format!("the draft {draft} is not below {vocab_size}"));
        }
        self.block_table.extend_from_slice(&chunk.new_block_ids);
        self.draft_masks.clone_from(&chunk.draft_masks);
        self.num_computed = Some(end);
        Ok(())
    }

    /// Counts the position of a draft as computed, because the sampled token is the same.
    pub(super) fn accept_draft(&mut self) {
        if let Some(num_computed) = &mut self.num_computed {
            *num_computed += 1;
        }
    }

    /// The ids of the blocks that a chunk writes.
    pub fn written_blocks(&self, chunk: &Chunk, block_size: usize) -> &[u32] {
        let first = chunk.first_position as usize;
        &self.block_table[first / block_size..(first + chunk.num_rows()).div_ceil(block_size)]
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_embeddings: usize,
    pub max_positions: usize,
    /// A chunk must have all tokens of its sequence.
    pub is_whole: bool,
}

/// All started sequences, in slots that are stable while they run.
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

    /// Adds a sequence. Returns false if the id is in use.
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

    /// Removes a sequence. Returns false if there is none with this id.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.by_id.remove(&id) else { return false };
        self.slots[slot] = None;
        self.free.push(slot);
        true
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten()
    }

    pub fn find(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The sequence in a slot returned by [`SequenceTable::find`].
    pub(super) fn at(&self, slot: usize) -> &Sequence {
        self.slots[slot].as_ref().expect("the slot of a started sequence is filled")
    }

    pub(super) fn at_mut(&mut self, slot: usize) -> &mut Sequence {
        self.slots[slot].as_mut().expect("the slot of a started sequence is filled")
    }
}
