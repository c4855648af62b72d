//! Content blocks that can be written as text.

use serde::Deserialize;
use serde_json::Value;

use super::block::{Block, Content, required};
use crate::lists::TextOrList;
use trunkline_base::error::ApiError;

/// Replaces an image that a tool returned. Refusing it would end the conversation, because clients cannot remove it
/// from the history.
const NO_IMAGE: &str = "[an image, which this model cannot see]";

/// The place of a block, which decides the block types that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The system prompt, or a system message.
    System,
    User,
    ToolResult,
}

/// The sources of a document that are text.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Source {
    Text { data: String },
    Content { content: Content },
}

impl Block {
    /// Returns the block's text. `field` is the block's path in errors.
    pub(super) fn into_text(self, place: Place, field: &str) -> Result<String, ApiError> {
        match (self.kind.as_str(), place) {
            ("text", _) => required(self.text, field, "text"),
            ("document", Place::User | Place::ToolResult) => self.into_document(place, field),
            ("search_result", Place::User | Place::ToolResult) => {
                let source = match self.source {
                    Some(Value::String(source)) => Some(source),
                    _ => return Err(ApiError::MissingField { field: format!("{field}.source") }),
                };
                let content = required(self.content, field, "content")?;
                Ok(lines([self.title, source, Some(joined(content, place, &format!("{field}.content"))?)]))
            }
            ("tool_reference", Place::ToolResult) => required(self.tool_name, field, "tool_name"),
            ("image", Place::ToolResult) => Ok(NO_IMAGE.to_owned()),
            (kind, _) => Err(ApiError::part_type(format!("{field}.type"), kind, "is not allowed here")),
        }
    }

    fn into_document(self, place: Place, field: &str) -> Result<String, ApiError> {
        let source = required(self.source, field, "source")?;
        let text = match serde_json::from_value(source) {
            Ok(Source::Text { data }) => data,
            Ok(Source::Content { content }) => joined(content, place, &format!("{field}.source.content"))?,
            Err(_) => {
                let problem = "must have type `text` and `data`, or type `content` and `content`";
                return Err(ApiError::value(format!("{field}.source"), problem));
            }
        };
        Ok(lines([self.title, self.context, Some(text)]))
    }
}

fn joined(content: Content, place: Place, field: &str) -> Result<String, ApiError> {
    let blocks = match content {
        TextOrList::Text(text) => return Ok(text),
        TextOrList::List(blocks) => blocks,
    };
    let texts = blocks.into_iter().enumerate();
    texts.map(|(idx, block)| block.into_text(place, &format!("{field}[{idx}]"))).collect()
}

/// Joins the texts that are not empty, each with a line break after it.
fn lines(texts: [Option<String>; 3]) -> String {
    texts.into_iter().flatten().filter(|text| !text.is_empty()).map(|text| text + "\n").collect()
}
