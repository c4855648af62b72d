//! Requests and answers of `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::messages::Message;
use super::prediction::Prediction;
use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::tools::{ToolCall, ToolCallDelta, ToolField};
use super::{ChatLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Usage};
use crate::dialects::lists::list;
use crate::retention::CacheRetention;
use crate::token_fields::LogitBias;

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ChatCompletionRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// The conversation, oldest first.
    #[serde(deserialize_with = "list")]
    pub messages: Vec<Message>,
    /// Most tokens to generate; default: as many as the context has room for. Older name of the next.
    #[schema(minimum = 1)]
    pub max_tokens: Option<i64>,
    /// Most tokens to generate.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<i64>,
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
    /// Replies to compute.
    #[schema(minimum = 1)]
    pub n: Option<i64>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Seconds that the request may take, from its arrival to its last token; not OpenAI's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Report logprobs of the output's tokens.
    pub logprobs: Option<bool>,
    /// And of so many of the likeliest tokens in each place.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
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
    /// Text that much of the reply is expected to be: `{"type": "content", "content": TEXT}`. Changes nothing.
    pub prediction: Option<Prediction>,
    /// Go on with the last message rather than answer it; `add_generation_prompt` must be false with it.
    pub continue_final_message: Option<bool>,
    /// Open an assistant's reply; default true, or false with `continue_final_message`.
    pub add_generation_prompt: Option<bool>,
    /// Functions that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// `none`, `auto`, `required`, or one function: `{"type": "function", "function": {"name": ...}}`.
    pub tool_choice: Option<Value>,
    /// Several calls in one reply; default true.
    pub parallel_tool_calls: Option<bool>,
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
    /// Show what the model thought before its answer, in `reasoning_content`; default true.
    pub include_reasoning: Option<bool>,
    /// How much the model thinks, for templates that know it; `none` also turns `enable_thinking` off.
    pub reasoning_effort: Option<String>,
    /// More variables for the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Class in the queue: `auto`, `default`, `flex` or `priority`. The answer says which it got.
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

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionResponse)]
pub struct Answer {
    /// Names the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: String,
    /// The class that it got, if the request asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// The replies.
    pub choices: Vec<Choice>,
    /// What it took.
    pub usage: Usage,
    /// If asked for: null for the first token, then one object of token ids for each place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// A choice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub struct Choice {
    /// Number of the reply, from 0.
    pub index: u32,
    /// The reply.
    pub message: AssistantMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// The stop string or the id of `stop_token_ids` that ended it, else null; vLLM's.
    pub stop_reason: Option<StopReason>,
}

/// The reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: &'static str,
    /// Its text; null if it is nothing but calls.
    pub content: Option<String>,
    /// What the model thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Its calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A piece of a streamed answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionChunk)]
pub struct Chunk<'a> {
    /// Names the answer, the same in all chunks.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: &'a str,
    /// The class that it got, if the request asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// One choice; none in the chunk that carries `usage`.
    pub choices: Vec<ChunkChoice<'a>>,
    /// With `include_usage`: in the last chunk what it took, null in the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// A piece of a choice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
pub struct ChunkChoice<'a> {
    /// Number of the reply, from 0.
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// On the last one.
    pub finish_reason: Option<&'static str>,
    /// On the last one: the stop string or the id of `stop_token_ids` that ended it, else null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StopReason>)]
    pub stop_reason: Option<Option<StopReason>>,
}

/// What is new in a chunk.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta<'a> {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Reasoning to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// A call that begins, or more of the arguments of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta<'a>; 1]>,
}
