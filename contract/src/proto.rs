//! The messages of `shard.proto`, which `make proto` generates.

use std::fmt;

use crate::mask::TokenMask;
use crate::sampling::SamplingParams as Params;

include!("generated/trunkline.shard.v1.rs");

impl StepPlan {
    /// Returns the number of tokens that the step computes, without drafts.
    pub fn num_tokens(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.num_tokens)).sum()
    }

    /// Returns true if the step does nothing.
    pub fn is_empty(&self) -> bool {
        // Starts and copies come with chunks.
        self.chunks.is_empty() && self.ends.is_empty() && self.restores.is_empty() && self.discards.is_empty()
    }
}

impl Chunk {
    /// Returns the number of positions that are computed, drafts included.
    pub fn num_rows(&self) -> u32 {
        self.num_tokens + self.draft_token_ids.len() as u32 + self.num_own_drafts
    }
}

/// Does not show the key, which is secret.
impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gamma, delta, key: _ } = self;
        f.debug_struct("Watermark").field("gamma", gamma).field("delta", delta).finish_non_exhaustive()
    }
}

impl From<Params> for SamplingParams {
    fn from(params: Params) -> Self {
        let bias = |(token_id, bias)| TokenBias { token_id, bias };
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            seed: params.seed,
            choice: params.choice,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            min_tokens: params.min_tokens,
            end_token_ids: params.end_token_ids,
            num_top_logprobs: params.num_top_logprobs,
            logprobs: params.logprobs,
            logit_bias: params.logit_bias.into_iter().map(bias).collect(),
            allowed_tokens: params.allowed_tokens.map(Into::into).unwrap_or_default(),
            mask_id: 0,
            typical_p: params.typical_p,
            num_top_prompt_logprobs: params.prompt_logprobs.unwrap_or(0),
            watermark: params.watermark,
            top_n_sigma: params.top_n_sigma,
            xtc_probability: params.xtc_probability,
            xtc_threshold: params.xtc_threshold,
        }
    }
}

/// Reads parameters as a shard does, with a mask that is not only named. A chunk says whether the prompt is scored.
impl From<SamplingParams> for Params {
    fn from(params: SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            seed: params.seed,
            choice: params.choice,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            min_tokens: params.min_tokens,
            end_token_ids: params.end_token_ids,
            num_top_logprobs: params.num_top_logprobs,
            logprobs: params.logprobs,
            logit_bias: params.logit_bias.into_iter().map(|bias| (bias.token_id, bias.bias)).collect(),
            allowed_tokens: TokenMask::from_bytes(&params.allowed_tokens),
            typical_p: params.typical_p,
            prompt_logprobs: Some(params.num_top_prompt_logprobs),
            watermark: params.watermark,
            top_n_sigma: params.top_n_sigma,
            xtc_probability: params.xtc_probability,
            xtc_threshold: params.xtc_threshold,
        }
    }
}
