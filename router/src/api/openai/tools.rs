//! Tools in OpenAI's form.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::chat::reply::Call;
use crate::api::chat::tools::{Tool, ToolChoice, Tools, no_parameters};
use crate::error::ApiError;
use crate::limits::Limits;

/// A tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatTool)]
pub struct ToolField {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: FunctionField,
}

/// A function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatFunction)]
pub struct FunctionField {
    /// 1 to 64 letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// JSON schema of its arguments; none if it has none. TGI's document calls it `arguments`.
    #[serde(alias = "arguments")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
}

/// A call in a whole answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatToolCall)]
pub struct ToolCall {
    /// Names the call; the message with its result repeats it as `tool_call_id`.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: FunctionCall,
}

/// What is called.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatFunctionCall)]
pub struct FunctionCall {
    /// The function.
    pub name: String,
    /// Its arguments as JSON text.
    pub arguments: String,
}

impl From<Call> for ToolCall {
    fn from(call: Call) -> Self {
        let function = FunctionCall { name: call.name, arguments: call.arguments };
        Self { id: call.id, kind: "function", function }
    }
}

/// A piece of a call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatToolCallDelta)]
pub struct ToolCallDelta<'a> {
    /// Number of the call in the reply, from 0.
    pub index: u32,
    /// In its first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// In its first piece: `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is new.
    pub function: FunctionDelta<'a>,
}

/// What is new of a call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatFunctionDelta)]
pub struct FunctionDelta<'a> {
    /// In the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// JSON text to append.
    pub arguments: &'a str,
}

/// The checked tools of a request.
pub fn tools(
    fields: Option<Vec<ToolField>>,
    choice: Option<&Value>,
    is_parallel: Option<bool>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let fields = fields.unwrap_or_default();
    if let Some(idx) = fields.iter().position(|field| field.kind != "function") {
        return Err(ApiError::value(format!("tools[{idx}].type"), "must be `function`"));
    }
    let choice = ToolChoice::from_openai(choice, "/function/name")?;
    let tool = |field: ToolField| Tool {
        name: field.function.name,
        description: field.function.description,
        parameters: field.function.parameters.unwrap_or_else(no_parameters),
    };
    Tools::new(fields.into_iter().map(tool).collect(), choice, is_parallel.unwrap_or(true), limits)
}
