//! The handlers of `/v1/models` and `/v1/models/{id}`, which OpenAI's and Anthropic's clients share.

pub(super) mod anthropic;

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::openai::ErrorResponse;
use crate::{anthropic as messages, respond};
use anthropic::{ModelInfo, ModelPage, ModelsQuery};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::{Adapter, Named};

/// The list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The served model, and after it the adapters that the caller may use.
    pub data: Vec<ModelCard>,
}

/// A description of a model, or of an adapter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModelCard {
    /// The name of the model or adapter.
    pub id: String,
    /// The object type, always `model`.
    pub object: &'static str,
    /// The time at which this server loaded the model, in Unix seconds.
    pub created: u64,
    /// The owner, always `trunkline`.
    pub owned_by: &'static str,
    /// The most tokens of prompt and output together.
    pub max_model_len: u32,
    /// The path or Hub id of an adapter, for admins, and its name for others. Part of vLLM's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The name of the model that an adapter changes. Part of vLLM's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl ModelCard {
    /// Returns the card of an adapter of this model.
    fn of_adapter(&self, adapter: &Adapter, caller: &Caller) -> Self {
        let root = adapter.source_for(caller).to_owned();
        Self { id: adapter.name.to_string(), root: Some(root), parent: Some(self.id.clone()), ..self.clone() }
    }

    /// Returns the card in Anthropic's form.
    fn info(self) -> ModelInfo {
        ModelInfo::new(self.id, self.created, self.max_model_len)
    }
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
        root: None,
        parent: None,
    })
}

/// Describes the served model and its adapters.
pub(crate) async fn cards(app: &App, caller: &Caller) -> Result<Vec<ModelCard>, ApiError> {
    let model = card(app)?;
    let adapters = app.served.adapters.listed(caller).await;
    let adapters: Vec<ModelCard> = adapters.iter().map(|adapter| model.of_adapter(adapter, caller)).collect();
    Ok([vec![model], adapters].concat())
}

/// Describes the model or adapter with this name.
pub(crate) fn named(app: &App, caller: &Caller, id: &str) -> Result<ModelCard, ApiError> {
    let chosen = app.served.choose(caller, Named::model(Some(id)))?;
    let model = card(app)?;
    Ok(chosen.map_or_else(|| model.clone(), |chosen| model.of_adapter(chosen.adapter(), caller)))
}

/// Lists the served model and its adapters. Routers in front of several servers ask for it to see what is served, so
/// that it answers 503 while the model loads and while the server drains. With the header `anthropic-version` the
/// answer is an AnthropicModelList.
#[utoipa::path(
    get, path = "/v1/models", tag = "OpenAI", params(ModelsQuery),
    responses(
        (status = 200, description = "The served model and its adapters", body = ModelList),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn list_models(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Result<Query<ModelsQuery>, QueryRejection>,
) -> Response {
    if anthropic::is_client(&headers) {
        return respond::answer::<messages::ErrorResponse>(page(&app, &caller, query).await);
    }
    let list = async {
        let list = ModelList { object: "list", data: cards(&app, &caller).await? };
        app.admission.answer_memory(&caller).hold(axum::Json(list).into_response()).await
    };
    respond::answer::<ErrorResponse>(list.await)
}

async fn page(
    app: &App,
    caller: &Caller,
    query: Result<Query<ModelsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let models = cards(app, caller).await?.into_iter().map(ModelCard::info).collect();
    let page = ModelPage::new(models, &query)?;
    app.admission.answer_memory(caller).hold(axum::Json(page).into_response()).await
}

/// Describes one model or adapter. Its name may contain slashes. With the header `anthropic-version` the answer is an
/// AnthropicModel.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The served model or an adapter", body = ModelCard),
        (status = 404, description = "The model is not served", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn get_model(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    let card = named(&app, &caller, &id);
    if anthropic::is_client(&headers) {
        return respond::answer::<messages::ErrorResponse>(card.map(|card| axum::Json(card.info())));
    }
    respond::answer::<ErrorResponse>(card.map(axum::Json))
}
