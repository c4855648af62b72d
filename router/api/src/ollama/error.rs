//! Errors in Ollama's form.

use serde::Serialize;
use utoipa::ToSchema;

use crate::respond::ErrorForm;
use trunkline_base::error::ApiError;

/// An error response, also sent as the last line of a stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaError)]
pub struct ErrorResponse {
    /// A description of the error for a human reader.
    pub error: String,
    /// The stable name of the error, as listed in `docs/errors.md`. Not part of Ollama's API.
    pub code: &'static str,
}

impl ErrorForm for ErrorResponse {
    fn from_error(error: &ApiError) -> Self {
        Self { error: error.to_string(), code: error.code() }
    }
}
