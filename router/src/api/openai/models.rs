//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::api::app::App;
use crate::api::respond;

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One model.
    pub data: Vec<ModelCard>,
    /// False. Anthropic's, as the next two.
    pub has_more: bool,
    /// Its name.
    pub first_id: String,
    /// Its name.
    pub last_id: String,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// Its name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// When this server began to serve it, in seconds since 1970.
    pub created: u64,
    /// `trunkline`.
    pub owned_by: &'static str,
    /// `model`. Anthropic's, as the next.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its name.
    pub display_name: String,
    /// Most tokens of prompt and output; null while the model is loading.
    pub max_model_len: Option<u32>,
}

fn card(app: &App) -> ModelCard {
    ModelCard {
        id: app.served.model.served_name.clone(),
        object: "model",
        created: app.served.model.created_unix_s,
        owned_by: "trunkline",
        kind: "model",
        display_name: app.served.model.served_name.clone(),
        max_model_len: app
            .served
            .shard_info()
            .ok()
            .map(|shard| app.served.validator(&shard).max_total_tokens),
    }
}

/// Lists the served model.
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI",
    responses((status = 200, description = "The served model", body = ModelList))
)]
pub async fn list_models(State(app): State<Arc<App>>) -> axum::Json<ModelList> {
    let name = || app.served.model.served_name.clone();
    axum::Json(ModelList {
        object: "list",
        data: vec![card(&app)],
        has_more: false,
        first_id: name(),
        last_id: name(),
    })
}

/// Describes one model. The name may hold slashes.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The served model", body = ModelCard),
        (status = 404, description = "Not served", body = ErrorResponse),
    )
)]
pub async fn get_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    respond::answer::<ErrorResponse>(app.served.model.check_name(Some(&id)).map(|()| axum::Json(card(&app))))
}
