//! The handler of `/info`.

use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::app::App;
use crate::of_model::{ModelQuery, NoModel, OfModel};
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_generation::request::prompt_limits::PromptLimits;

/// The served model and the limits of the server, under TGI's names.
#[derive(Debug, Serialize, ToSchema)]
pub struct Info {
    /// The name of the served model.
    pub model_id: String,
    /// Always null, because the server does not know the revision of the model's files.
    pub model_sha: Option<&'static str>,
    /// The architecture of the model.
    pub model_architecture: String,
    /// The task of the model, always `text-generation`.
    pub model_pipeline_tag: &'static str,
    /// The backend and the instruction set.
    pub model_device_type: String,
    /// The data type of K and V in the KV cache.
    pub kv_cache_dtype: String,
    /// The most requests that are open at once.
    pub max_concurrent_requests: usize,
    /// The most outputs of one request.
    pub max_best_of: u32,
    /// The most stop strings of a request.
    pub max_stop_sequences: usize,
    /// The most tokens of a prompt.
    pub max_input_tokens: u32,
    /// The most tokens of prompt and output together.
    pub max_total_tokens: u32,
    /// The most tokens of all sequences in the KV pool.
    pub max_batch_total_tokens: u64,
    /// The most tokens that one step computes.
    pub max_batch_prefill_tokens: u32,
    /// The number of texts that are tokenized at once.
    pub validation_workers: usize,
    /// The most prompts of a request.
    pub max_client_batch_size: usize,
    /// The name of the program.
    pub router: &'static str,
    /// The version of the program.
    pub version: &'static str,
    /// Always null, because builds record no revision.
    pub sha: Option<&'static str>,
    /// Always null, like `sha`.
    pub docker_label: Option<&'static str>,
}

/// Describes a served model and the limits of the server.
#[utoipa::path(
    get, path = "/info", params(ModelQuery),
    responses(
        (status = 200, description = "The model and the limits", body = Info),
        (status = 404, description = "No model has the name of the query", body = ErrorResponse),
        (status = 503, description = "The model is loading", body = ErrorResponse),
    )
)]
pub async fn info(view: Result<OfModel, NoModel>) -> Response {
    let info = view.map_err(|NoModel(error)| error).and_then(|OfModel(app)| describe(&app));
    respond::answer::<ErrorResponse>(info.map(axum::Json))
}

fn describe(app: &App) -> Result<Info, ApiError> {
    let shard = app.served.shard_info()?;
    let PromptLimits { max_input_tokens, max_total_tokens, .. } = app.served.validator(&shard).prompt;
    Ok(Info {
        model_id: app.served.model.served_name.clone(),
        model_sha: None,
        model_architecture: shard.architecture.clone(),
        model_pipeline_tag: "text-generation",
        model_device_type: shard.device.clone(),
        kv_cache_dtype: shard.kv_dtype.clone(),
        max_concurrent_requests: app.limits.max_open,
        max_best_of: app.limits.max_best_of,
        max_stop_sequences: app.limits.max_stop_sequences,
        max_input_tokens,
        max_total_tokens,
        max_batch_total_tokens: shard.pool_tokens(),
        max_batch_prefill_tokens: shard.max_step_tokens,
        validation_workers: app.served.working.count(),
        max_client_batch_size: app.limits.max_open,
        router: "trunkline-router",
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    })
}
