//! Tools and thinking in Anthropic's form.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::chat::tools::{Tool, ToolChoice, Tools};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::request::retention::CacheControl;

/// A tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
pub struct ToolField {
    /// `custom`, the default; Anthropic's own tools are not there.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// 1 to 64 letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// JSON schema of its input.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// The tools are to be kept.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<CacheControl>,
}

/// `tool_choice`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
pub struct ToolChoiceField {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `tool`: which.
    pub name: Option<String>,
    /// One call at most.
    pub disable_parallel_tool_use: Option<bool>,
}

/// `thinking`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesThinking)]
pub struct ThinkingField {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Ignored: how long a model thinks is its own affair, within `max_tokens`.
    pub budget_tokens: Option<i64>,
}

/// The checked tools of a request.
pub fn tools(
    fields: Option<Vec<ToolField>>,
    choice: Option<ToolChoiceField>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let is_parallel = !choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use).unwrap_or(false);
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(choice) => match (choice.kind.as_str(), choice.name) {
            ("auto", _) => ToolChoice::Auto,
            ("any", _) => ToolChoice::Required,
            ("none", _) => ToolChoice::None,
            ("tool", Some(name)) => ToolChoice::Named(name),
            ("tool", None) => return Err(ApiError::MissingField { field: "tool_choice.name".into() }),
            _ => return Err(ApiError::value("tool_choice.type", "must be `auto`, `any`, `tool` or `none`")),
        },
    };
    let mut tools = Vec::new();
    for (idx, field) in fields.unwrap_or_default().into_iter().enumerate() {
        if field.kind.is_some_and(|kind| kind != "custom") {
            let problem = "must be `custom`; this server runs no tools of its own";
            return Err(ApiError::value(format!("tools[{idx}].type"), problem));
        }
        let missing = || ApiError::MissingField { field: format!("tools[{idx}].input_schema") };
        let parameters = field.input_schema.ok_or_else(missing)?;
        tools.push(Tool { name: field.name, description: field.description, parameters });
    }
    Tools::new(tools, choice, is_parallel, limits)
}

/// Whether the reply shows what the model thought.
pub fn thinks(field: Option<&ThinkingField>) -> Result<bool, ApiError> {
    match field.map(|field| field.kind.as_str()) {
        None | Some("disabled") => Ok(false),
        Some("enabled" | "adaptive") => Ok(true),
        Some(_) => Err(ApiError::value("thinking.type", "must be `enabled`, `adaptive` or `disabled`")),
    }
}
