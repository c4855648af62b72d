//! The handlers of `/v1/models` and `/v1/models/{id}`, which OpenAI's and Anthropic's clients share.

pub(super) mod anthropic;
pub(super) mod manage;

use std::sync::Arc;
use std::time::Duration;

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
use trunkline_generation::models::{Entry, LOADED, Shown};

/// The list of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The models that the caller may use, each followed by its adapters.
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
    /// The most tokens of prompt and output together. It is absent for a model that was never in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// The path or Hub id of an adapter, for admins, and its name for others. Part of vLLM's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The name of the model that an adapter changes. Part of vLLM's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The state of the model, where models are loaded when they are asked for. Part of llama.cpp's API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ModelStatus>,
}

/// The state of a model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ModelStatus {
    /// `loaded`, `unloaded`, `queued`, `loading`, `unloading` or `failed`.
    pub value: &'static str,
    /// Why the model cannot be used, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The memory that the model needs, as far as it is known.
    pub memory_bytes: u64,
    /// True if the model stays in memory.
    pub pinned: bool,
    /// The time after which an idle model leaves the memory, if it does.
    #[serde(skip)]
    pub leaves_in: Option<Duration>,
}

impl From<Shown> for ModelStatus {
    fn from(shown: Shown) -> Self {
        let Shown { word, detail, bytes, is_pinned, leaves_in } = shown;
        Self { value: word, detail, memory_bytes: bytes, pinned: is_pinned, leaves_in }
    }
}

impl ModelCard {
    /// Returns the card of an adapter of this model.
    fn of_adapter(&self, adapter: &Adapter, caller: &Caller) -> Self {
        let root = adapter.source_for(caller).to_owned();
        Self { id: adapter.name.to_string(), root: Some(root), parent: Some(self.id.clone()), ..self.clone() }
    }

    /// Returns true if the model is in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.status.as_ref().is_none_or(|status| status.value == LOADED)
    }

    /// Returns the card in Anthropic's form.
    fn info(self) -> ModelInfo {
        ModelInfo::new(self.id, self.created, self.max_model_len)
    }
}

/// Describes a model. On a server of one model, an error while it loads; on any, one while the server drains.
fn card(app: &App, entry: &Entry) -> Result<ModelCard, ApiError> {
    let status = app.models.gate().map(|gate| gate.shown(entry.id).into());
    let served = entry.opened();
    let shard = match (served, &status) {
        (Some(served), None) => Some(served.serving()?),
        (Some(served), Some(_)) => served.last_shard(),
        (None, _) => None,
    };
    app.served.not_draining()?;
    let limits = served.zip(shard).map(|(served, shard)| served.validator(&shard).prompt.max_total_tokens);
    Ok(ModelCard {
        id: entry.name.clone(),
        object: "model",
        created: app.models.created(entry),
        owned_by: "trunkline",
        max_model_len: limits,
        root: None,
        parent: None,
        status,
    })
}

/// Describes the models that the caller may use and their adapters.
pub(crate) async fn cards(app: &App, caller: &Caller) -> Result<Vec<ModelCard>, ApiError> {
    let mut cards = Vec::new();
    for entry in app.models.listed(caller) {
        let model = card(app, &entry)?;
        cards.push(model.clone());
        if let Some(served) = entry.opened() {
            let adapters = served.adapters.listed(caller).await;
            cards.extend(adapters.iter().map(|adapter| model.of_adapter(adapter, caller)));
        }
    }
    Ok(cards)
}

/// Describes the model or adapter with this name.
pub(crate) fn named(app: &App, caller: &Caller, name: &str) -> Result<ModelCard, ApiError> {
    let entry = app.models.find(caller, Some(name))?;
    let chosen = match entry.opened() {
        Some(served) => served.choose(caller, Named::model(Some(name)))?,
        None => None,
    };
    let model = card(app, &entry)?;
    Ok(chosen.map_or_else(|| model.clone(), |chosen| model.of_adapter(chosen.adapter(), caller)))
}

/// Lists the models and the adapters that the key may use. Routers in front of several servers ask for it to see what
/// is served, so that it answers 503 while the model loads and while the server drains. With the header
/// `anthropic-version` the answer is an AnthropicModelList.
#[utoipa::path(
    get, path = "/v1/models", params(ModelsQuery),
    responses(
        (status = 200, description = "The models and their adapters", body = ModelList),
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

/// Describes one model or adapter; 404 for another. Its name may contain slashes. With the header `anthropic-version`
/// the answer is an AnthropicModel.
#[utoipa::path(
    get, path = "/v1/models/{id}", params(("id" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The model or adapter", body = ModelCard),
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
