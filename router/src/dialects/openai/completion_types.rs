//! Requests and answers of `/v1/completions`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::prompts::Prompts;
use super::{CompletionLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Usage};
use crate::retention::CacheRetention;
use crate::token_fields::LogitBias;

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CompletionRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// A string or a list of token ids; or a list of these, each continued on its own.
    #[schema(value_type = String)]
    pub prompt: Prompts,
    /// Outputs to show for each prompt.
    #[schema(minimum = 1)]
    pub n: Option<i64>,
    /// Outputs to compute for each prompt, of which the `n` with the highest mean logprob are shown; not with `stream`.
    #[schema(minimum = 1)]
    pub best_of: Option<i64>,
    /// Put the prompt before the output; with `logprobs` their lists begin with the prompt's.
    pub echo: Option<bool>,
    /// Most tokens to generate; default 16. 0 only with `echo`.
    #[schema(minimum = 0)]
    pub max_tokens: Option<i64>,
    /// 0 is greedy; default 1, or what the model's makers propose.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens whose probability reaches it.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keep the k likeliest; 0 or -1 keeps all.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Drop tokens below this part of the likeliest one's probability.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Same seed, same output; random if absent.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// A string or a list of strings that end the output, and are not part of it.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<OneOrMany>,
    /// Keep the stop string in the output.
    pub include_stop_str_in_output: Option<bool>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Seconds that the request may take, from its arrival to its last token; not OpenAI's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Report logprobs of the output's tokens and of so many of the likeliest in each place.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<i64>,
    /// Subtracted from the logits of tokens that the output holds.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Subtracted once per occurrence.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Divides the positive logits of tokens that prompt or output hold, multiplies the negative ones.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// No end token before so many tokens.
    #[schema(minimum = 0)]
    pub min_tokens: Option<i64>,
    /// Go on after an end token.
    pub ignore_eos: Option<bool>,
    /// Keep the tokens whose information is nearest to the entropy, up to this probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f64>,
    /// Token ids as strings, and what is added to their logits, -100 to 100.
    #[schema(value_type = Option<HashMap<String, f64>>)]
    pub logit_bias: Option<LogitBias>,
    /// The only tokens that are sampled.
    pub allowed_token_ids: Option<Vec<i64>>,
    /// Tokens that end the output, and are not part of it. vLLM's, as the next four.
    pub stop_token_ids: Option<Vec<i64>>,
    /// False: control tokens have text in the output.
    pub skip_special_tokens: Option<bool>,
    /// Keep so many last tokens of the prompt; -1: as many as fit.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Report logprobs of the prompt, with so many of the likeliest tokens in each place; not with `stream`.
    #[schema(minimum = 0, maximum = 20)]
    pub prompt_logprobs: Option<PromptLogprobsCount>,
    /// What the output is: `{"type": "text"}`, `{"type": "json_object"}`, or
    /// `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// The output validates under this JSON schema. vLLM's, as the next four.
    #[schema(value_type = Option<Object>)]
    pub guided_json: Option<Value>,
    /// The output as a whole matches this regular expression.
    pub guided_regex: Option<String>,
    /// The output is one of these.
    pub guided_choice: Option<Vec<String>>,
    /// The output is of this Lark grammar.
    pub guided_grammar: Option<String>,
    /// One of the four: `json`, `regex`, `choice` or `grammar`.
    #[schema(value_type = Option<Object>)]
    pub structured_outputs: Option<Value>,
    /// Class in the queue: `auto`, `default`, `flex` or `priority`.
    pub service_tier: Option<String>,
    /// The same as vLLM has it: below 0 before others, above 0 after them. Not beside `service_tier`.
    pub priority: Option<i64>,
    /// Requests share cached prefixes only with those of the same salt.
    pub cache_salt: Option<String>,
    /// OpenAI's grouping of requests: shown in `/v1/kv/tree`, which finds nodes by it.
    pub prompt_cache_key: Option<String>,
    /// `in_memory`, the default, or `24h`: the prompt is pinned in the cache for so long.
    pub prompt_cache_retention: Option<String>,
    /// The same in our own words.
    pub cache_retention: Option<CacheRetention>,
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
