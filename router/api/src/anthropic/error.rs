//! Errors in Anthropic's shape: <https://docs.anthropic.com/en/api/errors>.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::respond::ErrorForm;
use trunkline_base::error::ApiError;

/// An error response, also sent as the data of an `error` event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicError)]
pub struct ErrorResponse {
    /// The object type, always `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The type, message and code of the error.
    pub error: ErrorBody,
}

/// The type, text and code of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicErrorBody)]
pub struct ErrorBody {
    /// Anthropic's error type, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// A description of the error for a human reader.
    pub message: String,
    /// The stable name of the error, as listed in `docs/errors.md`. Not part of Anthropic's API.
    pub code: &'static str,
}

impl ErrorForm for ErrorResponse {
    const EVENT: Option<&'static str> = Some("error");

    fn from_error(error: &ApiError) -> Self {
        let kind = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let message = overflow(error).map_or_else(|| error.to_string(), |words| format!("{words}; {error}"));
        Self { kind: "error", error: ErrorBody { kind, message, code: error.code() } }
    }
}

/// Returns Anthropic's wording for a prompt that does not fit. Clients recognise it, and shorten the conversation or
/// lower `max_tokens`.
fn overflow(error: &ApiError) -> Option<String> {
    let too_long =
        |prompt_tokens, limit| format!("prompt is too long: {prompt_tokens} tokens > {limit} maximum");
    match *error {
        ApiError::PromptTooLong { prompt_tokens, max_input_tokens, .. } => {
            Some(too_long(prompt_tokens, max_input_tokens))
        }
        ApiError::ContextLength { limit, prompt_tokens, .. } if prompt_tokens >= limit as usize => {
            Some(too_long(prompt_tokens, limit))
        }
        ApiError::ContextLength { limit, prompt_tokens, max_new_tokens, .. } => Some(format!(
            "input length and `max_tokens` exceed context limit: {prompt_tokens} + {max_new_tokens} > {limit}, \
             decrease input length or `max_tokens` and try again"
        )),
        _ => None,
    }
}
