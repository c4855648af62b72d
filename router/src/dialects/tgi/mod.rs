//! The API of text-generation-inference: <https://huggingface.github.io/text-generation-inference>.

pub mod generate;
pub mod info;
pub mod platforms;
pub mod tokenize;
mod types;

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

pub use types::{
    Body, Details, GenerateAnswer, Parameters, StreamAnswer, StreamDetails, Token, finish_reason,
};

use crate::error::{ApiError, ErrorClass};

/// An error answer, also the data of an error event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TgiError)]
pub struct ErrorResponse {
    /// For people.
    pub error: String,
    /// Coarse kind, TGI's words.
    pub error_type: &'static str,
    /// Stable name, see docs/errors.md.
    pub code: &'static str,
}

impl ErrorResponse {
    /// The error in this shape.
    pub fn from_error(error: &ApiError) -> Self {
        let error_type = match (error.class(), error) {
            (_, ApiError::UnknownRoute { .. } | ApiError::UnknownMethod { .. }) => "not_found",
            (_, ApiError::InvalidApiKey { .. }) => "authentication",
            (ErrorClass::Request, _) => "validation",
            (ErrorClass::Overload, error) if error.status() == StatusCode::TOO_MANY_REQUESTS => "overloaded",
            (ErrorClass::Overload, _) => "unhealthy",
            (ErrorClass::Shard, _) => "generation",
            (ErrorClass::Bug, _) => "internal",
        };
        Self { error: error.to_string(), error_type, code: error.code() }
    }
}

/// TGI answers what fails validation with 422, and only what is not JSON with 400.
pub fn status(error: &ApiError) -> StatusCode {
    match (error.status(), error) {
        (StatusCode::BAD_REQUEST, ApiError::InvalidJson { .. } | ApiError::BodyBroken) => {
            StatusCode::BAD_REQUEST
        }
        (StatusCode::BAD_REQUEST, _) => StatusCode::UNPROCESSABLE_ENTITY,
        (status, _) => status,
    }
}
