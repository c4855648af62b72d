//! Requests and answers of the Messages API.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::blocks::{Content, Message};
use super::tools::{ThinkingField, ToolChoiceField, ToolField};
use crate::api::lists::list;
use crate::api::openai::Seed;
use crate::error::ApiError;
use crate::generation::generate;
use crate::request::retention::CacheControl;

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = MessagesRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// Most tokens to generate; required.
    #[schema(minimum = 1, required = true, nullable = false)]
    pub max_tokens: Option<i64>,
    /// The conversation, oldest first.
    #[serde(deserialize_with = "list")]
    pub messages: Vec<Message>,
    /// What the model is told before the conversation: a string or a list of text blocks.
    pub system: Option<Content>,
    /// Strings that end the output, and are not part of it.
    pub stop_sequences: Option<Vec<String>>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Seconds that the request may take, from its arrival to its last token; not Anthropic's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
    /// 0 is greedy; default 1, or what the model's makers propose.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens whose probability reaches it.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keep the k likeliest.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// Whether it calls one.
    pub tool_choice: Option<ToolChoiceField>,
    /// Whether it thinks before it answers, and shows it; default not.
    pub thinking: Option<ThinkingField>,
    /// What stands before the end of the prompt is to be kept: as if on the last block.
    pub cache_control: Option<CacheControl>,
    /// What the output is: `{"type": "json_schema", "schema": ...}`.
    #[schema(value_type = Option<Object>)]
    pub output_format: Option<Value>,
    /// The same in its newer place.
    pub output_config: Option<OutputConfig>,
    /// Same seed, same output; random if absent. Not Anthropic's.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// What may be left out of long conversations: nothing is, so that edits that would clear something are taken.
    pub context_management: Option<ContextManagement>,
    /// Class in the queue: `auto`, the highest that the key may use, or `standard_only`.
    pub service_tier: Option<String>,
    /// Requests share cached prefixes only with those of the same salt. Not Anthropic's.
    pub cache_salt: Option<String>,
}

/// How the model answers.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = MessagesOutputConfig)]
pub struct OutputConfig {
    /// What the output is: `{"type": "json_schema", "schema": ...}`.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Handed to the template as `reasoning_effort`.
    pub effort: Option<String>,
}

/// What may be left out of a long conversation.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct ContextManagement {
    /// The edits.
    pub edits: Option<Vec<ContextEdit>>,
}

/// One kind of what may be left out.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct ContextEdit {
    /// `clear_tool_uses_...` or `clear_thinking_...`.
    #[serde(rename = "type")]
    pub kind: String,
}

impl ContextManagement {
    /// Refuses what is more than leave to clear something.
    pub fn check(&self) -> Result<(), ApiError> {
        let mut edits = self.edits.iter().flatten();
        if let Some(idx) = edits.position(|edit| !edit.kind.starts_with("clear_")) {
            let field = format!("context_management.edits[{idx}].type");
            return Err(ApiError::UnsupportedField {
                field,
                hint: "only edits that clear something are taken",
            });
        }
        Ok(())
    }
}

/// Body of a request to count tokens; fields that do not change the prompt are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CountTokensRequest)]
pub struct CountBody {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// The conversation, oldest first.
    #[serde(deserialize_with = "list")]
    pub messages: Vec<Message>,
    /// What the model is told before the conversation: a string or a list of text blocks.
    pub system: Option<Content>,
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolField>>,
    /// Whether it calls one.
    pub tool_choice: Option<ToolChoiceField>,
    /// Whether it thinks before it answers.
    pub thinking: Option<ThinkingField>,
    /// Its `effort` is told to the template.
    pub output_config: Option<OutputConfig>,
}

/// How many tokens a prompt has.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CountTokensResponse)]
pub struct CountAnswer {
    /// Tokens of the prompt, the template's own included.
    pub input_tokens: u32,
}

/// A whole answer; in a stream's first event without content.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesResponse)]
pub struct Answer<'a> {
    /// Names the answer.
    pub id: &'a str,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`.
    pub role: &'static str,
    /// The served model's name.
    pub model: &'a str,
    /// The reply.
    pub content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null before the end.
    pub stop_reason: Option<&'static str>,
    /// The stop string that ended it.
    pub stop_sequence: Option<String>,
    /// What it took.
    pub usage: Usage,
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesContentBlock)]
pub enum ContentBlock {
    /// What the model thought before it answered.
    Thinking {
        /// It.
        thinking: String,
        /// Empty: nothing is signed here.
        signature: String,
    },
    /// Text.
    Text {
        /// It.
        text: String,
    },
    /// The model calls a tool.
    ToolUse {
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
        /// What it is called with.
        #[schema(value_type = Object)]
        input: Value,
    },
}

/// What a request took.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = MessagesUsage)]
pub struct Usage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u32,
    /// 0: what is computed is kept while there is room, and costs nothing.
    pub cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were in the KV cache.
    pub cache_read_input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// The class that it got, if the request asked for one: `priority`, `standard` or `batch`.
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
