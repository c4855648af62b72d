//! A content block as clients send it.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::lists::{Listed, TextOrList};
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_MESSAGE_PARTS;
use trunkline_generation::request::retention::CacheControl;

/// A string, or a list of content blocks.
pub type Content = TextOrList<Block>;

/// A content block. Its type decides which fields it has.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicBlock)]
pub struct Block {
    /// `text`, `document`, `search_result`, `tool_use`, `tool_result`, `thinking` or `redacted_thinking`. In a tool
    /// result also `tool_reference`, or `image`, which is replaced by a note.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` block.
    pub text: Option<String>,
    /// Marks the prompt up to the end of this block for caching.
    pub cache_control: Option<CacheControl>,
    /// The id of a `tool_use` block's call.
    pub id: Option<String>,
    /// The tool that a `tool_use` block calls.
    pub name: Option<String>,
    /// The arguments of a `tool_use` block.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// The id of the call that a `tool_result` block answers.
    pub tool_use_id: Option<String>,
    /// The content of a `tool_result` or `search_result` block: a string, or a list of content blocks.
    #[schema(no_recursion)]
    pub content: Option<Content>,
    /// Says that the tool of a `tool_result` block failed. Ignored, because chat templates cannot express it.
    #[expect(dead_code, reason = "only its type is checked")]
    pub is_error: Option<bool>,
    /// The text of a `thinking` block.
    pub thinking: Option<String>,
    /// The text of a `document` block as an object, or the address of a `search_result` block as a string.
    #[schema(value_type = Option<Object>)]
    pub source: Option<Value>,
    /// The title of a `document` or `search_result` block.
    pub title: Option<String>,
    /// A remark about a `document` block for the model.
    pub context: Option<String>,
    /// The tool that a `tool_reference` block in a tool result names.
    pub tool_name: Option<String>,
}

impl Listed for Block {
    const LIMIT: usize = MAX_MESSAGE_PARTS;
    const NAMES: &'static str = "blocks";
}

pub(super) fn required<T>(value: Option<T>, field: &str, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::MissingField { field: format!("{field}.{name}") })
}
