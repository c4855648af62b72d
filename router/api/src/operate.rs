//! Routes for operators: health checks and metrics.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{respond, tgi};
use crate::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::metrics::text::TextForm;
use trunkline_base::request_id::RequestId;
use trunkline_base::tenants::Caller;

/// Reports whether the server is alive: 200 `ok`, or 503 when shards have hung several times in a row.
#[utoipa::path(
    get, path = "/livez",
    responses(
        (status = 200, description = "The server is alive", body = String),
        (status = 503, description = "The server must be restarted; the error says why", body = tgi::ErrorResponse),
    )
)]
pub async fn livez(State(app): State<Arc<App>>) -> Response {
    respond::answer::<tgi::ErrorResponse>(app.models.liveness().map(|()| "ok"))
}

/// Reports whether the server is ready: 200 `ready` if the model is loaded, the step loop advances and the server is
/// not draining, or 503 with the reason.
#[utoipa::path(
    get, path = "/readyz",
    responses(
        (status = 200, description = "The server is ready", body = String),
        (status = 503, description = "The server is not ready; the error says why", body = tgi::ErrorResponse),
    )
)]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    respond::answer::<tgi::ErrorResponse>(app.models.readiness().map(|()| "ready"))
}

/// Reports whether the server is ready like `/readyz`, with an empty body, under the path that TGI uses.
#[utoipa::path(
    get, path = "/health",
    responses(
        (status = 200, description = "The server is ready"),
        (status = 503, description = "The server is not ready; the error says why", body = tgi::ErrorResponse),
    )
)]
pub async fn health(State(app): State<Arc<App>>) -> Response {
    match app.models.readiness() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => tgi::unhealthy(&error),
    }
}

/// Reports whether the server is ready, under the path that SageMaker requires. See `/health`.
#[utoipa::path(
    get, path = "/ping",
    responses(
        (status = 200, description = "The server is ready"),
        (status = 503, description = "The server is not ready; the error says why", body = tgi::ErrorResponse),
    )
)]
pub async fn ping(state: State<Arc<App>>) -> Response {
    health(state).await
}

/// Returns metrics in Prometheus' text format, or in the OpenMetrics format if the `Accept` header asks for it. A
/// tenant sees its own samples only; an admin sees those of all tenants.
#[utoipa::path(
    get, path = "/metrics",
    responses((
        status = 200, description = "The metrics", body = String, content_type = "text/plain",
    ))
)]
pub async fn metrics(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let form = TextForm::accepted_by(request.headers());
    let own = [(None, app.registry.as_ref())];
    let several = app.models.gate().is_some();
    let opened: Vec<_> = app.models.listed(&caller).filter_map(|model| model.opened().cloned()).collect();
    let models =
        opened.iter().map(|served| (several.then_some(&*served.model.served_name), &served.registry));
    let may_see = |tenant: &str| caller.is_admin() || caller.name() == Some(tenant);
    match form.render(own.into_iter().chain(models), may_see) {
        Ok(text) => {
            let response = ([(header::CONTENT_TYPE, form.content_type())], text).into_response();
            let memory = app.admission.answer_memory(&caller);
            respond::answer::<tgi::ErrorResponse>(memory.hold(response).await)
        }
        Err(error) => {
            let request_id = RequestId::of(&request);
            tracing::error!(request_id = request_id.as_str(), %error, "cannot render metrics");
            respond::error::<tgi::ErrorResponse>(&ApiError::Bug { request_id })
        }
    }
}
