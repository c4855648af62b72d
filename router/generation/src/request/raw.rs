//! The fields of a request before any check. Every field is optional.

use trunkline_contract::RequestNumbers;
use trunkline_text::StopText;

use super::avoid::AvoidFields;
use super::retention::RawRetention;
use super::service_tier::Wanted;
use super::tokens::TokenFields;

/// The names that a dialect has for fields that every dialect has, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldNames {
    /// `max_tokens`, `max_completion_tokens` or `max_new_tokens`.
    pub max_new_tokens: &'static str,
    pub min_tokens: &'static str,
    /// `top_logprobs`, `logprobs` or `top_n_tokens`.
    pub top_logprobs: &'static str,
    pub prompt: &'static str,
    pub stop: &'static str,
}

impl Default for FieldNames {
    /// OpenAI's names for chats.
    fn default() -> Self {
        Self {
            max_new_tokens: "max_tokens",
            min_tokens: "min_tokens",
            top_logprobs: "top_logprobs",
            prompt: "messages",
            stop: "stop",
        }
    }
}

/// A request's own limit of its tokens, as Ollama's `num_ctx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextField {
    pub field: &'static str,
    pub num_tokens: i64,
}

/// The fields that the client sent. `None` means that a field was not sent.
#[derive(Debug, Clone, Default)]
pub struct RawParams {
    pub names: FieldNames,
    /// True if the model's defaults stand for fields that the client did not send.
    pub takes_defaults: bool,
    pub max_new_tokens: Option<i64>,
    /// If `max_new_tokens` is not sent: at most this many, or as many as the context has room for if absent.
    pub default_max_new_tokens: Option<u32>,
    /// The most tokens of prompt and output, if the request limits them. Nothing is cut to fit.
    pub context: Option<ContextField>,
    pub numbers: RequestNumbers,
    /// The seed of sampling; random if absent.
    pub seed: Option<u64>,
    pub min_tokens: Option<i64>,
    pub ignore_eos: bool,
    pub stops: Vec<String>,
    /// Says whether the output keeps the stop string that ends it.
    pub stop_text: StopText,
    /// Reports logprobs, with this many of the likeliest tokens in each place.
    pub logprobs: Option<i64>,
    pub tokens: TokenFields,
    pub avoid: AvoidFields,
    /// True if the answer shows the prompt. `max_new_tokens` may then be 0.
    pub shows_prompt: bool,
    /// The namespace in the KV index, within the tenant's own.
    pub cache_salt: Option<String>,
    /// Seconds that the request may take, from its arrival to its last token.
    pub timeout: Option<f64>,
    pub class: Wanted,
    pub retention: RawRetention,
    pub watermark: bool,
    /// Says whether the output may be drafted; `None` leaves it to the server.
    pub speculation: Option<bool>,
    /// A guess at much of the output.
    pub prediction: Option<String>,
}
