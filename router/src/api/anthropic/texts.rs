//! Blocks that are text, in whatever form.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{Block, Content, required};
use crate::api::lists::TextOrList;
use crate::error::ApiError;

/// Stands for a picture that a tool gave: the conversation can go on, and who has it in its history cannot take it out.
const NO_IMAGE: &str = "[an image, which this model cannot see]";

/// Where texts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// What the model is told.
    System,
    /// What somebody said.
    User,
    /// What a tool gave.
    ToolResult,
}

/// The `source` of a document, as far as it is text.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Source {
    Text { data: String },
    Content { content: Content },
}

impl Block {
    /// Its text. `field` names it in errors.
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
            _ => {
                let problem = "is not one that may stand here; this server takes text alone";
                Err(ApiError::value(format!("{field}.type"), problem))
            }
        }
    }

    fn into_document(self, place: Place, field: &str) -> Result<String, ApiError> {
        let source = required(self.source, field, "source")?;
        let text = match serde_json::from_value(source) {
            Ok(Source::Text { data }) => data,
            Ok(Source::Content { content }) => joined(content, place, &format!("{field}.source.content"))?,
            Err(_) => {
                let problem = "must be text: of type `text` with `data`, or of type `content` with `content`";
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

/// Each on a line of its own, and so is what follows.
fn lines(texts: [Option<String>; 3]) -> String {
    texts.into_iter().flatten().filter(|text| !text.is_empty()).map(|text| text + "\n").collect()
}
