//! Requests and answers of TGI's generating routes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::openai::{OneOrMany, Seed};
use crate::generation::generate::FinishReason;

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = GenerateRequest)]
pub struct Body {
    /// The prompt.
    pub inputs: String,
    /// How to continue it.
    #[serde(default)]
    pub parameters: Option<Parameters>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
}

/// How to continue a prompt.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = GenerateParameters)]
pub struct Parameters {
    /// Most tokens to generate; default 1024.
    #[schema(minimum = 1)]
    pub max_new_tokens: Option<i64>,
    /// Sample; greedy if false and neither `temperature`, `top_k`, `top_p` nor `min_p` asks for it.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keep the k likeliest.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Keep the smallest set of tokens whose probability reaches it.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keep the tokens whose information is nearest to the entropy, up to this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f64>,
    /// Drop tokens below this part of the likeliest one's probability.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Same seed, same output; random if absent.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// Divides the positive logits of tokens that prompt or output hold, multiplies the negative ones.
    #[schema(minimum = 0.01, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted once per occurrence in the output.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Subtracted from the logits of tokens that the output holds.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Strings that end the output, and are its last part.
    pub stop: Option<OneOrMany>,
    /// No end token before so many tokens.
    #[schema(minimum = 0)]
    pub min_new_tokens: Option<i64>,
    /// Go on after an end token.
    pub ignore_eos_token: Option<bool>,
    /// What the output is: `{"type": "json", "value": SCHEMA}`, `{"type": "regex", "value": TEXT}` or
    /// `{"type": "json_schema", "value": {"schema": SCHEMA}}`.
    #[schema(value_type = Option<Object>)]
    pub grammar: Option<Value>,
    /// Choose tokens so that whoever has the server's key finds out that they were generated.
    pub watermark: Option<bool>,
    /// Put the prompt before the output.
    pub return_full_text: Option<bool>,
    /// Keep only so many last tokens of the prompt.
    #[schema(minimum = 1)]
    pub truncate: Option<i64>,
    /// Compute so many outputs and answer with the one whose tokens have the highest mean logprob; needs sampling.
    #[schema(minimum = 1)]
    pub best_of: Option<i64>,
    /// Seconds that the request may take, from its arrival to its last token; not TGI's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
    /// Report tokens and why the output ended.
    pub details: Option<bool>,
    /// Report the prompt's tokens, and `details`; not as events.
    pub decoder_input_details: Option<bool>,
    /// Report so many of the likeliest tokens in each place, with `details` or a stream.
    #[schema(minimum = 0, maximum = 20)]
    pub top_n_tokens: Option<i64>,
}

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GenerateResponse)]
pub struct GenerateAnswer {
    /// The output.
    pub generated_text: String,
    /// If asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// What an output is made of.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GenerateDetails)]
pub struct Details {
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// How many.
    pub generated_tokens: u32,
    /// The seed used, null if greedy.
    pub seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`; else empty.
    pub prefill: Vec<PrefillToken>,
    /// The output's tokens.
    pub tokens: Vec<Token>,
    /// The likeliest tokens in each place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Vec<Token>>>,
    /// With `best_of` the other outputs, the better ones first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of_sequences: Option<Vec<Sequence>>,
}

/// An output that was not the best.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BestOfSequence)]
pub struct Sequence {
    /// The output.
    pub generated_text: String,
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// How many.
    pub generated_tokens: u32,
    /// The seed used, null if greedy.
    pub seed: Option<u64>,
    /// The prompt's tokens, with `decoder_input_details`; else empty.
    pub prefill: Vec<PrefillToken>,
    /// The output's tokens.
    pub tokens: Vec<Token>,
    /// The likeliest tokens in each place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Vec<Token>>>,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = GenerateToken)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text; of a generated token what became certain with it.
    pub text: String,
    /// Natural logarithm of its probability in the model's own distribution.
    pub logprob: f32,
    /// It is a control token.
    pub special: bool,
}

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = GeneratePrefillToken)]
pub struct PrefillToken {
    /// Its id.
    pub id: u32,
    /// Its name in the vocabulary.
    pub text: String,
    /// Natural logarithm of its probability in the model's own distribution; null for the first one.
    pub logprob: Option<f32>,
}

/// An event of a stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamResponse)]
pub struct StreamAnswer {
    /// Number of the token, from 1.
    pub index: u32,
    /// The token; the end token if a grammar ended the output.
    pub token: Token,
    /// The likeliest tokens in its place, with `top_n_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_tokens: Option<Vec<Token>>,
    /// In the last event the whole output.
    pub generated_text: Option<String>,
    /// In the last event, if asked for.
    pub details: Option<StreamDetails>,
}

/// How a stream ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamDetails {
    /// `length`, `eos_token` or `stop_sequence`.
    pub finish_reason: &'static str,
    /// How many.
    pub generated_tokens: u32,
    /// The seed used, null if greedy.
    pub seed: Option<u64>,
    /// Tokens of the prompt.
    pub input_length: u32,
}

/// TGI's words for the end.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopToken { .. } => "eos_token",
        FinishReason::Length => "length",
        FinishReason::StopString { .. } => "stop_sequence",
    }
}
