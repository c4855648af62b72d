//! The request and response bodies of `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trunkline_contract::range;
use trunkline_generation::adapters::{LoraScale, Named};
use trunkline_text::StopText;
use utoipa::ToSchema;

use super::body::body;
use super::messages::Message;
use super::prediction::Prediction;
use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::reasoning::ReasoningField;
use super::tools::{ToolCall, ToolCallDelta, ToolField};
use super::{ChatLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Timings, Usage};
use crate::chat::structured::StructuredFields;
use crate::lists::list;
use trunkline_base::error::ApiError;
use trunkline_generation::request::avoid::AvoidFields;
use trunkline_generation::request::number::bounded;
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::retention::{CacheRetention, RawRetention};
use trunkline_generation::request::service_tier::Wanted;
use trunkline_generation::request::tokens::{LogitBias, TokenFields, TruncationSide};

body! {
    /// The body of a request to generate a chat reply.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = ChatCompletionRequest)]
    pub struct Body {
        /// The conversation, oldest first: 1 to 16384 messages (`--max-messages`).
        #[serde(deserialize_with = "list")]
        pub messages: Vec<Message>,
        /// The older name of `max_completion_tokens`. If both are sent, they must be equal.
        #[schema(minimum = 1)]
        pub max_tokens: Option<i64>,
        /// The most tokens to generate; by default as many as fit into the context. A larger value is refused with
        /// `context_length_exceeded`, never cut silently.
        #[schema(minimum = 1)]
        pub max_completion_tokens: Option<i64>,
        /// The number of replies to generate, at most 128 (`--max-best-of`); the default is 1. Each takes a place of
        /// `--max-concurrent-requests`. With a seed, reply i does not depend on `n`.
        #[schema(minimum = 1)]
        pub n: Option<i64>,
        /// If true, the response has the logprobs of the generated tokens, from the model's distribution before
        /// temperature, penalties and filters.
        #[schema(default = false)]
        pub logprobs: Option<bool>,
        /// The number of likeliest tokens to report at each position. Requires `logprobs`.
        #[schema(minimum = 0, maximum = 20, default = 0)]
        pub top_logprobs: Option<i64>,
        /// A guess at much of the reply, the first source of drafts: `{"type": "content", "content": TEXT}`, or a list
        /// of text parts as its content. It changes only the speed, never the reply. `usage.completion_tokens_details`
        /// counts accepted and rejected drafts.
        pub prediction: Option<Prediction>,
        /// If true, each chunk, or the whole answer, has llama.cpp's `timings`: computed and cached tokens of the
        /// prompt, generated tokens, times, tokens per second, and drafts.
        #[schema(default = false)]
        pub timings_per_token: Option<bool>,
        /// If true, the reply continues the last message instead of answering it. `add_generation_prompt` must then be
        /// false or absent. Part of vLLM's API.
        #[schema(default = false)]
        pub continue_final_message: Option<bool>,
        /// If true, the prompt ends with the start of an assistant's reply. The default is true, or false with
        /// `continue_final_message`. Part of vLLM's API.
        pub add_generation_prompt: Option<bool>,
        /// The functions that the model may call: at most 128 (`--max-tools`), of type `function`, with names of 1 to
        /// 128 letters, digits, `_`, `-` and `.`. `parameters` may be called `arguments`, as in TGI's document.
        pub tools: Option<Vec<ToolField>>,
        /// `none`, `auto`, `required`, a tool's name, `{"type": "function", "function": {"name": ...}}` (`type` may be
        /// missing, as in TGI's document), or `{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools":
        /// [...]}}`; the default is `auto`. With `required` or a name the reply consists of calls whose arguments
        /// validate. Of the tools in the prompt, only allowed ones are called; the `mode` is `auto` or `required`.
        pub tool_choice: Option<Value>,
        /// If false, calls after the first are left out of the reply.
        #[schema(default = true)]
        pub parallel_tool_calls: Option<bool>,
        /// If true, the response has the model's reasoning in `reasoning_content`.
        #[schema(default = true)]
        pub include_reasoning: Option<bool>,
        /// The reasoning effort, which is passed to the chat template. `enable_thinking` is false with `none`, and true
        /// otherwise.
        pub reasoning_effort: Option<String>,
        /// `{"effort": ..., "max_tokens": ..., "exclude": ..., "enabled": ...}`, as in OpenRouter's API: `effort` is
        /// `reasoning_effort`, `max_tokens` the budget, `exclude` the opposite of `include_reasoning`, and `enabled`
        /// sets `enable_thinking`.
        pub reasoning: Option<ReasoningField>,
        /// The most tokens of reasoning; -1 for no limit. Its closing mark follows the last of them. Part of vLLM's
        /// API.
        #[schema(minimum = -1, default = json!(-1))]
        pub thinking_token_budget: Option<i64>,
        /// llama.cpp's name of `thinking_token_budget`.
        #[schema(minimum = -1, default = json!(-1))]
        pub reasoning_budget_tokens: Option<i64>,
        /// More variables for the chat template, such as `enable_thinking`; not `messages`, `tools`,
        /// `add_generation_prompt`, `raise_exception` and `strftime_now`.
        #[schema(value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
    }
}

/// A complete response to a chat.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionResponse)]
pub struct Answer {
    /// The id of the response.
    pub id: String,
    /// The object type, always `chat.completion`.
    pub object: &'static str,
    /// The time of creation in Unix seconds.
    pub created: u64,
    /// The name of the served model.
    pub model: String,
    /// A digest of everything that influences outputs. Servers with equal fingerprints give bit-identical results.
    pub system_fingerprint: String,
    /// The priority class that was used, if the request named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// The replies that the model generated.
    pub choices: Vec<Choice>,
    /// The token counts of the request.
    pub usage: Usage,
    /// The counts and times, if the request has `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// The prompt's logprobs, if requested: null for the first token, then for each position an object whose keys are
    /// token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The token ids of the prompt, if the request has `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One of the replies.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub struct Choice {
    /// The number of the reply, from 0.
    pub index: u32,
    /// The message that the model generated.
    pub message: AssistantMessage,
    /// The logprobs of the generated tokens, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// The stop string, or the id from `stop_token_ids`, that ended the reply; otherwise null. Part of vLLM's API.
    pub stop_reason: Option<StopReason>,
    /// The token ids of the reply, if the request has `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// A message that the model generated.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// The role, always `assistant`.
    pub role: &'static str,
    /// The text of the message; null if it consists only of calls.
    pub content: Option<String>,
    /// The reasoning that precedes the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same as `reasoning_content`, under the name that vLLM and OpenRouter use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls of tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A piece of a streamed response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionChunk)]
pub struct Chunk<'a> {
    /// The id of the response, the same in all chunks.
    pub id: &'a str,
    /// The object type, always `chat.completion.chunk`.
    pub object: &'static str,
    /// The time of creation in Unix seconds.
    pub created: u64,
    /// The name of the served model.
    pub model: &'a str,
    /// A digest of everything that influences outputs. Servers with equal fingerprints give bit-identical results.
    pub system_fingerprint: &'a str,
    /// The priority class that was used, if the request named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// One choice, or none in the chunk that has `usage`.
    pub choices: Vec<ChunkChoice<'a>>,
    /// The token counts in the last chunk, null in the others. Present only with `include_usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// The counts and times up to here, if the request has `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// The token ids of the prompt, if the request has `return_token_ids`. Only in the first chunk of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
}

/// A piece of one of the replies.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
pub struct ChunkChoice<'a> {
    /// The number of the reply, from 0.
    pub index: u32,
    /// The new part of the reply.
    pub delta: Delta<'a>,
    /// The logprobs of the generated tokens, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls` in the last piece, otherwise null.
    pub finish_reason: Option<&'static str>,
    /// The stop string, or the id from `stop_token_ids`, that ended the reply; otherwise null. Only in the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StopReason>)]
    pub stop_reason: Option<Option<StopReason>>,
    /// The token ids of the new part, if the request has `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The new part of a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta<'a> {
    /// `assistant` in the first chunk; in all chunks for clients that name the model `tgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text to append to the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Text to append to the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// The same as `reasoning_content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    /// A new call, or more of the last call's arguments. Null only for clients that name the model `tgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ToolCallDelta>>)]
    pub tool_calls: Option<Option<[ToolCallDelta<'a>; 1]>>,
}
