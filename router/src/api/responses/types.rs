//! Requests and answers of the Responses API.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::input::Input;
use crate::api::openai::Seed;
use crate::generation::generate;

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponsesRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// A user's message, or items.
    pub input: Input,
    /// A system message before all others; not kept for requests that go on from this one.
    pub instructions: Option<String>,
    /// Go on from this answer.
    pub previous_response_id: Option<String>,
    /// Keep the answer for requests that go on from it; default true.
    pub store: Option<bool>,
    /// Most tokens to generate; default: as many as the context has room for.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<i64>,
    /// 0 is greedy; default 1, or what the model's makers propose.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens whose probability reaches it.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Seconds that the request may take, from its arrival to its last token; not OpenAI's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
    /// Functions that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// `none`, `auto`, `required`, or one function: `{"type": "function", "name": ...}`.
    pub tool_choice: Option<Value>,
    /// Several calls in one reply; default true.
    pub parallel_tool_calls: Option<bool>,
    /// How much the model thinks, for templates that know it.
    pub reasoning: Option<ReasoningField>,
    /// What the text is.
    pub text: Option<TextField>,
    /// More that the answer shall hold: ignored, but for `message.output_text.logprobs`, which is refused.
    #[schema(ignore)]
    pub include: Option<Value>,
    /// Kept with the answer.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// OpenAI's grouping of requests.
    pub prompt_cache_key: Option<String>,
    /// `in_memory`, the default, or `24h`: the prompt is pinned in the cache for so long.
    pub prompt_cache_retention: Option<String>,
    /// Same seed, same output; random if absent. Not OpenAI's.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// Class in the queue: `auto`, `default`, `flex` or `priority`. The answer says which it got.
    pub service_tier: Option<String>,
    /// Requests share cached prefixes only with those of the same salt. Not OpenAI's.
    pub cache_salt: Option<String>,
}

/// A tool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesTool)]
pub struct ToolField {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// 1 to 64 letters, digits, `_`, `-`, `.`.
    pub name: Option<String>,
    /// What it does, for the model.
    pub description: Option<String>,
    /// JSON schema of its arguments; none if it has none.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Accepted: calls that the model need not make are not held to their schema.
    pub strict: Option<bool>,
}

/// `reasoning`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub struct ReasoningField {
    /// Handed to the template; `none` also turns `enable_thinking` off.
    pub effort: Option<String>,
    /// Ignored: reasoning is shown as it is.
    pub summary: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = ResponsesResponse)]
pub struct ResponseObject {
    /// Names the answer.
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The class that it got, if the request asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: &'static str,
    /// Why it failed: `code` and `message`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// `{"reason": "max_output_tokens"}` if it is incomplete.
    #[schema(value_type = Option<Object>)]
    pub incomplete_details: Option<Value>,
    /// As sent.
    pub instructions: Option<String>,
    /// As sent.
    pub max_output_tokens: Option<i64>,
    /// The served model's name.
    pub model: String,
    /// Messages, calls and reasoning, in order.
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Value>,
    /// As sent, or true.
    pub parallel_tool_calls: bool,
    /// As sent.
    pub previous_response_id: Option<String>,
    /// As sent.
    pub reasoning: ReasoningField,
    /// Whether it is kept.
    pub store: bool,
    /// What was used.
    pub temperature: f64,
    /// As sent, or `{"format": {"type": "text"}}`.
    #[schema(value_type = Object)]
    pub text: Value,
    /// As sent, or `auto`.
    pub tool_choice: Value,
    /// As sent.
    pub tools: Vec<ToolField>,
    /// What was used.
    pub top_p: f64,
    /// `disabled`: what does not fit is refused.
    pub truncation: &'static str,
    /// What it took; null before the end.
    pub usage: Option<ResponsesUsage>,
    /// As sent.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
}

impl ResponseObject {
    /// Bytes that it takes, about: what a client sent is in it whole.
    pub fn num_bytes(&self) -> usize {
        // It has no keys but texts, so it can be written.
        size_of::<Self>() + serde_json::to_vec(self).map_or(0, |json| json.len())
    }
}

/// What a request took.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct ResponsesUsage {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Parts of them.
    pub input_tokens_details: InputDetails,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Parts of them.
    pub output_tokens_details: OutputDetails,
    /// Both.
    pub total_tokens: u32,
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ResponsesInputDetails)]
pub struct InputDetails {
    /// Tokens that did not have to be computed.
    pub cached_tokens: u32,
}

/// Parts of the output's tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ResponsesOutputDetails)]
pub struct OutputDetails {
    /// Always 0: reasoning is not counted apart.
    pub reasoning_tokens: u32,
}

impl From<generate::Usage> for ResponsesUsage {
    fn from(usage: generate::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.cached_tokens },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: usage.prompt_tokens + usage.output_tokens,
        }
    }
}

/// An answer that was forgotten.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesDeleted)]
pub struct Deleted {
    /// Its id.
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// True.
    pub deleted: bool,
}

/// The format of text that is free.
pub fn plain() -> Value {
    json!({"type": "text"})
}

/// What `text` says of it.
pub fn plain_text() -> Value {
    json!({"format": plain()})
}

/// What the text of an answer is.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponseTextConfig)]
pub struct TextField {
    /// `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "name": ..., "schema": ...}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// `medium`; others are not supported.
    pub verbosity: Option<String>,
}
