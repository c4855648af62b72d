//! The handlers of `/v1/models` and `/v1/models/{id}`, which OpenAI's and Anthropic's clients share.

pub(super) mod anthropic;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::openai::ErrorResponse;
use crate::{anthropic as messages, respond};
use anthropic::{ModelInfo, ModelPage, ModelsQuery};
use trunkline_base::error::ApiError;

/// The list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// A list with the served model.
    pub data: Vec<ModelCard>,
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
    /// The most tokens of prompt and output together.
    pub max_model_len: u32,
}

/// Describes the served model; an error while it loads and while the server drains, when it serves nothing.
fn card(app: &App) -> Result<ModelCard, ApiError> {
    let shard = app.served.serving()?;
    Ok(ModelCard {
        id: app.served.model.served_name.clone(),
        object: "model",
        created: app.served.model.created_unix_s,
        owned_by: "trunkline",
        max_model_len: app.served.validator(&shard).prompt.max_total_tokens,
    })
}

/// Describes it in Anthropic's form.
fn info(app: &App) -> Result<ModelInfo, ApiError> {
    card(app).map(|card| ModelInfo::new(card.id, card.created, card.max_model_len))
}

/// Lists the served model. Routers in front of several servers ask for it to see what is served, so that it answers 503
/// while the model loads and while the server drains. With the header `anthropic-version` the answer is an
/// AnthropicModelList.
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI", params(ModelsQuery),
    responses(
        (status = 200, description = "The served model", body = ModelList),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn list_models(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    query: Result<Query<ModelsQuery>, QueryRejection>,
) -> Response {
    if anthropic::is_client(&headers) {
        let query = query.map_err(|error| ApiError::value("query", error.body_text()));
        let page = query.and_then(|Query(query)| ModelPage::new(info(&app)?, &query));
        return respond::answer::<messages::ErrorResponse>(page.map(axum::Json));
    }
    respond::answer::<ErrorResponse>(
        card(&app).map(|card| axum::Json(ModelList { object: "list", data: vec![card] })),
    )
}

/// Describes one model. Its name may contain slashes. With the header `anthropic-version` the answer is an
/// AnthropicModel.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The served model", body = ModelCard),
        (status = 404, description = "The model is not served", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn get_model(State(app): State<Arc<App>>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let named = app.served.model.check_name(Some(&id));
    if anthropic::is_client(&headers) {
        return respond::answer::<messages::ErrorResponse>(named.and_then(|()| info(&app)).map(axum::Json));
    }
    respond::answer::<ErrorResponse>(named.and_then(|()| card(&app)).map(axum::Json))
}
