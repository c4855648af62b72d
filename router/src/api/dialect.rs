//! The dialects: which one a path belongs to, and the shape of its errors.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{anthropic, openai, tgi};
use crate::error::{ApiError, ErrorClass};
use crate::tenants::RateHeaders;

/// Whose shape an error takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/messages...`.
    Anthropic,
    /// `/v1/...`.
    OpenAi,
    /// Everything else.
    Tgi,
}

impl Dialect {
    /// The dialect of a path.
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            return Self::Anthropic;
        }
        if path == "/v1" || path.starts_with("/v1/") { Self::OpenAi } else { Self::Tgi }
    }

    /// The rate headers that its clients read.
    pub fn rate_headers(self) -> RateHeaders {
        match self {
            Self::Anthropic => RateHeaders::Anthropic,
            Self::OpenAi | Self::Tgi => RateHeaders::OpenAi,
        }
    }

    /// What a handler came to as this dialect's answer.
    pub fn answer(self, outcome: Result<impl IntoResponse, ApiError>) -> Response {
        match outcome {
            Ok(answer) => answer.into_response(),
            Err(error) => self.error_response(&error),
        }
    }

    /// The error as this dialect's answer, with `Retry-After` where it has one. `Failure` travels along for the log.
    pub fn error_response(self, error: &ApiError) -> Response {
        let mut response = match self {
            Self::Anthropic => {
                (error.status(), axum::Json(anthropic::ErrorResponse::from_error(error))).into_response()
            }
            Self::OpenAi => {
                (error.status(), axum::Json(openai::ErrorResponse::from_error(error))).into_response()
            }
            Self::Tgi => {
                (tgi::status(error), axum::Json(tgi::ErrorResponse::from_error(error))).into_response()
            }
        };
        if let Some(seconds) = error.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if error.status() == StatusCode::UNAUTHORIZED {
            // RFC 9110, section 15.5.2: a 401 says how to come in.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Failure { code: error.code(), class: error.class() });
        response
    }
}

/// What went wrong, for logs and metrics; travels with the response.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    /// `ApiError::code`.
    pub code: &'static str,
    /// `ApiError::class`.
    pub class: ErrorClass,
}
