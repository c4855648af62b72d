//! Errors in TGI's form.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use trunkline_text::TextError;
use utoipa::ToSchema;

use crate::respond::{self, ErrorForm};
use trunkline_base::error::{ApiError, ErrorClass};

/// An error response, also sent as the data of an error event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TgiError)]
pub struct ErrorResponse {
    /// A description of the error for a human reader.
    pub error: String,
    /// TGI's error type, such as `validation`.
    pub error_type: &'static str,
    /// The stable name of the error, as listed in `docs/errors.md`. Not part of TGI's API.
    pub code: &'static str,
}

impl ErrorForm for ErrorResponse {
    fn from_error(error: &ApiError) -> Self {
        let error_type = match (error.class(), error) {
            (_, ApiError::UnknownRoute { .. } | ApiError::UnknownMethod { .. }) => "not_found",
            (_, ApiError::InvalidApiKey { .. }) => "authentication",
            (_, ApiError::Text(error)) if is_of_template(error) => "template_error",
            (ErrorClass::Request, _) => "validation",
            (ErrorClass::Overload, error) if error.status() == StatusCode::TOO_MANY_REQUESTS => "overloaded",
            (ErrorClass::Overload, _) => "unhealthy",
            (ErrorClass::Shard, _) => "generation",
            (ErrorClass::Bug, _) => "internal",
        };
        Self { error: error.to_string(), error_type, code: error.code() }
    }

    /// Returns TGI's status of an error: 422 for a request that fails validation, 400 only for a body that is not JSON,
    /// and 424 for a request that a shard failed.
    fn status(error: &ApiError) -> StatusCode {
        match (error.status(), error) {
            (StatusCode::BAD_REQUEST, ApiError::InvalidJson { .. } | ApiError::BodyBroken) => {
                StatusCode::BAD_REQUEST
            }
            (StatusCode::BAD_REQUEST, _) => StatusCode::UNPROCESSABLE_ENTITY,
            (StatusCode::BAD_GATEWAY, _) => StatusCode::FAILED_DEPENDENCY,
            (status, _) => status,
        }
    }
}

fn is_of_template(error: &TextError) -> bool {
    matches!(
        error,
        TextError::NoChatTemplate
            | TextError::NoPairTemplate
            | TextError::TemplateRefused { .. }
            | TextError::TemplateFailed { .. }
            | TextError::TemplateLimit { .. }
    )
}

/// Returns the error response of `/health`, for which TGI has a separate error type.
pub fn unhealthy(error: &ApiError) -> Response {
    let body = ErrorResponse { error_type: "healthcheck", ..ErrorResponse::from_error(error) };
    let mut response = respond::error::<ErrorResponse>(error);
    *response.body_mut() = axum::Json(body).into_response().into_body();
    response
}
