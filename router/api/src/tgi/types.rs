//! The request and response bodies of TGI's routes that generate text.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use trunkline_text::Tokenizer;
use utoipa::ToSchema;

use crate::joined::Joined;
use crate::openai::{OneOrMany, Seed};
use crate::sampling_body::sampling_body;
use trunkline_generation::generate::{FinishReason, ScoredPrompt};

/// Replaces lower logprobs, including that of probability 0, because JSON has no infinity.
pub(super) const LOWEST_LOGPROB: f32 = -9999.0;

/// The body of a request to generate text.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = GenerateRequest)]
pub struct Body {
    /// The text to continue, not empty. It gets the model's BOS token if it asks for one.
    pub inputs: String,
    /// The parameters of the generation, see below.
    #[serde(default)]
    pub parameters: Option<Parameters>,
    /// If true, the answer is a stream of server-sent events, on all three routes.
    #[schema(default = false)]
    pub stream: Option<bool>,
}

sampling_body! { tgi:
    /// The parameters of a generation.
    #[derive(Debug, Default, Deserialize, ToSchema)]
    #[schema(as = GenerateParameters)]
    pub struct Parameters {
        /// The name of an adapter that changes the model for this request.
        pub adapter_id: Option<String>,
        /// The most tokens to generate, at most what the context leaves; the default is 1024, or less if less is left.
        #[schema(minimum = 1)]
        pub max_new_tokens: Option<i64>,
        /// If false, decoding is greedy, unless `temperature` (not 1), `top_k` (not 0), `top_p` (below 1), `typical_p`
        /// (below 1) or `min_p` (above 0) asks for sampling.
        #[schema(default = false)]
        pub do_sample: Option<bool>,
        /// The sampling temperature, which divides the logits. 0 is refused: leave it out to be greedy.
        #[schema(exclusive_minimum = 0, maximum = 100, default = 1)]
        pub temperature: Option<f64>,
        /// The seed of sampling, an integer of 64 bits. Equal seeds give the same bits; random if absent.
        #[schema(value_type = Option<i64>)]
        pub seed: Option<Seed>,
        /// A string, or a list of strings, that ends the output: at most 64 (`--max-stop-sequences`), each of 1 to 1024
        /// bytes. The output ends with it, as in TGI.
        pub stop: Option<OneOrMany>,
        /// The least number of tokens before an end token is allowed, at most `max_new_tokens`. Errors call it
        /// `min_tokens`. Not part of TGI's API.
        #[schema(minimum = 0, default = 0)]
        pub min_new_tokens: Option<i64>,
        /// Continues after an end token. Not part of TGI's API.
        #[schema(default = false)]
        pub ignore_eos_token: Option<bool>,
        /// The format of the output: `{"type": "json", "value": SCHEMA}`, `{"type": "regex", "value": TEXT}` or
        /// `{"type": "json_schema", "value": {"schema": SCHEMA}}`.
        #[schema(value_type = Option<Object>)]
        pub grammar: Option<Value>,
        /// Marks the output so that the server's key can identify it.
        #[schema(default = false)]
        pub watermark: Option<bool>,
        /// Returns `inputs` in front of the output.
        #[schema(default = false)]
        pub return_full_text: Option<bool>,
        /// The number of last tokens to keep of the prompt; all by default.
        #[schema(minimum = 1)]
        pub truncate: Option<i64>,
        /// The number of outputs to compute, at most 128 (`--max-best-of`). The one with the highest mean logprob is
        /// returned; the others are in `details.best_of_sequences`. Needs sampling. Not available in streams.
        #[schema(minimum = 1, default = 1)]
        pub best_of: Option<i64>,
        /// The most seconds from the request's arrival to its last token; by default as `--request-timeout` has it. Not
        /// part of TGI's API.
        #[schema(exclusive_minimum = 0, maximum = 86400)]
        pub timeout: Option<f64>,
        /// Reports the tokens and the reason why the output ended.
        #[schema(default = false)]
        pub details: Option<bool>,
        /// Reports the prompt's tokens: adds `details` with `prefill`. Not available in streams.
        #[schema(default = false)]
        pub decoder_input_details: Option<bool>,
        /// The number of likeliest tokens to report at each position, with `details` or in a stream.
        #[schema(minimum = 0, maximum = 20, default = 0)]
        pub top_n_tokens: Option<i64>,
    }
}

/// A complete response to a prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GenerateResponse)]
pub struct GenerateAnswer {
    /// The text of the output.
    #[schema(value_type = String)]
    pub generated_text: Joined,
    /// Present if `details` was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// The tokens of an output and the reason why it ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GenerateDetails)]
pub struct Details {
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// The number of generated tokens.
    pub generated_tokens: u32,
    /// The seed that was used; null if decoding was greedy.
    pub seed: Option<u64>,
    /// The prompt's tokens if `decoder_input_details` was requested, otherwise empty.
    #[schema(value_type = Vec<PrefillToken<'_>>)]
    pub prefill: Prefill,
    /// The tokens of the output.
    pub tokens: Vec<Token>,
    /// The likeliest tokens at each position if `top_n_tokens` was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Vec<Token>>>,
    /// The other outputs of `best_of`, the best one first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of_sequences: Option<Vec<Sequence>>,
}

/// An output of `best_of` that was not the best.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BestOfSequence)]
pub struct Sequence {
    /// The text of the output.
    #[schema(value_type = String)]
    pub generated_text: Joined,
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// The number of generated tokens.
    pub generated_tokens: u32,
    /// The seed that was used; null if decoding was greedy.
    pub seed: Option<u64>,
    /// The prompt's tokens if `decoder_input_details` was requested, otherwise empty.
    #[schema(value_type = Vec<PrefillToken<'_>>)]
    pub prefill: Prefill,
    /// The tokens of the output.
    pub tokens: Vec<Token>,
    /// The likeliest tokens at each position if `top_n_tokens` was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Vec<Token>>>,
}

/// A generated token with its logprob.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = GenerateToken)]
pub struct Token {
    /// The id of the token.
    pub id: u32,
    /// The text that became certain with this token; it may be empty within a multi-byte character.
    pub text: String,
    /// The natural logarithm of the token's probability in the model's unmodified distribution.
    pub logprob: f32,
    /// True for a control token.
    pub special: bool,
}

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = GeneratePrefillToken)]
pub struct PrefillToken<'a> {
    /// The id of the token.
    pub id: u32,
    /// The token as the vocabulary spells it.
    pub text: Cow<'a, str>,
    /// The natural logarithm of the token's probability in the model's distribution; null for the first token.
    pub logprob: Option<f32>,
}

/// The tokens of a prompt, which all outputs share. They become [`PrefillToken`]s while they are written.
#[derive(Debug, Clone, Default)]
pub struct Prefill(pub Option<(Arc<ScoredPrompt>, Arc<Tokenizer>)>);

impl Serialize for Prefill {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((prompt, tokenizer)) = &self.0 else { return serializer.collect_seq([(); 0]) };
        // The first token has no logprob, because no token precedes it.
        let scores = prompt.scores.iter().map(|score| Some(score.logprob.max(LOWEST_LOGPROB)));
        let tokens = prompt.token_ids.iter().zip(std::iter::once(None).chain(scores));
        serializer.collect_seq(tokens.map(|(&id, logprob)| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
            PrefillToken { id, text, logprob }
        }))
    }
}

/// The data of one stream event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamResponse)]
pub struct StreamAnswer {
    /// The number of the token, from 1.
    pub index: u32,
    /// The generated token, or the end token if a grammar ended the output.
    pub token: Token,
    /// The likeliest tokens at this position if `top_n_tokens` was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Token>>,
    /// The whole output, in the last event only.
    pub generated_text: Option<String>,
    /// Present in the last event if `details` was requested.
    pub details: Option<StreamDetails>,
}

/// The details in the last event of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamDetails {
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// The number of generated tokens.
    pub generated_tokens: u32,
    /// The seed that was used; null if decoding was greedy.
    pub seed: Option<u64>,
    /// The number of prompt tokens.
    pub input_length: u32,
}

/// Returns TGI's name of a finish reason.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopToken { .. } => "eos_token",
        FinishReason::Length => "length",
        FinishReason::StopString { .. } => "stop_sequence",
    }
}
