//! Requests and answers of `/v1/completions`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trunkline_text::StopText;
use utoipa::ToSchema;

use super::body::body;
use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::prompts::Prompts;
use super::{CompletionLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Usage};
use crate::api::chat::structured::StructuredFields;
use crate::error::ApiError;
use crate::request::raw::RawParams;
use crate::request::retention::{CacheRetention, RawRetention};
use crate::request::service_tier::Wanted;
use crate::request::tokens::{LogitBias, TokenFields};

body! {
    /// Body of a request.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = CompletionRequest)]
    pub struct Body {
        /// A string or a list of token ids; or a list of these, each continued on its own.
        pub prompt: Prompts,
        /// Outputs to show for each prompt.
        #[schema(minimum = 1)]
        pub n: Option<i64>,
        /// Outputs to compute for each prompt, of which the `n` with the highest mean logprob are shown; not with
        /// `stream`.
        #[schema(minimum = 1)]
        pub best_of: Option<i64>,
        /// Put the prompt before the output; with `logprobs` their lists begin with the prompt's.
        pub echo: Option<bool>,
        /// Most tokens to generate; default 16. 0 only with `echo`.
        #[schema(minimum = 0)]
        pub max_tokens: Option<i64>,
        /// Report logprobs of the output's tokens and of so many of the likeliest in each place.
        #[schema(minimum = 0, maximum = 20)]
        pub logprobs: Option<i64>,
    }
}

/// A whole answer, or a piece of a streamed one.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionResponse)]
pub struct Answer<'a> {
    /// Names the answer, the same in all pieces.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: &'a str,
    /// The outputs, prompt by prompt; none in the piece that carries `usage`.
    pub choices: Vec<Choice<'a>>,
    /// What it took; in a stream only with `include_usage`, null before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// A choice.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice<'a> {
    /// The output, or what is new of it.
    pub text: Cow<'a, str>,
    /// Number of the output, from 0: those of the first prompt come first.
    pub index: u32,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// If asked for: null for the first token, then one object of token ids for each place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// `stop` or `length`; null before the end.
    pub finish_reason: Option<&'static str>,
    /// With it: the stop string or the id of `stop_token_ids` that ended the output, else null; vLLM's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StopReason>)]
    pub stop_reason: Option<Option<StopReason>>,
}
