//! OpenAI's `prediction`, a guess at much of the reply. It is checked but not used, and the token counts say so.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::ApiError;

/// A guess at much of the reply, which does not influence the output.
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
    /// Checks that the prediction has the form that OpenAI requires.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.kind != "content" {
            return Err(ApiError::value("prediction.type", "must be `content`"));
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

/// A breakdown of the generated tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// The number of predicted tokens that were used, always 0.
    pub accepted_prediction_tokens: u32,
    /// The number of predicted tokens that were computed in vain, always 0.
    pub rejected_prediction_tokens: u32,
}
