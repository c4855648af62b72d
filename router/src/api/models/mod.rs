//! The handlers of `/v1/models` and `/v1/models/{id}`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::api::app::App;
use crate::api::respond;
use crate::error::ApiError;

/// The list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// A list with the served model.
    pub data: Vec<ModelCard>,
    /// Always false. Part of Anthropic's API, like the next two fields.
    pub has_more: bool,
    /// The name of the served model.
    pub first_id: String,
    /// The name of the served model.
    pub last_id: String,
}

/// A description of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// The name of the model.
    pub id: String,
    /// The object type, always `model`.
    pub object: &'static str,
    /// The time at which this server loaded the model, in Unix seconds.
    pub created: u64,
    /// The owner, always `trunkline`.
    pub owned_by: &'static str,
    /// The object type, always `model`. Part of Anthropic's API, like `display_name`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The name of the model.
    pub display_name: String,
    /// The most tokens of prompt and output together.
    pub max_model_len: u32,
}

/// Describes the served model; an error while it loads and while the server drains, when it serves nothing.
fn card(app: &App) -> Result<ModelCard, ApiError> {
    let shard = app.served.serving()?;
    let name = || app.served.model.served_name.clone();
    Ok(ModelCard {
        id: name(),
        object: "model",
        created: app.served.model.created_unix_s,
        owned_by: "trunkline",
        kind: "model",
        display_name: name(),
        max_model_len: app.served.validator(&shard).max_total_tokens,
    })
}

/// Lists the served model. Routers in front of several servers ask for it to see what is served, so that it answers 503
/// while the model loads and while the server drains.
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI",
    responses(
        (status = 200, description = "The served model", body = ModelList),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn list_models(State(app): State<Arc<App>>) -> Response {
    respond::answer::<ErrorResponse>(card(&app).map(|card| {
        let (first_id, last_id) = (card.id.clone(), card.id.clone());
        axum::Json(ModelList { object: "list", data: vec![card], has_more: false, first_id, last_id })
    }))
}

/// Describes one model. Its name may contain slashes.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The served model", body = ModelCard),
        (status = 404, description = "The model is not served", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn get_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let named = app.served.model.check_name(Some(&id));
    respond::answer::<ErrorResponse>(named.and_then(|()| card(&app)).map(axum::Json))
}
