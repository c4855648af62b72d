//! Tools and tool calls in the Chat Completions API.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::chat::reply::Call;
use crate::chat::tools::{Tool, ToolChoice, Tools, no_parameters};
use trunkline_base::error::ApiError;
use trunkline_base::limits::Limits;

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatTool)]
pub struct ToolField {
    /// The tool type, always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function's name, description and parameters.
    pub function: FunctionField,
}

/// A function that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatFunction)]
pub struct FunctionField {
    /// The function's name: 1 to 128 letters, digits, `_`, `-` or `.`.
    pub name: String,
    /// A description of the function for the model.
    pub description: Option<String>,
    /// The JSON schema of the arguments; absent for a function without arguments. `arguments`, TGI's name, is a
    /// synonym.
    #[serde(alias = "arguments")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// If true, a keyword of `parameters` that no grammar can hold refuses a required call. Otherwise it is left out.
    pub strict: Option<bool>,
}

/// A tool call in a complete response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatToolCall)]
pub struct ToolCall {
    /// The id of the call. The message with the result repeats it as `tool_call_id`.
    pub id: String,
    /// The call type, always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The called function and its arguments.
    pub function: FunctionCall,
}

/// A called function with its arguments.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatFunctionCall)]
pub struct FunctionCall {
    /// The name of the function.
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

impl From<Call> for ToolCall {
    fn from(call: Call) -> Self {
        let function = FunctionCall { name: call.name, arguments: call.arguments };
        Self { id: call.id, kind: "function", function }
    }
}

/// A piece of a tool call in a stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatToolCallDelta)]
pub struct ToolCallDelta<'a> {
    /// The number of the call in the reply, from 0.
    pub index: u32,
    /// The id of the call; only in its first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// The call type, always `function`; only in the call's first piece.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The new part of the called function.
    pub function: FunctionDelta<'a>,
}

/// The new part of a called function.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatFunctionDelta)]
pub struct FunctionDelta<'a> {
    /// The name of the function; only in the call's first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// JSON text to append to the arguments.
    pub arguments: &'a str,
}

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
        is_strict: field.function.strict == Some(true),
    };
    Tools::new(fields.into_iter().map(tool).collect(), choice, is_parallel.unwrap_or(true), limits)
}
