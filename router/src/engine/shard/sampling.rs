//! Converts `SamplingParams` between the generated type and the scheduler's type, field by field.

use trunkline_scheduler::{SamplingParams, TokenMask, Watermark};

use super::proto;

/// Converts parameters for the shard, without their mask, which [`NamedMasks`](super::NamedMasks) adds.
pub(super) fn sampling_to_proto(sampling: SamplingParams) -> proto::SamplingParams {
    let bias = |(token_id, bias)| proto::TokenBias { token_id, bias };
    let watermark = |Watermark { gamma, delta, key }| proto::Watermark { gamma, delta, key };
    proto::SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        seed: sampling.seed,
        choice: sampling.choice,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        min_tokens: sampling.min_tokens,
        end_token_ids: sampling.end_token_ids,
        num_top_logprobs: sampling.num_top_logprobs,
        logprobs: sampling.logprobs,
        logit_bias: sampling.logit_bias.into_iter().map(bias).collect(),
        allowed_tokens: Vec::new(),
        mask_id: 0,
        typical_p: sampling.typical_p,
        num_top_prompt_logprobs: sampling.prompt_logprobs.unwrap_or(0),
        watermark: sampling.watermark.map(watermark),
        top_n_sigma: sampling.top_n_sigma,
        xtc_probability: sampling.xtc_probability,
        xtc_threshold: sampling.xtc_threshold,
    }
}

/// Converts parameters as a shard does, with a mask that is not only named. `is_scored` says whether the sequence's
/// chunk asks for logprobs of the prompt, because the parameters do not distinguish 0 likeliest tokens from none.
pub(super) fn sampling_from_proto(sampling: proto::SamplingParams, is_scored: bool) -> SamplingParams {
    let watermark = |proto::Watermark { gamma, delta, key }| Watermark { gamma, delta, key };
    SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        seed: sampling.seed,
        choice: sampling.choice,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        min_tokens: sampling.min_tokens,
        end_token_ids: sampling.end_token_ids,
        num_top_logprobs: sampling.num_top_logprobs,
        logprobs: sampling.logprobs,
        logit_bias: sampling.logit_bias.into_iter().map(|bias| (bias.token_id, bias.bias)).collect(),
        allowed_tokens: (!sampling.allowed_tokens.is_empty())
            .then(|| TokenMask(sampling.allowed_tokens.into())),
        typical_p: sampling.typical_p,
        prompt_logprobs: is_scored.then_some(sampling.num_top_prompt_logprobs),
        watermark: sampling.watermark.map(watermark),
        top_n_sigma: sampling.top_n_sigma,
        xtc_probability: sampling.xtc_probability,
        xtc_threshold: sampling.xtc_threshold,
    }
}
