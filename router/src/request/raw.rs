//! A request as it was sent: every field optional, no value checked.

use trunkline_text::StopText;

use super::retention::RawRetention;
use super::service_tier::Wanted;
use super::tokens::TokenFields;

/// What a dialect calls the fields whose names differ between dialects.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// `max_tokens`, `max_completion_tokens` or `max_new_tokens`.
    pub max_new_tokens: &'static str,
    /// `min_tokens` or `min_new_tokens`.
    pub min_tokens: &'static str,
    /// `top_logprobs`, `logprobs` or `top_n_tokens`.
    pub top_logprobs: &'static str,
    /// The prompt.
    pub prompt: &'static str,
    /// `stop` or `stop_sequences`.
    pub stop: &'static str,
}

/// What the client sent, not yet checked. `None`: not sent.
#[derive(Debug, Clone, Default)]
pub struct RawParams {
    /// Most tokens to generate.
    pub max_new_tokens: Option<i64>,
    /// If `max_new_tokens` is not sent: at most this many, or as many as the context has room for if absent.
    pub default_max_new_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// 0 and -1: all.
    pub top_k: Option<i64>,
    /// Relative to the likeliest.
    pub min_p: Option<f64>,
    /// Any integer of 64 bits; random if absent.
    pub seed: Option<u64>,
    /// See `SamplingParams`.
    pub presence_penalty: Option<f64>,
    /// See `SamplingParams`.
    pub frequency_penalty: Option<f64>,
    /// See `SamplingParams`.
    pub repetition_penalty: Option<f64>,
    /// No end token before.
    pub min_tokens: Option<i64>,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// Keep the stop string.
    pub stop_text: Option<StopText>,
    /// Report logprobs, and with them so many of the likeliest tokens.
    pub logprobs: Option<i64>,
    /// Nearest to the entropy.
    pub typical_p: Option<f64>,
    /// What is said of single tokens.
    pub tokens: TokenFields,
    /// The answer shows the prompt, so that there need be no output.
    pub shows_prompt: bool,
    /// Namespace of the KV index.
    pub cache_salt: Option<String>,
    /// Seconds that the request may take, from its arrival to its last token.
    pub timeout: Option<f64>,
    /// Class in the queue.
    pub class: Wanted,
    /// How long the prompt is kept.
    pub retention: RawRetention,
    /// The output carries the server's watermark.
    pub watermark: bool,
}
