//! `/info`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::api::app::App;
use crate::api::respond;

/// What is served and with which limits. Names as TGI has them.
#[derive(Debug, Serialize, ToSchema)]
pub struct Info {
    /// The served model's name.
    pub model_id: String,
    /// Null: a revision belongs to the files, of which this process knows the path alone.
    pub model_sha: Option<&'static str>,
    /// Its architecture.
    pub model_architecture: String,
    /// `text-generation`.
    pub model_pipeline_tag: &'static str,
    /// Backend and instruction set.
    pub model_device_type: String,
    /// How K and V are stored.
    pub kv_cache_dtype: String,
    /// Most requests open at once.
    pub max_concurrent_requests: usize,
    /// Most outputs per request.
    pub max_best_of: u32,
    /// Most stop strings.
    pub max_stop_sequences: usize,
    /// Most tokens of a prompt.
    pub max_input_tokens: u32,
    /// Most tokens of prompt and output.
    pub max_total_tokens: u32,
    /// Most tokens of all sequences in the KV pool.
    pub max_batch_total_tokens: u64,
    /// Most tokens a step computes.
    pub max_batch_prefill_tokens: u32,
    /// Texts tokenized at once.
    pub validation_workers: usize,
    /// Most prompts of a request.
    pub max_client_batch_size: usize,
    /// This program.
    pub router: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Null: builds carry no revision.
    pub sha: Option<&'static str>,
    /// Null, as `sha`.
    pub docker_label: Option<&'static str>,
}

/// Describes the server.
#[utoipa::path(
    get, path = "/info", tag = "TGI",
    responses(
        (status = 200, description = "Model and limits", body = Info),
        (status = 503, description = "The model is loading", body = ErrorResponse),
    )
)]
pub async fn info(State(app): State<Arc<App>>) -> Response {
    let shard = match app.served.shard_info() {
        Ok(shard) => shard,
        Err(error) => return respond::error::<ErrorResponse>(&error),
    };
    let validator = app.served.validator(&shard);
    axum::Json(Info {
        model_id: app.served.model.served_name.clone(),
        model_sha: None,
        model_architecture: shard.architecture.clone(),
        model_pipeline_tag: "text-generation",
        model_device_type: shard.device.clone(),
        kv_cache_dtype: shard.kv_dtype.clone(),
        max_concurrent_requests: app.limits.max_concurrent_requests,
        max_best_of: app.limits.max_best_of,
        max_stop_sequences: validator.max_stop_sequences,
        max_input_tokens: validator.max_input_tokens,
        max_total_tokens: validator.max_total_tokens,
        max_batch_total_tokens: shard.pool_tokens(),
        max_batch_prefill_tokens: shard.max_step_tokens,
        validation_workers: app.served.num_tokenizing,
        max_client_batch_size: app.limits.max_concurrent_requests,
        router: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    })
    .into_response()
}
