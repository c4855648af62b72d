//! Routes below `/v1/kv`, with which operators and tenants inspect the KV cache.

pub mod events;
pub mod node;
mod number;
pub mod totals;
pub mod tree;

use axum::response::Response;
use serde::Serialize;

use crate::openai::ErrorResponse;
use crate::respond;
use trunkline_base::error::ApiError;

fn render(result: Result<impl Serialize, ApiError>) -> Response {
    respond::answer::<ErrorResponse>(result.map(axum::Json))
}
