//! Errors in OpenAI's form.

use serde::Serialize;
use utoipa::ToSchema;

use crate::respond::ErrorForm;
use trunkline_base::error::{ApiError, ErrorClass};

/// An error response, also sent as the data of an error event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct ErrorResponse {
    /// The message, type, field and code of the error.
    pub error: ErrorBody,
}

/// The text, type, field and code of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiErrorBody)]
pub struct ErrorBody {
    /// A description of the error for a human reader.
    pub message: String,
    /// OpenAI's error type, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field that caused the error, if one did.
    pub param: Option<String>,
    /// The stable name of the error, as listed in `docs/errors.md`.
    pub code: &'static str,
}

impl ErrorForm for ErrorResponse {
    fn from_error(error: &ApiError) -> Self {
        let kind = match (error.class(), error.status().as_u16()) {
            (ErrorClass::Request, _) => "invalid_request_error",
            (ErrorClass::Overload, 429) => "rate_limit_error",
            (ErrorClass::Overload, _) => "service_unavailable_error",
            (ErrorClass::Shard | ErrorClass::Bug, _) => "server_error",
        };
        let param = error.param().map(str::to_owned);
        Self { error: ErrorBody { message: error.to_string(), kind, param, code: error.code() } }
    }
}
