//! The served model in the form of Anthropic's Models API: <https://docs.anthropic.com/en/api/models-list>.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use trunkline_base::error::ApiError;

/// The most models of a page, and how many it has if the query does not say, as in Anthropic's API.
const MAX_LIMIT: usize = 1000;
const DEFAULT_LIMIT: usize = 20;

/// The query of a request for a page of models, for Anthropic's clients. OpenAI's have none.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelsQuery {
    /// The name of the model after which the page begins.
    pub after_id: Option<String>,
    /// The name of the model before which the page ends.
    pub before_id: Option<String>,
    /// The most models of the page; the default is 20.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// A page of models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelList)]
pub struct ModelPage {
    /// The served model and its adapters, as far as they are on the page.
    pub data: Vec<ModelInfo>,
    /// True if there are more in the direction of the query.
    pub has_more: bool,
    /// The name of the first model of the page.
    pub first_id: Option<String>,
    /// The name of the last model of the page.
    pub last_id: Option<String>,
}

/// A description of a model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModel)]
pub struct ModelInfo {
    /// The object type, always `model`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The name of the model.
    pub id: String,
    /// The name of the model.
    pub display_name: String,
    /// The time at which this server loaded the model, as in RFC 3339.
    pub created_at: String,
    /// The model's stage, always `active`.
    pub lifecycle: &'static str,
    /// The most tokens of prompt and output together. It is absent for a model that was never in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u32>,
}

impl ModelInfo {
    pub fn new(name: String, created_unix_s: u64, max_input_tokens: Option<u32>) -> Self {
        let created = UNIX_EPOCH + Duration::from_secs(created_unix_s);
        Self {
            kind: "model",
            display_name: name.clone(),
            id: name,
            created_at: humantime::format_rfc3339_seconds(created).to_string(),
            lifecycle: "active",
            max_input_tokens,
        }
    }
}

impl ModelPage {
    /// Returns a page of these models. There is nothing before or after one that is unknown.
    pub fn new(mut models: Vec<ModelInfo>, query: &ModelsQuery) -> Result<Self, ApiError> {
        if let Some(limit) = query.limit.filter(|limit| !(1..=MAX_LIMIT).contains(limit)) {
            return Err(ApiError::value(
                "limit",
                format!("is {limit}, but a page has 1 to {MAX_LIMIT} models"),
            ));
        }
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        let place = |id: &str| models.iter().position(|model| model.id == id);
        let end = query.before_id.as_deref().map(|id| place(id).unwrap_or(0));
        let begin = query.after_id.as_deref().map(|id| place(id).map_or(models.len(), |place| place + 1));
        models.truncate(end.unwrap_or(models.len()));
        models.drain(..begin.unwrap_or(0).min(models.len()));
        let has_more = models.len() > limit;
        // A page before a model is the one next to it.
        match end {
            Some(_) if has_more => drop(models.drain(..models.len() - limit)),
            _ => models.truncate(limit),
        }
        let id = |model: Option<&ModelInfo>| model.map(|model| model.id.clone());
        Ok(Self { has_more, first_id: id(models.first()), last_id: id(models.last()), data: models })
    }
}

/// Returns true if the request comes from a client of Anthropic's API, each of which sends this header.
pub fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}
