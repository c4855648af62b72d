//! The request and response bodies of `/v1/completions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trunkline_contract::range;
use trunkline_generation::adapters::{LoraScale, Named};
use trunkline_text::StopText;
use utoipa::ToSchema;

use super::body::body;
use super::logprobs::ChoiceLogprobs;
use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::prompts::Prompts;
use super::{CompletionLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Timings, Usage};
use crate::chat::structured::StructuredFields;
use crate::joined::Joined;
use trunkline_base::error::ApiError;
use trunkline_generation::request::avoid::AvoidFields;
use trunkline_generation::request::number::bounded;
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::retention::{CacheRetention, RawRetention};
use trunkline_generation::request::service_tier::Wanted;
use trunkline_generation::request::tokens::{LogitBias, TokenFields, TruncationSide};

body! {
    /// The body of a request to continue prompts.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = CompletionRequest)]
    pub struct Body {
        /// A string, a list of token ids, or a list of either, but not of both. Each is continued separately. Text gets
        /// the BOS token if the model asks for one; token ids are used unchanged.
        pub prompt: Prompts,
        /// The number of outputs to return for each prompt, at most 128 (`--max-best-of`); the default is 1. `index`
        /// counts those of the first prompt, then those of the next.
        #[schema(minimum = 1)]
        pub n: Option<i64>,
        /// The number of outputs to compute for each prompt, at least `n`, which is the default, and at most 128
        /// (`--max-best-of`). The `n` with the highest mean logprob are returned, best first. Not available in streams.
        #[schema(minimum = 1)]
        pub best_of: Option<i64>,
        /// The text that follows the output, for models with fill-in-the-middle tokens; others refuse it with
        /// `infill_tokens_missing`. Prompts are text, and `echo` and `truncate_prompt_tokens` are refused.
        pub suffix: Option<String>,
        /// If true, the text begins with the prompt. With `logprobs`, the lists then begin with the prompt's tokens.
        #[schema(default = false)]
        pub echo: Option<bool>,
        /// The most tokens to generate; the default is 16, or less if the context leaves less. 0 is allowed only with
        /// `echo`, for only the prompt.
        #[schema(minimum = 0)]
        pub max_tokens: Option<i64>,
        /// Returns the logprobs of the sampled tokens, and of this number of the likeliest at each position; by default
        /// none.
        #[schema(minimum = 0, maximum = 20)]
        pub logprobs: Option<i64>,
        /// If true, each piece, or the whole answer, has `timings`: tokens per second and cached tokens. Part of
        /// llama.cpp's API.
        #[schema(default = false)]
        pub timings_per_token: Option<bool>,
    }
}

/// A complete response, or a piece of a streamed response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionResponse)]
pub struct Answer<'a> {
    /// The id of the response, the same in all pieces.
    pub id: &'a str,
    /// The object type, always `text_completion`.
    pub object: &'static str,
    /// The time of creation in Unix seconds.
    pub created: u64,
    /// The name of the served model.
    pub model: &'a str,
    /// A digest of everything that influences outputs. Servers with equal fingerprints give bit-identical results.
    pub system_fingerprint: &'a str,
    /// The outputs, prompt by prompt. Empty in the piece that has `usage`.
    pub choices: Vec<Choice<'a>>,
    /// The token counts of the request. In a stream, present only with `include_usage`, and null before the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// The counts and times of the output up to here, or of the whole answer, if the request has `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One of the outputs, or a piece of it.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice<'a> {
    /// The text of the output, or its new part in a stream.
    #[schema(value_type = String)]
    pub text: Joined,
    /// The number of the output, from 0. The outputs of the first prompt come first.
    pub index: u32,
    /// The logprobs of the tokens, if requested.
    #[schema(value_type = Option<CompletionLogprobs>)]
    pub logprobs: Option<ChoiceLogprobs>,
    /// The prompt's logprobs, if requested: null for the first token, then for each position an object whose keys are
    /// token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// `stop` or `length`; null before the last piece.
    pub finish_reason: Option<&'static str>,
    /// The stop string, or the id from `stop_token_ids`, that ended the output; otherwise null. Present only with a
    /// `finish_reason`. Part of vLLM's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StopReason>)]
    pub stop_reason: Option<Option<StopReason>>,
    /// The token ids of the prompt, if the request has `return_token_ids`. Only in the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    /// The token ids of the output, or of its new part, if the request has `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}
