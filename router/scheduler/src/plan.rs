//! What goes to the shard and what comes back, field by field as in `proto/trunkline/shard/v1/shard.proto`.
use trunkline_contract::{BlockKey, SlotId};

use std::fmt;
use std::sync::Arc;

/// Everything a shard does in one step, in this order: `ends`, `starts`, `window_drops`, `copies`, `discards`, then it
/// begins `restores`, computes `chunks`, and begins their `stores`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// 1 for the first plan after `ShardReady`, then one more each.
    pub step_id: u64,
    /// Wire ids of sequences that are not named again; the shard forgets them.
    pub ends: Vec<u64>,
    /// Sequences that begin, or come back after preemption under a new wire id.
    pub starts: Vec<SequenceStart>,
    /// Copies inside the device pool, done before any chunk runs.
    pub copies: Vec<BlockCopy>,
    /// The tokens to compute, at most one chunk per sequence. Empty in a plan of only ends, discards or restores.
    pub chunks: Vec<Chunk>,
    /// Blocks to read from the store; the step does not wait for them.
    pub restores: Vec<Restore>,
    /// Slots of the store to be emptied.
    pub discards: Vec<SlotId>,
    /// Blocks whose window part is dropped, done before the copies. They come with what needs their room.
    pub window_drops: Vec<u32>,
}

impl StepPlan {
    /// Tokens that the step computes.
    pub fn num_tokens(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.num_tokens)).sum()
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        // Starts and copies come with chunks.
        self.chunks.is_empty() && self.ends.is_empty() && self.restores.is_empty() && self.discards.is_empty()
    }
}

/// A sequence begins on the shard.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceStart {
    /// Wire id, chosen by the scheduler: unique, never 0, not the `SequenceId` of the request.
    pub sequence_id: u64,
    /// All tokens known: the prompt, then (after a preemption) the output so far.
    pub token_ids: Vec<u32>,
    /// How many of `token_ids` are the prompt.
    pub num_prompt_tokens: u32,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// The key before the first block; none if there is no store.
    pub root_key: Option<BlockKey>,
}

/// How to choose tokens. Limits are those of `shard.proto`; the scheduler passes the values through.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; else logits are divided by it. 0 .. 100.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches it; 1 keeps all. (0, 1].
    pub top_p: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Drop tokens whose probability is below `min_p` times the likeliest one's; 0 drops none. [0, 1].
    pub min_p: f32,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Which of the request's choices this sequence is.
    pub choice: u32,
    /// Subtracted from the logit of every token that the output holds. -2 .. 2.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output. -2 .. 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen; 1 changes nothing. > 0.
    pub repetition_penalty: f32,
    /// While the output is shorter than this, the tokens in `end_token_ids` are not sampled.
    pub min_tokens: u32,
    /// Tokens that end a sequence. In a request it may stay empty: the scheduler fills it from
    /// `SequenceRequest::end_token_ids` when it starts the sequence.
    pub end_token_ids: Vec<u32>,
    /// How many of the likeliest tokens to report with each sampled one, 0 .. 20.
    pub num_top_logprobs: u32,
    /// Report the logprob of the sampled token.
    pub logprobs: bool,
    /// Added to the logits of these tokens, before the penalties. -100 .. 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// If not empty: the only tokens that are sampled.
    pub allowed_token_ids: Vec<u32>,
    /// Keep the tokens whose information is nearest to the entropy, up to this probability; 1 keeps all. (0, 1].
    pub typical_p: f32,
    /// Report the logprob of each token of the prompt but the first, with so many of the likeliest, 0 .. 20; none: do
    /// not. Every position of the prompt is computed then, whatever the KV index has. Not in a constrained sequence.
    pub prompt_logprobs: Option<u32>,
    /// If any: the output carries it.
    pub watermark: Option<Watermark>,
}

/// A mark in the choice of tokens.
#[derive(Clone, Copy, PartialEq)]
pub struct Watermark {
    /// Part of the vocabulary that is green. 2^-8 .. 1 - 2^-8.
    pub gamma: f32,
    /// Added to the logits of green tokens. Above 0, at most 100.
    pub delta: f32,
    /// Key of the generator that says what is green: a secret, which is not shown.
    pub key: u64,
}

/// Without the key.
impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gamma, delta, key: _ } = self;
        f.debug_struct("Watermark").field("gamma", gamma).field("delta", delta).finish_non_exhaustive()
    }
}

impl Default for SamplingParams {
    /// Greedy, nothing filtered, biased or penalised, no logprobs.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            choice: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            min_tokens: 0,
            end_token_ids: Vec::new(),
            num_top_logprobs: 0,
            logprobs: false,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            typical_p: 1.0,
            prompt_logprobs: None,
            watermark: None,
        }
    }
}

/// Copies the first `num_tokens` positions of a block onto another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block to read.
    pub source_block_id: u32,
    /// Block to write.
    pub destination_block_id: u32,
    /// 1 .. block_size.
    pub num_tokens: u32,
}

/// A run of consecutive positions of one sequence, computed in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Wire id.
    pub sequence_id: u64,
    /// Position of the first token to compute.
    pub first_position: u32,
    /// How many tokens; at least 1. The newest may be the one that the step before samples.
    pub num_tokens: u32,
    /// Appended to the sequence's block table before the chunk runs; on the first chunk also those of a prefix hit.
    pub new_block_ids: Vec<u32>,
    /// Sample one token after the chunk's last position.
    pub sample: bool,
    /// Blocks that are full with this chunk and are to be stored, in order.
    pub stores: Vec<BlockStore>,
    /// Tokens that follow the known ones without having been sampled; known before the chunk runs.
    pub appended_token_ids: Vec<u32>,
    /// The only tokens that may be sampled; none: any.
    pub allowed_tokens: Option<TokenMask>,
    /// Which tokens may be sampled comes later, as a [`LateMask`]: the step samples when it is there.
    pub awaits_mask: bool,
    /// Report the logprob of each token of the prompt that follows a position of the chunk.
    pub score: bool,
}

/// What a chunk with `awaits_mask` may sample. Each such chunk gets one, after its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateMask {
    /// Wire id.
    pub sequence_id: u64,
    /// The only tokens that may be sampled; none: nothing is sampled.
    pub allowed_tokens: Option<TokenMask>,
}

/// Which tokens may be sampled: bit `i % 8` of byte `i / 8` is token `i`, one bit for each of the shard's vocabulary.
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(pub Arc<[u8]>);

impl std::fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let num_allowed: u32 = self.0.iter().map(|byte| byte.count_ones()).sum();
        write!(f, "TokenMask({num_allowed} of {} tokens)", 8 * self.0.len())
    }
}

/// Writes a block to a slot of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStore {
    /// Which block of the sequence's table.
    pub block_index: u32,
    /// The slot, in no other transfer.
    pub slot: SlotId,
}

/// Reads blocks from the store, up to the first that is not there as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Chosen by the scheduler, unique.
    pub restore_id: u64,
    /// In order; at least one.
    pub blocks: Vec<trunkline_kv::RestoredBlock>,
}

/// What became of transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Of blocks that were to be stored.
    pub stores: Vec<StoreOutcome>,
    /// Of restores.
    pub restores: Vec<RestoreOutcome>,
}

/// What became of a block that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOutcome {
    /// Where.
    pub slot: SlotId,
    /// The slot holds the block; false: it holds nothing.
    pub is_stored: bool,
}

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// Which.
    pub restore_id: u64,
    /// So many blocks, from the first on, were read and are what they should be.
    pub num_blocks: u32,
    /// From the first read to the end of the last, in microseconds.
    pub time_us: u64,
}

/// What came of one plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// The plan's.
    pub step_id: u64,
    /// One for each chunk with `sample` or `score`, in the order of the chunks, and one for each chunk that failed.
    pub sequences: Vec<SequenceResult>,
    /// Time the device worked on the step, in microseconds.
    pub device_time_us: u64,
}

/// What came of one chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceResult {
    /// Wire id.
    pub sequence_id: u64,
    /// Token or error.
    pub outcome: SequenceOutcome,
    /// If the chunk has `score`: of the prompt's tokens that follow its positions, in order. Empty with an error.
    pub scores: Vec<TokenScore>,
}

/// Token or error.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceOutcome {
    /// The token sampled after the chunk.
    Token(SampledToken),
    /// The chunk did not sample.
    Computed,
    /// This sequence failed; the others of the step are not touched.
    Error(SequenceError),
}

/// A sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// Below the shard's `vocab_size`.
    pub token_id: u32,
    /// Natural logarithm; 0 if logprobs were not asked for.
    pub logprob: f32,
    /// Likeliest first; as many as were asked for.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token of the prompt in the model's own distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// How many tokens are at least as likely, itself included.
    pub rank: u32,
    /// Likeliest first; as many as were asked for.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token.
    pub token_id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One sequence failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceError {
    /// What kind of failure.
    pub code: SequenceErrorCode,
    /// For the log; without prompt or token contents.
    pub message: String,
}

/// What kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceErrorCode {
    /// The shard named no kind that this build knows.
    Unspecified,
    /// A logit is NaN or all are infinite.
    NotFinite,
    /// The plan named a sequence, token, position or block that cannot be.
    InvalidPlan,
    /// The shard's result lacks the token that the plan asked for, or names one outside the vocabulary. Made by the
    /// scheduler, never on the wire.
    InvalidResult,
    /// The sequence's grammar cannot go on (`NextTokens::Failed`). Never on the wire.
    GrammarFailed,
}
