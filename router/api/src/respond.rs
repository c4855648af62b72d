//! Responses of handlers: the answer, or an error in the dialect's form.

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use trunkline_base::error::{ApiError, ErrorClass};

/// The body of an error in one dialect.
pub trait ErrorForm: Serialize {
    /// The name of the event that has an error as its data, if it has one.
    const EVENT: Option<&'static str> = None;

    fn from_error(error: &ApiError) -> Self;

    fn status(error: &ApiError) -> StatusCode {
        error.status()
    }
}

/// Turns the outcome of a handler into a response whose errors have the form `E`.
pub fn answer<E: ErrorForm>(outcome: Result<impl IntoResponse, ApiError>) -> Response {
    match outcome {
        Ok(answer) => answer.into_response(),
        Err(failure) => error::<E>(&failure),
    }
}

/// The header by which the SDKs of OpenAI and Anthropic decide whether to send a request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Returns an error in the form `E`, with `Retry-After` where it has one. A [`Failure`] travels with it for the log.
pub fn error<E: ErrorForm>(error: &ApiError) -> Response {
    let mut response = (E::status(error), axum::Json(E::from_error(error))).into_response();
    if let Some(seconds) = error.retry_after_s() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.forbids_retry() {
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if error.status() == StatusCode::UNAUTHORIZED {
        // RFC 9110, section 15.5.2: a 401 response names the authentication scheme.
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let field = error.param().map(Arc::from);
    response.extensions_mut().insert(Failure { code: error.code(), class: error.class(), field });
    response
}

/// The error of a response, for logs and metrics. It is one of the response's extensions.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: &'static str,
    pub class: ErrorClass,
    /// The field of the request that the error is about.
    pub field: Option<Arc<str>>,
}
