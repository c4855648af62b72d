//! The handler of `/api/delete`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::options::parse;
use super::{ErrorResponse, untagged};
use crate::app::App;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_http::IgnoredFields;

/// The body of a request to delete a model.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaDeleteRequest)]
pub struct DeleteBody {
    /// The name of the model, with or without `:latest`.
    pub model: Option<String>,
    /// An older name of `model`, which counts if both are sent.
    pub name: Option<String>,
}

/// Removes a model that a request has added, with its files. Its open requests are finished. Only admins may.
#[utoipa::path(
    delete, path = "/api/delete", request_body = DeleteBody,
    responses(
        (status = 200, description = "The model and its files are gone"),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 404, description = "The server does not have the model", body = ErrorResponse),
        (status = 409, description = "The model cannot be deleted; the error says why", body = ErrorResponse),
    )
)]
pub async fn delete(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(deleted(&app, request).await)
}

async fn deleted(app: &App, request: Request) -> Result<(), ApiError> {
    let read = |body: &[u8]| parse::<DeleteBody>(body, &[], &mut IgnoredFields::default());
    let (caller, _place, body) = app.read_of_any_model(request, read).await?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name);
    let name = name.ok_or_else(|| ApiError::MissingField { field: "model".to_owned() })?;
    let entry = app.models.find(&caller, Some(untagged(&name)))?;
    let finder = app.models.finder().ok_or(ApiError::NotOnDemand)?;
    tracing::info!(model = entry.name, "an administrator deletes a model");
    let deleted = finder.delete(entry.id).await;
    deleted.map_err(|problem| ApiError::ModelNotDeleted { model: entry.name.clone(), problem })
}
