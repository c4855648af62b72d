//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::app::App;
use crate::dialects::Dialect;

/// All models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One model.
    pub data: Vec<ModelCard>,
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
    /// Most tokens of prompt and output; null while the model is loading.
    pub max_model_len: Option<u32>,
}

fn card(app: &App) -> ModelCard {
    ModelCard {
        id: app.model.served_name.clone(),
        object: "model",
        created: app.model.created_unix_s,
        owned_by: "trunkline",
        max_model_len: app.shard_info().ok().map(|shard| app.validator(&shard).max_total_tokens),
    }
}

/// Lists the served model.
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI",
    responses((status = 200, description = "The served model", body = ModelList))
)]
pub async fn list_models(State(app): State<Arc<App>>) -> axum::Json<ModelList> {
    axum::Json(ModelList { object: "list", data: vec![card(&app)] })
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
    Dialect::OpenAi.answer(app.model.check_name(Some(&id)).map(|()| axum::Json(card(&app))))
}
