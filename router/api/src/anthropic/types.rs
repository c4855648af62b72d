//! The request and response bodies of the Messages API.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::block::Content;
use super::blocks::Message;
use super::tools::{ThinkingField, ToolChoiceField, ToolField};
use crate::lists::list;
use crate::openai::Seed;
use crate::sampling_body::sampling_body;
use trunkline_base::error::ApiError;
use trunkline_generation::generate;
use trunkline_generation::request::retention::CacheControl;

sampling_body! { anthropic:
    /// The body of a request to the Messages API.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = MessagesRequest)]
    pub struct Body {
        /// The name of the served model; may be omitted.
        pub model: Option<String>,
        /// The most tokens to generate, at most what the context leaves.
        #[schema(minimum = 1, required = true, nullable = false)]
        pub max_tokens: Option<i64>,
        /// The conversation, oldest first: 1 to 16384 messages (`--max-messages`). If the last one is the assistant's,
        /// the reply continues it.
        #[serde(deserialize_with = "list")]
        pub messages: Vec<Message>,
        /// The system prompt: a string or a list of text blocks. It becomes the first message, of role `system`.
        pub system: Option<Content>,
        /// Strings that end the output: at most 64 (`--max-stop-sequences`), each of 1 to 1024 bytes. The output does
        /// not include them; `stop_sequence` of the answer has the one that matched.
        pub stop_sequences: Option<Vec<String>>,
        /// If true, the answer is a stream of server-sent events.
        #[schema(default = false)]
        pub stream: Option<bool>,
        /// The most seconds from the request's arrival to its last token; by default as `--request-timeout` has it. Not
        /// part of Anthropic's API.
        #[schema(exclusive_minimum = 0, maximum = 86400)]
        pub timeout: Option<f64>,
        /// The tools that the model may call: at most 128 (`--max-tools`), of type `custom`, with `input_schema`.
        /// Anthropic's own tools are refused.
        pub tools: Option<Vec<ToolField>>,
        /// `{"type": "auto"}`, the default, `{"type": "none"}`, `{"type": "any"}` or `{"type": "tool", "name": ...}`.
        /// With `any` and `tool` the reply consists of calls whose inputs validate. With `disable_parallel_tool_use`
        /// calls after the first are left out.
        pub tool_choice: Option<ToolChoiceField>,
        /// `{"type": "enabled"}`, `"adaptive"` or `"disabled"`, the default: blocks of type `thinking` for models that
        /// reason, with an empty `signature`. `budget_tokens`, from 1, is the most tokens of them.
        pub thinking: Option<ThinkingField>,
        /// `{"type": "ephemeral", "ttl": "5m"}`, the default, or `"1h"`: marks the whole prompt for caching, as a mark
        /// on the last block would. Blocks of `system` and of messages may have one, too: the last one pins the prompt
        /// up to its end.
        pub cache_control: Option<CacheControl>,
        /// The format of the output: `{"type": "json_schema", "schema": ...}`.
        #[schema(value_type = Option<Object>)]
        pub output_format: Option<Value>,
        /// `format` is the newer place of `output_format`; `effort` is passed to the chat template as
        /// `reasoning_effort`.
        pub output_config: Option<OutputConfig>,
        /// The seed of sampling, an integer of 64 bits, signed or not. Equal seeds give the same bits, and -1 is a seed
        /// like any other; random if absent. Not part of Anthropic's API.
        #[schema(value_type = Option<i64>)]
        pub seed: Option<Seed>,
        /// `{"edits": [...]}` of types `clear_...`. Nothing is cleared; `compact_...` is refused with
        /// `unsupported_field`.
        pub context_management: Option<ContextManagement>,
        /// The class in the queue: `auto`, the default, is the key's `max_priority`, and normal without keys;
        /// `standard_only` is normal. `usage.service_tier` has the granted class (`priority`, `standard` or `batch`) if
        /// the field was sent.
        pub service_tier: Option<String>,
        /// A text of at most 256 bytes. Requests share cached prefixes only with requests of the same salt. Not part of
        /// Anthropic's API.
        pub cache_salt: Option<String>,
    }
}

/// The `output_config` object of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = MessagesOutputConfig)]
pub struct OutputConfig {
    /// The format of the output: `{"type": "json_schema", "schema": ...}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Passed to the chat template as `reasoning_effort`.
    pub effort: Option<String>,
}

/// The `context_management` object of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ContextManagement {
    /// The edits that the server may make.
    pub edits: Option<Vec<ContextEdit>>,
}

/// A permission to clear one kind of content.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct ContextEdit {
    /// The kind of edit: `clear_tool_uses_...` or `clear_thinking_...`.
    #[serde(rename = "type")]
    pub kind: String,
}

impl ContextManagement {
    /// Refuses edits other than permissions to clear content.
    pub fn check(&self) -> Result<(), ApiError> {
        let mut edits = self.edits.iter().flatten();
        if let Some(idx) = edits.position(|edit| !edit.kind.starts_with("clear_")) {
            let field = format!("context_management.edits[{idx}].type");
            return Err(ApiError::UnsupportedField {
                field,
                hint: "only edits of the kind `clear_...` are accepted",
            });
        }
        Ok(())
    }
}

/// The body of a request to count tokens. Fields that do not change the prompt are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CountTokensRequest)]
pub struct CountBody {
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// The conversation, oldest first.
    #[serde(deserialize_with = "list")]
    pub messages: Vec<Message>,
    /// The system prompt: a string or a list of text blocks.
    pub system: Option<Content>,
    /// The tools that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// Says whether the model must, may or must not call a tool.
    pub tool_choice: Option<ToolChoiceField>,
    /// Lets the model reason before it answers.
    pub thinking: Option<ThinkingField>,
    /// Only `effort` is used; it is passed to the chat template.
    pub output_config: Option<OutputConfig>,
}

/// The token count of a prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CountTokensResponse)]
pub struct CountAnswer {
    /// The number of prompt tokens, including those of the chat template.
    pub input_tokens: u32,
}

/// A response. The first event of a stream carries one without content.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesResponse)]
pub struct Answer<'a> {
    /// The id of the response.
    pub id: &'a str,
    /// The object type, always `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The author, always `assistant`.
    pub role: &'static str,
    /// The name of the served model.
    pub model: &'a str,
    /// The content blocks of the reply.
    pub content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null until the response is complete.
    pub stop_reason: Option<&'static str>,
    /// The stop string that ended the output.
    pub stop_sequence: Option<String>,
    /// The token counts of the request.
    pub usage: Usage,
}

/// A content block of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesContentBlock)]
pub enum ContentBlock {
    /// The reasoning that precedes the answer.
    Thinking {
        /// The text of the reasoning.
        thinking: String,
        /// Always empty, because reasoning is not signed.
        signature: String,
    },
    /// A block of text.
    Text {
        /// The text of the block.
        text: String,
    },
    /// A call of a tool.
    ToolUse {
        /// The id of the call.
        id: String,
        /// The name of the tool.
        name: String,
        /// The arguments of the call.
        #[schema(value_type = Object)]
        input: Value,
    },
}

/// The token counts of a request.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = MessagesUsage)]
pub struct Usage {
    /// The number of prompt tokens that were computed.
    pub input_tokens: u32,
    /// Always 0, because caching has no separate charge.
    pub cache_creation_input_tokens: u32,
    /// The number of prompt tokens that were found in the KV cache.
    pub cache_read_input_tokens: u32,
    /// The number of generated tokens.
    pub output_tokens: u32,
    /// The priority class that was used, if the request named one: `priority`, `standard` or `batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
}

impl From<generate::Usage> for Usage {
    fn from(usage: generate::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens - usage.cached_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            service_tier: None,
        }
    }
}
