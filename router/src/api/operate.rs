//! Routes for those who operate the server.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::app::App;
use crate::api::{Dialect, tgi};
use crate::error::ApiError;
use crate::metrics;

/// The process answers.
#[utoipa::path(
    get, path = "/livez", tag = "Operating",
    responses((status = 200, description = "The process answers", body = String))
)]
pub async fn livez() -> &'static str {
    "ok"
}

/// The model is loaded, the step loop moves, and the server is not draining.
#[utoipa::path(
    get, path = "/readyz", tag = "Operating",
    responses(
        (status = 200, description = "Requests are served", body = String),
        (status = 503, description = "Not now, and why", body = tgi::ErrorResponse),
    )
)]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    Dialect::Tgi.answer(app.readiness().map(|()| "ready"))
}

/// As `/readyz`, under TGI's name.
#[utoipa::path(
    get, path = "/health", tag = "TGI",
    responses(
        (status = 200, description = "Requests are served"),
        (status = 503, description = "Not now, and why", body = tgi::ErrorResponse),
    )
)]
pub async fn health(State(app): State<Arc<App>>) -> Response {
    match app.readiness() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => tgi::unhealthy(&error),
    }
}

/// As `/health`, under the name that SageMaker asks for.
#[utoipa::path(
    get, path = "/ping", tag = "TGI",
    responses(
        (status = 200, description = "Requests are served"),
        (status = 503, description = "Not now, and why", body = tgi::ErrorResponse),
    )
)]
pub async fn ping(state: State<Arc<App>>) -> Response {
    health(state).await
}

/// Metrics in OpenMetrics text form.
#[utoipa::path(
    get, path = "/metrics", tag = "Operating",
    responses((
        status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text",
    ))
)]
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    match metrics::render(&app.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            let request_id = crate::random::id();
            tracing::error!(request_id, %error, "metrics cannot be written");
            Dialect::Tgi.error_response(&ApiError::Bug { request_id })
        }
    }
}
