//! Errors in OpenAI's shape.

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorClass};

/// An error answer, also the data of an error event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct ErrorResponse {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiErrorBody)]
pub struct ErrorBody {
    /// For people.
    pub message: String,
    /// OpenAI's coarse kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field at fault.
    pub param: Option<String>,
    /// Stable name, see docs/errors.md.
    pub code: &'static str,
}

impl ErrorResponse {
    /// The error in this shape.
    pub fn from_error(error: &ApiError) -> Self {
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
