//! Tools and thinking in the Messages API.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::chat::tools::{Tool, ToolChoice, Tools};
use trunkline_base::error::ApiError;
use trunkline_base::limits::Limits;
use trunkline_generation::grammars::AskedBudget;
use trunkline_generation::request::number::{count, too_small};
use trunkline_generation::request::retention::CacheControl;

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
pub struct ToolField {
    /// The tool type, always `custom`. Anthropic's server tools are not available.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The tool's name: 1 to 128 letters, digits, `_`, `-` or `.`.
    pub name: String,
    /// A description of the tool for the model.
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// If true, a keyword of `input_schema` that no grammar can hold refuses a required call. Otherwise it is left out.
    pub strict: Option<bool>,
    /// Marks the tools for caching, unless the system prompt or a message has a mark.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<CacheControl>,
}

/// The `tool_choice` object of a request.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
pub struct ToolChoiceField {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool to call, for type `tool`.
    pub name: Option<String>,
    /// Allows at most one call in a reply.
    pub disable_parallel_tool_use: Option<bool>,
}

/// The `thinking` object of a request.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = MessagesThinking)]
pub struct ThinkingField {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The most tokens of reasoning, for the type `enabled`. The closing mark follows the last of them.
    #[schema(minimum = 1)]
    pub budget_tokens: Option<i64>,
}

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
            let problem = "must be `custom`; this server has no tools of its own";
            return Err(ApiError::value(format!("tools[{idx}].type"), problem));
        }
        let missing = || ApiError::MissingField { field: format!("tools[{idx}].input_schema") };
        let parameters = field.input_schema.ok_or_else(missing)?;
        let is_strict = field.strict == Some(true);
        tools.push(Tool { name: field.name, description: field.description, parameters, is_strict });
    }
    Ok(Tools::new(tools, choice, is_parallel, limits)?.with_id_prefix("toolu_"))
}

/// Returns true if the response includes the model's reasoning.
pub fn thinks(field: Option<&ThinkingField>) -> Result<bool, ApiError> {
    match field.map(|field| field.kind.as_str()) {
        None | Some("disabled") => Ok(false),
        Some("enabled" | "adaptive") => Ok(true),
        Some(_) => Err(ApiError::value("thinking.type", "must be `enabled`, `adaptive` or `disabled`")),
    }
}

/// Returns the most tokens of reasoning.
pub fn budget(field: Option<&ThinkingField>) -> Result<Option<AskedBudget>, ApiError> {
    const FIELD: &str = "thinking.budget_tokens";
    let Some(asked) = field.filter(|field| field.kind == "enabled").and_then(|field| field.budget_tokens)
    else {
        return Ok(None);
    };
    if asked < 1 {
        return Err(too_small(FIELD, asked, 1));
    }
    Ok(Some(AskedBudget { field: FIELD, num_tokens: count(FIELD, asked, i64::from(u32::MAX))? }))
}
