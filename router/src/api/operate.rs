//! Routes for those who operate the server.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{respond, tgi};
use crate::api::app::App;
use crate::error::ApiError;
use crate::metrics::text::TextForm;
use crate::request_id::RequestId;

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
    respond::answer::<tgi::ErrorResponse>(app.served.readiness().map(|()| "ready"))
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
    match app.served.readiness() {
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

/// Metrics in Prometheus' text form, or in OpenMetrics' if the client asks for it.
#[utoipa::path(
    get, path = "/metrics", tag = "Operating",
    responses((
        status = 200, description = "Prometheus text", body = String, content_type = "text/plain",
    ))
)]
pub async fn metrics(State(app): State<Arc<App>>, request: Request) -> Response {
    let form = TextForm::accepted_by(request.headers());
    match form.render(&app.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(error) => {
            let request_id = RequestId::of(&request);
            tracing::error!(request_id = request_id.as_str(), %error, "metrics cannot be written");
            respond::error::<tgi::ErrorResponse>(&ApiError::Bug { request_id })
        }
    }
}
