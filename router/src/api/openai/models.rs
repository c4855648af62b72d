//! The handlers of `/v1/models` and `/v1/models/{id}`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::api::app::App;
use crate::api::respond;

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
    /// The most tokens of prompt and output together; null while the model is loading.
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

/// Describes one model. Its name may contain slashes.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The served model", body = ModelCard),
        (status = 404, description = "The model is not served", body = ErrorResponse),
    )
)]
pub async fn get_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    respond::answer::<ErrorResponse>(app.served.model.check_name(Some(&id)).map(|()| axum::Json(card(&app))))
}
