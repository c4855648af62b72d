//! OpenAI's `prediction`, a guess at much of the reply. It makes the reply quicker and never changes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use trunkline_base::error::ApiError;

/// A guess at much of the reply. Where it is right, tokens come quicker; the reply is the same in any case.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Prediction {
    /// The prediction type, always `content`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A string, or a list of parts such as `{"type": "text", "text": ...}`.
    #[schema(value_type = Object)]
    pub content: Value,
}

impl Prediction {
    /// Returns the text. Fails if the prediction does not have the form that OpenAI requires.
    pub fn text(&self) -> Result<String, ApiError> {
        if self.kind != "content" {
            return Err(ApiError::value("prediction.type", "must be `content`"));
        }
        let part = |part: &Value| (part["type"] == "text").then(|| part["text"].as_str())?.map(str::to_owned);
        let text = match &self.content {
            Value::String(text) => Some(text.clone()),
            Value::Array(parts) => parts.iter().map(part).collect(),
            _ => None,
        };
        let problem = "must be a string or a list of text parts";
        text.ok_or_else(|| ApiError::value("prediction.content", problem))
    }
}

/// A breakdown of the generated tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// The number of drafted tokens that became part of the output.
    pub accepted_prediction_tokens: u32,
    /// The number of drafted tokens that were computed in vain.
    pub rejected_prediction_tokens: u32,
}
