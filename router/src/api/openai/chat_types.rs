//! Requests and answers of `/v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trunkline_text::StopText;
use utoipa::ToSchema;

use super::body::body;
use super::messages::Message;
use super::prediction::Prediction;
use super::prompt_logprobs::{PromptLogprobs, PromptLogprobsCount};
use super::tools::{ToolCall, ToolCallDelta, ToolField};
use super::{ChatLogprobs, OneOrMany, Seed, StopReason, StreamOptions, Usage};
use crate::api::chat::structured::StructuredFields;
use crate::api::lists::list;
use crate::error::ApiError;
use crate::request::raw::RawParams;
use crate::request::retention::{CacheRetention, RawRetention};
use crate::request::service_tier::Wanted;
use crate::request::tokens::{LogitBias, TokenFields};

body! {
    /// Body of a request.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = ChatCompletionRequest)]
    pub struct Body {
        /// The conversation, oldest first.
        #[serde(deserialize_with = "list")]
        pub messages: Vec<Message>,
        /// Most tokens to generate; default: as many as the context has room for. Older name of the next.
        #[schema(minimum = 1)]
        pub max_tokens: Option<i64>,
        /// Most tokens to generate.
        #[schema(minimum = 1)]
        pub max_completion_tokens: Option<i64>,
        /// Replies to compute.
        #[schema(minimum = 1)]
        pub n: Option<i64>,
        /// Report logprobs of the output's tokens.
        pub logprobs: Option<bool>,
        /// And of so many of the likeliest tokens in each place.
        #[schema(minimum = 0, maximum = 20)]
        pub top_logprobs: Option<i64>,
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
        /// Show what the model thought before its answer, in `reasoning_content`; default true.
        pub include_reasoning: Option<bool>,
        /// How much the model thinks, for templates that know it; `none` also turns `enable_thinking` off.
        pub reasoning_effort: Option<String>,
        /// More variables for the chat template.
        #[schema(value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
    }
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
    /// In the first chunk; in all of them for clients that name the model `tgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// Reasoning to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// A call that begins, or more of the arguments of the last one. Null only for clients that name the model `tgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ToolCallDelta>>)]
    pub tool_calls: Option<Option<[ToolCallDelta<'a>; 1]>>,
}
