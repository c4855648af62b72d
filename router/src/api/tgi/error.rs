//! Errors in TGI's form.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use trunkline_text::TextError;
use utoipa::ToSchema;

use crate::api::respond::{self, ErrorForm};
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

    /// TGI answers a request that fails validation with 422, and only a body that is not JSON with 400. A request that
    /// fails while it is computed is answered with 424.
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
            | TextError::TemplateRefused { .. }
            | TextError::TemplateFailed { .. }
            | TextError::TemplateLimit { .. }
    )
}

/// An answer of `/health`: TGI has a kind of its own for it.
pub fn unhealthy(error: &ApiError) -> Response {
    let body = ErrorResponse { error_type: "healthcheck", ..ErrorResponse::from_error(error) };
    let mut response = respond::error::<ErrorResponse>(error);
    *response.body_mut() = axum::Json(body).into_response().into_body();
    response
}
