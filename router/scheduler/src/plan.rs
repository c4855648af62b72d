//! Plans for the shard and its results, field by field as in `proto/trunkline/shard/v1/shard.proto`.

use trunkline_contract::{BlockKey, SamplingParams, SlotId, TokenMask};

use crate::step_cost::StepWork;

/// One step of a shard. The shard does `ends`, `starts`, `window_drops`, `copies` and `discards` in this order, then
/// begins `restores`, computes `chunks`, and begins their `stores`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// 1 for the first plan after `ShardReady`, and one more for each later plan.
    pub step_id: u64,
    /// Wire ids of sequences that no later plan names; the shard forgets them.
    pub ends: Vec<u64>,
    /// Sequences that begin, or resume after preemption under a new wire id.
    pub starts: Vec<SequenceStart>,
    /// Copies inside the device pool.
    pub copies: Vec<BlockCopy>,
    /// The tokens to compute, in at most one chunk per sequence. Empty in a plan of only ends, discards or restores.
    pub chunks: Vec<Chunk>,
    /// Blocks to read from the store. The step does not wait for them.
    pub restores: Vec<Restore>,
    /// Slots of the store to empty.
    pub discards: Vec<SlotId>,
    /// Blocks whose window parts are dropped, because this plan needs the room.
    pub window_drops: Vec<u32>,
}

impl StepPlan {
    /// Returns the number of tokens that the step computes, without drafts.
    pub fn num_tokens(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.num_tokens)).sum()
    }

    /// Returns the work of all chunks.
    pub fn work(&self) -> StepWork {
        let mut work = StepWork::default();
        self.chunks.iter().for_each(|chunk| work.add(chunk.first_position, chunk.num_rows()));
        work
    }

    /// Returns true if the step does nothing.
    pub fn is_empty(&self) -> bool {
        // Starts and copies come with chunks.
        self.chunks.is_empty() && self.ends.is_empty() && self.restores.is_empty() && self.discards.is_empty()
    }
}

/// A sequence that begins on the shard.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceStart {
    /// The wire id. The scheduler chooses it: it is unique, never 0, and not the `SequenceId` of the request.
    pub sequence_id: u64,
    /// All known tokens: the prompt and, after a preemption, the output so far.
    pub token_ids: Vec<u32>,
    /// The number of leading `token_ids` that are the prompt.
    pub num_prompt_tokens: u32,
    /// The way in which its tokens are chosen.
    pub sampling: SamplingParams,
    /// The parent key of the first block; none if there is no store.
    pub root_key: Option<BlockKey>,
    /// Set if it gets a vector where others get a token: the position at which the second of two texts begins, or 0.
    pub pooled: Option<u32>,
}

/// Copies the first `num_tokens` positions of a block onto another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that is read.
    pub source_block_id: u32,
    /// The block that is written.
    pub destination_block_id: u32,
    /// From 1 to `block_size`.
    pub num_tokens: u32,
}

/// A run of consecutive positions of one sequence, computed in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence's wire id.
    pub sequence_id: u64,
    /// The position of the first token to compute.
    pub first_position: u32,
    /// The number of tokens, at least 1. The last one may be the token that the step before samples.
    pub num_tokens: u32,
    /// Blocks to append to the sequence's block table before the chunk runs. The first chunk includes the blocks of a
    /// prefix hit.
    pub new_block_ids: Vec<u32>,
    /// True if one token is sampled after the chunk's last position.
    pub sample: bool,
    /// Blocks that this chunk fills and that are to be stored, in order.
    pub stores: Vec<BlockStore>,
    /// Forced tokens, which follow the ones that the shard knows.
    pub appended_token_ids: Vec<u32>,
    /// The only tokens that may be sampled; none allows any.
    pub allowed_tokens: Option<TokenMask>,
    /// True if the mask is sent later, as a [`LateMask`]. The step waits for it before it samples.
    pub awaits_mask: bool,
    /// True if the logprob of each prompt token that follows a position of the chunk is reported.
    pub score: bool,
    /// Tokens that are likely to follow. They are computed as if they had been sampled, and a token is sampled after
    /// each. Neither `num_tokens` nor `stores` counts them.
    pub draft_token_ids: Vec<u32>,
    /// With `allowed_tokens`: the only tokens that may be sampled after each draft.
    pub draft_masks: Vec<TokenMask>,
    /// The most drafts that the shard's draft model adds.
    pub num_own_drafts: u32,
}

impl Chunk {
    /// Returns the rows of logits that the chunk asks for. `num_to_score` leading positions of its sequence are scored.
    pub fn rows(&self, num_to_score: u32) -> LogitsRows {
        let end = num_to_score.min(self.first_position + self.num_tokens);
        let num_scored = if self.score { end.saturating_sub(self.first_position) } else { 0 };
        LogitsRows { num_scored, sample: self.sample }
    }

    /// Returns the number of positions that are computed, drafts included.
    pub fn num_rows(&self) -> u32 {
        self.num_tokens + self.draft_token_ids.len() as u32 + self.num_own_drafts
    }
}

/// The positions of a chunk whose logits are computed: its first ones, which are scored, then its last one, after which
/// a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsRows {
    pub num_scored: u32,
    pub sample: bool,
}

impl LogitsRows {
    pub fn count(self) -> u32 {
        self.num_scored + u32::from(self.sample)
    }
}

/// The mask of a chunk with `awaits_mask`. Each such chunk gets one, after its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateMask {
    /// The sequence's wire id.
    pub sequence_id: u64,
    /// The only tokens that may be sampled; with none, nothing is sampled.
    pub allowed_tokens: Option<TokenMask>,
}

/// Writes a block to a slot of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStore {
    /// The block's index in the sequence's table.
    pub block_index: u32,
    /// The slot, which no other transfer uses.
    pub slot: SlotId,
}

/// Reads blocks from the store and stops at the first missing or damaged one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// A unique id that the scheduler chooses.
    pub restore_id: u64,
    /// The blocks in order; at least one.
    pub blocks: Vec<trunkline_kv::RestoredBlock>,
}

/// The outcomes of transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// The outcomes of stores.
    pub stores: Vec<StoreOutcome>,
    /// The outcomes of restores.
    pub restores: Vec<RestoreOutcome>,
}

/// The outcome of storing one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOutcome {
    /// The slot to be written.
    pub slot: SlotId,
    /// True if the slot holds the block now. Otherwise it holds nothing.
    pub is_stored: bool,
}

/// The outcome of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// The id of the restore.
    pub restore_id: u64,
    /// The number of leading blocks that were read without damage.
    pub num_blocks: u32,
    /// Microseconds from the first read to the end of the last.
    pub time_us: u64,
}

/// The result of one plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// The plan's step id.
    pub step_id: u64,
    /// The results of chunks with `sample` or `score` and of chunks that failed, in the order of the chunks.
    pub sequences: Vec<SequenceResult>,
    /// Microseconds that the device worked on the step.
    pub device_time_us: u64,
    /// The part of it that the shard's draft model took to draft.
    pub draft_time_us: u64,
}

/// The result of one chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceResult {
    /// The sequence's wire id.
    pub sequence_id: u64,
    /// The sampled token, or the error.
    pub outcome: SequenceOutcome,
    /// The tokens sampled after the first one, if drafts of the chunk were right.
    pub more_tokens: Vec<SampledToken>,
    /// The drafts that the shard's draft model added.
    pub num_own_drafts: u32,
    /// If the chunk has `score`, the scores of the prompt tokens that follow its positions, in order. Empty with an
    /// error.
    pub scores: Vec<TokenScore>,
}

/// The outcome of one chunk.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceOutcome {
    /// The token sampled after the chunk.
    Token(SampledToken),
    /// The vector of the prompt that the chunk completes.
    Vector(Vec<f32>),
    /// The chunk was computed and did not sample.
    Computed,
    /// The sequence failed. The other sequences of the step are not affected.
    Error(SequenceError),
}

/// A sampled token with its logprobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// The token, less than the shard's `vocab_size`.
    pub token_id: u32,
    /// The natural logarithm of its probability; 0 if logprobs were not requested.
    pub logprob: f32,
    /// The likeliest tokens, most likely first, as many as were requested.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token of the prompt in the model's own distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScore {
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The number of tokens that are at least as likely, itself included.
    pub rank: u32,
    /// The likeliest tokens, most likely first, as many as were requested.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The id of the token.
    pub token_id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// The failure of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceError {
    /// The kind of failure.
    pub code: SequenceErrorCode,
    /// A message for the log, without prompt or token contents.
    pub message: String,
}

/// The kind of a sequence's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceErrorCode {
    /// The shard named no kind that this build knows.
    Unspecified,
    /// A logit is NaN, or all logits are infinite.
    NotFinite,
    /// The plan named a sequence, token, position or block that cannot exist.
    InvalidPlan,
    /// The shard's result lacks the token that the plan asked for, or names one outside the vocabulary. Only the
    /// scheduler reports this.
    InvalidResult,
    /// The sequence's grammar cannot go on (`NextTokens::Failed`). Only the scheduler reports this.
    GrammarFailed,
    /// Two shards in a row were lost while they computed the sequence, the second one by itself. Only the scheduler
    /// reports this.
    CrashedShard,
}
