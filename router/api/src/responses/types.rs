//! The request and response bodies of the Responses API.

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::input::Input;
use crate::openai::Seed;
use crate::response_store::StoredResponse;
use crate::sampling_body::sampling_body;
use trunkline_generation::generate;

sampling_body! { responses:
    /// The body of a request to the Responses API.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = ResponsesRequest)]
    pub struct Body {
        /// The name of the served model; may be omitted.
        pub model: Option<String>,
        /// A string, which is a user message, or 1 to 16384 items (`--max-messages`).
        pub input: Input,
        /// A system message before all others. It is not kept for requests that continue this one.
        pub instructions: Option<String>,
        /// The id of a kept answer, whose conversation precedes the input. It is not found if it is not kept or belongs
        /// to another tenant, and refused if the conversation is longer than a client could send it
        /// (`--max-body-bytes`, `--max-messages`).
        pub previous_response_id: Option<String>,
        /// Keeps the answer in memory, with others up to `--max-response-store-bytes`, so that later requests can
        /// continue it. Beyond that, the least recently used of the tenant that has most are dropped, so a tenant with
        /// no more than an equal share loses none to others. A restart drops all.
        #[schema(default = true)]
        pub store: Option<bool>,
        /// The most tokens to generate; by default as many as fit into the context. A truncated answer has the status
        /// `incomplete`.
        #[schema(minimum = 1)]
        pub max_output_tokens: Option<i64>,
        /// If true, the answer is a stream of server-sent events.
        #[schema(default = false)]
        pub stream: Option<bool>,
        /// The most seconds from the request's arrival to its last token; by default as `--request-timeout` has it. Not
        /// part of OpenAI's API.
        #[schema(exclusive_minimum = 0, maximum = 86400)]
        pub timeout: Option<f64>,
        /// The functions that the model may call: type `function`, with `name`, `description` and `parameters`.
        /// OpenAI's own tools are refused.
        pub tools: Option<Vec<ToolField>>,
        /// `none`, `auto`, the default, `required`, one function as `{"type": "function", "name": ...}`, or some of
        /// them as `{"type": "allowed_tools", "mode": ..., "tools": [...]}`, as for chats.
        pub tool_choice: Option<Value>,
        /// If false, calls after the first are left out of the reply.
        #[schema(default = true)]
        pub parallel_tool_calls: Option<bool>,
        /// `effort` is like `reasoning_effort` of chats; `summary` is ignored.
        pub reasoning: Option<ReasoningField>,
        /// The format of the output: `{"format": {"type": "text"}}`, or with the type `json_object`, or with
        /// `json_schema`, `name` and `schema`. A `verbosity` other than `medium` is refused with `unsupported_field`.
        pub text: Option<TextField>,
        /// Ignored, except for `message.output_text.logprobs`, which is refused.
        #[schema(ignore)]
        pub include: Option<Value>,
        /// An object that the answer repeats.
        #[schema(value_type = Option<Object>)]
        pub metadata: Option<Map<String, Value>>,
        /// A text of at most 256 bytes that names nodes in `/v1/kv/tree`. It changes nothing else, because all requests
        /// of a tenant share their common prefixes anyway.
        pub prompt_cache_key: Option<String>,
        /// `in_memory`, the default, or `24h`, which pins the prompt in the cache for 24 hours.
        pub prompt_cache_retention: Option<String>,
        /// The seed of sampling, an integer of 64 bits, signed or not. Equal seeds give the same bits, and -1 is a seed
        /// like any other; random if absent. Not part of OpenAI's API.
        #[schema(value_type = Option<i64>)]
        pub seed: Option<Seed>,
        /// The class in the queue: `auto`, `default` and `scale` are normal, `flex` is low and `priority` high. A key
        /// gets at most its `max_priority`. The answer has the granted class.
        pub service_tier: Option<String>,
        /// A text of at most 256 bytes. Requests share cached prefixes only with requests of the same salt. Not part of
        /// OpenAI's API.
        pub cache_salt: Option<String>,
    }
}

/// A tool that the model may call.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesTool)]
pub struct ToolField {
    /// The tool type, always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function's name: 1 to 128 letters, digits, `_`, `-` or `.`.
    pub name: Option<String>,
    /// A description of the function for the model.
    pub description: Option<String>,
    /// The JSON schema of the arguments; absent for a function without arguments.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Accepted. Optional calls are not constrained to their schema.
    pub strict: Option<bool>,
}

/// The `reasoning` object of a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub struct ReasoningField {
    /// Passed to the chat template as `reasoning_effort`; `none` also sets `enable_thinking` to false.
    pub effort: Option<String>,
    /// Ignored. Reasoning is always returned in full.
    pub summary: Option<String>,
}

/// JSON text of a field of the request, which is copied into each event and each answer.
#[derive(Debug, Clone)]
pub struct Echo(Box<RawValue>);

impl Echo {
    pub fn new(value: &impl Serialize) -> Self {
        // Serialising cannot fail, because all map keys are strings.
        Self(to_raw_value(value).unwrap_or_default())
    }
}

impl Default for Echo {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl Serialize for Echo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A response, complete or in progress.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = ResponsesResponse)]
pub struct ResponseObject {
    /// The id of the response.
    pub id: String,
    /// The object type, always `response`.
    pub object: &'static str,
    /// The time of creation in Unix seconds.
    pub created_at: u64,
    /// The priority class that was used, if the request named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: &'static str,
    /// The error of a failed response, with `code` and `message`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// `{"reason": "max_output_tokens"}` if the response is incomplete.
    #[schema(value_type = Option<Object>)]
    pub incomplete_details: Option<Value>,
    /// Copied from the request.
    #[schema(value_type = Option<String>)]
    pub instructions: Echo,
    /// Copied from the request.
    pub max_output_tokens: Option<i64>,
    /// The name of the served model.
    pub model: String,
    /// The messages, calls and reasoning of the reply, in order.
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Value>,
    /// Copied from the request, or true.
    pub parallel_tool_calls: bool,
    /// Copied from the request.
    pub previous_response_id: Option<String>,
    /// Copied from the request.
    #[schema(value_type = ReasoningField)]
    pub reasoning: Echo,
    /// True if the response is stored.
    pub store: bool,
    /// The temperature that was used.
    pub temperature: f64,
    /// Copied from the request, or `{"format": {"type": "text"}}`.
    #[schema(value_type = Object)]
    pub text: Echo,
    /// Copied from the request, or `auto`.
    #[schema(value_type = Value)]
    pub tool_choice: Echo,
    /// Copied from the request.
    #[schema(value_type = Vec<ToolField>)]
    pub tools: Echo,
    /// The `top_p` that was used.
    pub top_p: f64,
    /// Always `disabled`: a prompt that does not fit is refused.
    pub truncation: &'static str,
    /// The token counts; null until the response is complete.
    pub usage: Option<ResponsesUsage>,
    /// Copied from the request.
    #[schema(value_type = Object)]
    pub metadata: Echo,
}

impl ResponseObject {
    /// Returns the response as JSON.
    pub fn json(&self) -> Bytes {
        json_text(self)
    }

    /// Returns the entry of the response in the store. `json` is its own JSON.
    pub fn stored(&self, json: Bytes) -> StoredResponse {
        let item = |item: &Value| (item["id"].as_str().unwrap_or_default().to_owned(), json_text(item));
        StoredResponse { id: self.id.clone(), json, items: self.output.iter().map(item).collect() }
    }
}

/// Returns a value's JSON in a buffer of its length, which is twice as large while it is written.
fn json_text(value: &impl Serialize) -> Bytes {
    // Serialising cannot fail, because all map keys are strings.
    serde_json::to_vec(value).unwrap_or_default().into_boxed_slice().into()
}

/// The token counts of a request.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct ResponsesUsage {
    /// The number of prompt tokens.
    pub input_tokens: u32,
    /// A breakdown of the prompt tokens.
    pub input_tokens_details: InputDetails,
    /// The number of generated tokens.
    pub output_tokens: u32,
    /// A breakdown of the generated tokens.
    pub output_tokens_details: OutputDetails,
    /// The sum of prompt and generated tokens.
    pub total_tokens: u32,
}

/// A breakdown of the prompt tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ResponsesInputDetails)]
pub struct InputDetails {
    /// The number of prompt tokens that were found in the KV cache.
    pub cached_tokens: u32,
    /// Always 0, because caching has no separate charge.
    pub cache_write_tokens: u32,
}

/// A breakdown of the generated tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ResponsesOutputDetails)]
pub struct OutputDetails {
    /// Always 0, because reasoning tokens are not counted separately.
    pub reasoning_tokens: u32,
}

impl From<generate::Usage> for ResponsesUsage {
    fn from(usage: generate::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: 0 },
            total_tokens: usage.prompt_tokens + usage.output_tokens,
        }
    }
}

/// The body of a request to count tokens. Fields that do not change the prompt are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponsesCountRequest)]
pub struct CountBody {
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// A string, which is a user message, or 1 to 16384 items (`--max-messages`).
    pub input: Input,
    /// A system message before all others.
    pub instructions: Option<String>,
    /// The id of a kept answer, whose conversation precedes the input.
    pub previous_response_id: Option<String>,
    /// The functions that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// `none`, `auto`, `required` or an object, which requests for responses have too.
    pub tool_choice: Option<Value>,
    /// The reasoning effort, for chat templates that support it.
    pub reasoning: Option<ReasoningField>,
}

/// The token count of a prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesInputTokens)]
pub struct InputTokens {
    /// The object type, always `response.input_tokens`.
    pub object: &'static str,
    /// The number of prompt tokens, including those of the chat template.
    pub input_tokens: u32,
}

/// Confirms that a stored response was deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesDeleted)]
pub struct Deleted {
    /// The id of the response.
    pub id: String,
    /// The object type, always `response`.
    pub object: &'static str,
    /// True in every response.
    pub deleted: bool,
}

/// Returns the format of unconstrained text.
pub fn plain() -> Value {
    json!({"type": "text"})
}

pub fn plain_text() -> Value {
    json!({"format": plain()})
}

/// The format of the output text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponseTextConfig)]
pub struct TextField {
    /// `{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "name": ..., "schema": ...}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Only `medium` is supported.
    pub verbosity: Option<String>,
}
