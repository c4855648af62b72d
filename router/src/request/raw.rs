//! The fields of a request before any check. Every field is optional.

use trunkline_text::StopText;

use super::retention::RawRetention;
use super::service_tier::Wanted;
use super::tokens::TokenFields;

/// The names that a dialect has for fields that every dialect has, for error messages.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// `max_tokens`, `max_completion_tokens` or `max_new_tokens`.
    pub max_new_tokens: &'static str,
    pub min_tokens: &'static str,
    /// `top_logprobs`, `logprobs` or `top_n_tokens`.
    pub top_logprobs: &'static str,
    pub prompt: &'static str,
    pub stop: &'static str,
}

/// The fields that the client sent. `None` means that a field was not sent.
#[derive(Debug, Clone, Default)]
pub struct RawParams {
    /// The most tokens to generate.
    pub max_new_tokens: Option<i64>,
    /// If `max_new_tokens` is not sent: at most this many, or as many as the context has room for if absent.
    pub default_max_new_tokens: Option<u32>,
    /// The sampling temperature. 0 is greedy.
    pub temperature: Option<f64>,
    /// Samples from the smallest set of tokens whose total probability reaches this value.
    pub top_p: Option<f64>,
    /// Samples from this many of the likeliest tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Drops tokens below this part of the likeliest one's probability.
    pub min_p: Option<f64>,
    /// The seed of sampling; random if absent.
    pub seed: Option<u64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    /// Generates no end token before this many tokens.
    pub min_tokens: Option<i64>,
    /// Continues after an end token of the model.
    pub ignore_eos: bool,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// Says whether the output keeps the stop string that ends it.
    pub stop_text: Option<StopText>,
    /// Reports logprobs, with this many of the likeliest tokens in each place.
    pub logprobs: Option<i64>,
    /// Keeps the tokens whose information is nearest to the entropy, up to this probability.
    pub typical_p: Option<f64>,
    /// The fields that name single tokens.
    pub tokens: TokenFields,
    /// Set if the answer shows the prompt. `max_new_tokens` may then be 0.
    pub shows_prompt: bool,
    /// The namespace in the KV index, within the tenant's own.
    pub cache_salt: Option<String>,
    /// Seconds that the request may take, from its arrival to its last token.
    pub timeout: Option<f64>,
    /// The class in the queue that the client asks for.
    pub class: Wanted,
    /// The fields that say how long the prompt stays cached.
    pub retention: RawRetention,
    /// The output carries the server's watermark.
    pub watermark: bool,
}
