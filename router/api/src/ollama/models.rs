//! The handlers of `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::options::{Options, parse};
use super::{ErrorResponse, tagged, untagged};
use crate::app::App;
use crate::models::{ModelCard, cards, named};
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::ShardInfo;
use trunkline_http::{IgnoredFields, Refused};

/// The version of Ollama whose API these routes have. Clients look at it to see which fields they may send.
const API_VERSION: &str = "0.12.11";

/// Stands for never, like Ollama's own: the most nanoseconds of a signed integer.
const FOREVER: Duration = Duration::from_nanos(i64::MAX as u64);

/// Fields of `/api/show` that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "system", neutral: &["\"\""], hint: "leave it out" },
    Refused { field: "template", neutral: &["\"\""], hint: "leave it out" },
];

/// The models of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModels)]
pub struct Models {
    /// The models that the caller may use, each followed by its adapters.
    pub models: Vec<ListedModel>,
}

/// A model of the server, or an adapter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModel)]
pub struct ListedModel {
    /// The name, with a tag.
    pub name: String,
    /// The name, with a tag.
    pub model: String,
    /// The time at which this server loaded the model, as in RFC 3339.
    pub modified_at: String,
    /// The bytes of the model's weights.
    pub size: u64,
    /// A hash of weights, data types and kernels.
    pub digest: String,
    pub details: Details,
}

/// The models that are loaded.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaRunningModels)]
pub struct RunningModels {
    /// The models that are in memory.
    pub models: Vec<RunningModel>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaRunningModel)]
pub struct RunningModel {
    /// The name, with a tag.
    pub name: String,
    /// The name, with a tag.
    pub model: String,
    /// The bytes of the model's weights.
    pub size: u64,
    /// A hash of weights, data types and kernels.
    pub digest: String,
    pub details: Details,
    /// The time until which the model stays loaded if nobody uses it, as in RFC 3339; centuries from now if it stays.
    pub expires_at: String,
    /// The bytes of the weights in the memory of the device.
    pub size_vram: u64,
    /// The most tokens of prompt and output together.
    pub context_length: u32,
}

/// What is known of a model. Texts are empty for what is not.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModelDetails)]
pub struct Details {
    /// The name of the model that an adapter changes.
    pub parent_model: String,
    /// Always empty, because the server does not know the form of the model's files.
    pub format: &'static str,
    /// The architecture.
    pub family: String,
    /// The same.
    pub families: Vec<String>,
    /// Always empty, because the server knows only the bytes of the weights.
    pub parameter_size: &'static str,
    /// Always empty, because the parts of a model may have different types.
    pub quantization_level: &'static str,
}

/// The body of a request to describe a model.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaShowRequest)]
pub struct ShowBody {
    /// The name of the served model or of an adapter, with or without `:latest`; may be omitted.
    pub model: Option<String>,
    /// An older name of `model`, which counts if both are sent.
    pub name: Option<String>,
    /// Accepted; nothing is left out either way.
    pub verbose: Option<bool>,
    /// Options, which do not change the description.
    pub options: Option<Options>,
}

/// The description of a model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaDescription)]
pub struct Description {
    /// A text that names the model as Ollama's Modelfile would.
    pub modelfile: String,
    /// The parameters that the model's own file sets, each in a line.
    pub parameters: String,
    /// The source of the chat template.
    pub template: String,
    pub details: Details,
    /// Architecture, vocabulary and context, by the names of GGUF.
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking` and `embedding`, as far as the model has them.
    pub capabilities: Vec<&'static str>,
    /// The time at which this server loaded the model, as in RFC 3339.
    pub modified_at: String,
}

/// The version of the API.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaVersion)]
pub struct Version {
    /// The version of Ollama whose API the server has.
    pub version: &'static str,
}

/// Lists the models and the adapters that the key may use.
#[utoipa::path(
    get, path = "/api/tags",
    responses(
        (status = 200, description = "The models and their adapters", body = Models),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn tags(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let list = async {
        let cards = cards(&app, &caller).await?;
        let models = cards.iter().map(|card| listed(card, shard_of(&app, card).as_deref())).collect();
        app.admission.answer_memory(&caller).hold(axum::Json(Models { models }).into_response()).await
    };
    respond::answer::<ErrorResponse>(list.await)
}

/// Returns the last shard that had a model, or the model of an adapter.
fn shard_of(app: &App, card: &ModelCard) -> Option<Arc<ShardInfo>> {
    let name = card.parent.as_ref().unwrap_or(&card.id);
    let entry = app.models.all().into_iter().find(|entry| entry.name == *name)?;
    entry.opened()?.last_shard()
}

fn listed(card: &ModelCard, shard: Option<&ShardInfo>) -> ListedModel {
    let memory_bytes = || card.status.as_ref().map_or(0, |status| status.memory_bytes);
    ListedModel {
        name: tagged(&card.id),
        model: tagged(&card.id),
        modified_at: loaded_at(card),
        size: shard.map_or_else(memory_bytes, |shard| shard.weight_bytes),
        digest: shard.map(|shard| shard.numeric_fingerprint.clone()).unwrap_or_default(),
        details: details(card, shard),
    }
}

fn loaded_at(card: &ModelCard) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(card.created)).to_string()
}

fn details(card: &ModelCard, shard: Option<&ShardInfo>) -> Details {
    let family = shard.map(|shard| shard.architecture.clone()).unwrap_or_default();
    Details {
        parent_model: card.parent.as_deref().map(tagged).unwrap_or_default(),
        format: "",
        families: vec![family.clone()],
        family,
        parameter_size: "",
        quantization_level: "",
    }
}

/// Lists the models that are in memory.
#[utoipa::path(
    get, path = "/api/ps",
    responses(
        (status = 200, description = "The models that are in memory", body = RunningModels),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn running(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let list = async {
        let cards = cards(&app, &caller).await?;
        // An adapter is a part of its model.
        let models = cards.iter().filter(|card| card.parent.is_none() && card.is_loaded());
        let models = models.filter_map(|card| Some(running_model(card, &*shard_of(&app, card)?))).collect();
        app.admission.answer_memory(&caller).hold(axum::Json(RunningModels { models }).into_response()).await
    };
    respond::answer::<ErrorResponse>(list.await)
}

fn running_model(card: &ModelCard, shard: &ShardInfo) -> RunningModel {
    let ListedModel { name, model, size, digest, details, .. } = listed(card, Some(shard));
    let idle = card.status.as_ref().and_then(|status| status.leaves_in);
    let expires_at = match idle {
        Some(left) => SystemTime::now() + left,
        None => UNIX_EPOCH + Duration::from_secs(card.created) + FOREVER,
    };
    let is_on_gpu = shard.device.starts_with("cuda");
    RunningModel {
        name,
        model,
        size,
        digest,
        details,
        expires_at: humantime::format_rfc3339_seconds(expires_at).to_string(),
        size_vram: if is_on_gpu { size } else { 0 },
        context_length: card.max_model_len.unwrap_or_default(),
    }
}

/// Describes a model or an adapter.
#[utoipa::path(
    post, path = "/api/show", request_body = ShowBody,
    responses(
        (status = 200, description = "The description", body = Description),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 503, description = "The model is loading, or the server is draining", body = ErrorResponse),
    )
)]
pub async fn show(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(described(&app, request).await)
}

async fn described(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let read =
        |_: &App, _: &Caller, body: &[u8]| parse::<ShowBody>(body, REFUSED, &mut IgnoredFields::default());
    let (app, caller, _place, body) = app.read(request, read).await?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name).unwrap_or_default();
    let name = untagged(&name);
    let app = app.named(&caller, Some(name).filter(|name| !name.is_empty())).await?;
    let card = named(&app, &caller, name)?;
    let shard = app.served.last_shard();
    let memory = app.admission.answer_memory(&caller);
    memory.hold(axum::Json(description(&app, &card, shard.as_deref())).into_response()).await
}

fn description(app: &App, card: &ModelCard, shard: Option<&ShardInfo>) -> Description {
    let generates = shard.is_none_or(|shard| shard.generates);
    let model = &app.served.model;
    let templates = model.text.chat_templates.as_ref();
    let source = templates.and_then(|templates| templates.source(templates.names().next()?));
    let has = [
        ("completion", generates),
        ("tools", generates && model.reply.knows_tools()),
        ("thinking", generates && model.reply.reasons),
        (
            "embedding",
            shard.and_then(|shard| shard.vectors.as_ref()).is_some_and(|vectors| vectors.labels.is_empty()),
        ),
    ];
    Description {
        modelfile: format!("FROM {}\n", tagged(&card.id)),
        parameters: parameters(app),
        template: source.unwrap_or_default().to_owned(),
        details: details(card, shard),
        model_info: shard.map(|shard| model_info(card, shard)).unwrap_or_default(),
        capabilities: has.into_iter().filter_map(|(name, has)| has.then_some(name)).collect(),
        modified_at: loaded_at(card),
    }
}

/// Returns the defaults of sampling that the model's own file sets.
fn parameters(app: &App) -> String {
    let own = &app.served.model.text.generation_defaults;
    let set = [
        ("temperature", own.temperature.map(|value| value.to_string())),
        ("top_k", own.top_k.map(|value| value.to_string())),
        ("top_p", own.top_p.map(|value| value.to_string())),
        ("min_p", own.min_p.map(|value| value.to_string())),
        ("repeat_penalty", own.repetition_penalty.map(|value| value.to_string())),
    ];
    let lines = set.into_iter().filter_map(|(name, value)| Some(format!("{name:<30} {}", value?)));
    lines.collect::<Vec<_>>().join("\n")
}

fn model_info(card: &ModelCard, shard: &ShardInfo) -> Map<String, Value> {
    let of_model = |name: &str| format!("{}.{name}", shard.architecture);
    let mut info = Map::from_iter([
        ("general.architecture".to_owned(), json!(shard.architecture)),
        (of_model("context_length"), json!(card.max_model_len)),
        (of_model("vocab_size"), json!(shard.vocab_size)),
    ]);
    if let Some(vectors) = &shard.vectors {
        info.insert(of_model("embedding_length"), json!(vectors.size));
    }
    info
}

/// Returns the version of Ollama whose API the server has.
#[utoipa::path(
    get, path = "/api/version",
    responses((status = 200, description = "The version", body = Version))
)]
pub async fn version() -> impl IntoResponse {
    axum::Json(Version { version: API_VERSION })
}
