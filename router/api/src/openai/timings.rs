//! llama.cpp's `timings`, from which chat UIs show tokens per second.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use trunkline_generation::generate::Usage;

/// Token counts and times up to this chunk, or of the whole reply. Several replies count together, and the longest time
/// counts.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct Timings {
    /// The number of prompt tokens that were found in the KV cache.
    pub cache_n: u32,
    /// The number of prompt tokens that were computed.
    pub prompt_n: u32,
    /// The time from the first step to the first token, in milliseconds.
    pub prompt_ms: f64,
    /// `prompt_ms` for each computed token of the prompt.
    pub prompt_per_token_ms: f64,
    /// The computed tokens of the prompt per second.
    pub prompt_per_second: f64,
    /// The number of generated tokens.
    pub predicted_n: u32,
    /// The time from the first generated token to the last, in milliseconds.
    pub predicted_ms: f64,
    /// `predicted_ms` for each token after the first.
    pub predicted_per_token_ms: f64,
    /// The generated tokens after the first per second.
    pub predicted_per_second: f64,
    /// The number of drafts that were computed. Absent without drafts, like the next field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<u32>,
    /// The number of drafts that became part of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<u32>,
}

impl From<Usage> for Timings {
    fn from(usage: Usage) -> Self {
        let prompt_n = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let num_later = usage.output_tokens.saturating_sub(1);
        let (prompt, predicted) =
            (Rate::new(prompt_n, usage.prompt_time), Rate::new(num_later, usage.output_time));
        let num_drafts = usage.accepted_drafts + usage.rejected_drafts;
        Self {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms: prompt.ms,
            prompt_per_token_ms: prompt.per_token_ms,
            prompt_per_second: prompt.per_second,
            predicted_n: usage.output_tokens,
            predicted_ms: predicted.ms,
            predicted_per_token_ms: predicted.per_token_ms,
            predicted_per_second: predicted.per_second,
            draft_n: (num_drafts > 0).then_some(num_drafts),
            draft_n_accepted: (num_drafts > 0).then_some(usage.accepted_drafts),
        }
    }
}

/// The speed of a number of tokens; 0 for none.
struct Rate {
    ms: f64,
    per_token_ms: f64,
    per_second: f64,
}

impl Rate {
    fn new(num_tokens: u32, time: Duration) -> Self {
        let (tokens, ms) = (f64::from(num_tokens), time.as_secs_f64() * 1e3);
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Self { ms, per_token_ms: ratio(ms, tokens), per_second: ratio(1e3 * tokens, ms) }
    }
}
