//! OpenAI's `prediction`: text that much of the reply is expected to be. It is checked and changes nothing; usage says
//! that none of it was of use.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// `{"type": "content", "content": TEXT}`; the content may be a list of text parts.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Prediction {
    /// `content`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text, or a list of `{"type": "text", "text": TEXT}`.
    #[schema(value_type = Object)]
    pub content: Value,
}

impl Prediction {
    /// Whether it has the form that OpenAI asks for.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.kind != "content" {
            return Err(ApiError::value("prediction.type", "must be \"content\""));
        }
        let is_part = |part: &Value| part["type"] == "text" && part["text"].is_string();
        let is_text = match &self.content {
            Value::String(_) => true,
            Value::Array(parts) => parts.iter().all(is_part),
            _ => false,
        };
        if is_text {
            Ok(())
        } else {
            Err(ApiError::value("prediction.content", "must be a string or a list of text parts"))
        }
    }
}

/// Parts of `completion_tokens`.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of the prediction that were taken: none.
    pub accepted_prediction_tokens: u32,
    /// Tokens of it that were computed in vain: none.
    pub rejected_prediction_tokens: u32,
}
