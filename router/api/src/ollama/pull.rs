//! The handler of `/api/pull`. The server downloads its models when it starts, so a pull finds that a model is there,
//! or says which ones are.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use trunkline_http::{Events, IgnoredFields, StreamForm};
use utoipa::ToSchema;

use super::options::parse;
use super::{ErrorResponse, untagged};
use crate::app::App;
use crate::models::named;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

/// The states of a pull that has nothing to download.
const STATES: [&str; 2] = ["pulling manifest", "success"];

/// The body of a request for a model to be there.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaPullRequest)]
pub struct PullBody {
    /// The name of a model or an adapter, with or without `:latest`.
    pub model: Option<String>,
    /// An older name of `model`, which counts if both are sent.
    pub name: Option<String>,
    /// Accepted; there is nothing to download.
    pub insecure: Option<bool>,
    /// If false, the answer is one JSON object; by default it is a stream of lines.
    pub stream: Option<bool>,
}

/// The state of a pull.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaPullStatus)]
pub struct PullStatus {
    /// `success` last.
    pub status: &'static str,
}

/// Finds a model that the server has. Nothing is downloaded: the server does that for the models that it is started
/// with.
#[utoipa::path(
    post, path = "/api/pull", tag = "Ollama", request_body = PullBody,
    responses(
        (status = 200, description = "The model is there; a stream of lines unless `stream` is false", body = PullStatus),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 404, description = "The server does not have the model", body = ErrorResponse),
    )
)]
pub async fn pull(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(pulled(&app, request).await)
}

async fn pulled(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let read = |_: &App, _: &Caller, body: &[u8]| parse::<PullBody>(body, &[], &mut IgnoredFields::default());
    let (app, caller, _place, body) = app.read(request, read).await?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name);
    let name = name.ok_or_else(|| ApiError::MissingField { field: "model".to_owned() })?;
    named(&app, &caller, untagged(&name))?;
    if body.stream == Some(false) {
        return Ok(axum::Json(PullStatus { status: STATES[1] }).into_response());
    }
    let mut lines = Events::new(StreamForm::Lines);
    STATES.iter().for_each(|status| lines.json(&PullStatus { status }));
    Ok(([(header::CONTENT_TYPE, StreamForm::Lines.content_type())], lines.take()).into_response())
}
