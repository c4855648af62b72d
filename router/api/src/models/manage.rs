//! The handler of `POST /v1/models/{id}/load` and its like: administrators load, unload and pin models.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;

use super::{ModelCard, card};
use crate::app::App;
use crate::openai::ErrorResponse;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::models::{Entry, Event, Gate};

const ROUTE: &str = "/v1/models/{id}/{action}";

/// What an administrator does with a model.
enum Manage {
    Load,
    Unload,
    Pin,
    Unpin,
}

impl Manage {
    /// Parses `ID/ACTION`. The name of a model may have slashes.
    fn of_path(path: &str) -> Option<(&str, Self)> {
        let (id, action) = path.rsplit_once('/')?;
        let action = match action {
            "load" => Self::Load,
            "unload" => Self::Unload,
            "pin" => Self::Pin,
            "unpin" => Self::Unpin,
            _ => return None,
        };
        Some((id, action))
    }
}

/// Loads a model (`/v1/models/{id}/load`), unloads it once its open requests have ended (`unload`), loads it and keeps
/// it in memory (`pin`), or lets it leave again when others need its memory (`unpin`). The answer comes when that is
/// done. Only admins may, and only on a server that loads models when they are asked for.
#[utoipa::path(
    post, path = "/v1/models/{id}",
    params(("id" = String, Path, description = "The model's name, and `/load`, `/unload`, `/pin` or `/unpin`")),
    responses(
        (status = 200, description = "The model", body = ModelCard),
        (status = 400, description = "The server keeps its model in memory", body = ErrorResponse),
        (status = 404, description = "No model has this name, or the action is unknown", body = ErrorResponse),
        (status = 409, description = "The model is pinned", body = ErrorResponse),
        (status = 503, description = "The model cannot be loaded; the error says why", body = ErrorResponse),
    )
)]
pub async fn manage(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
) -> Response {
    respond::answer::<ErrorResponse>(do_it(&app, &caller, &path).await.map(axum::Json))
}

async fn do_it(app: &App, caller: &Caller, path: &str) -> Result<ModelCard, ApiError> {
    let (name, action) = Manage::of_path(path).ok_or_else(|| ApiError::UnknownRoute {
        path: format!("/v1/models/{}", path.chars().take(128).collect::<String>()),
        similar: Some(ROUTE.to_owned()),
    })?;
    let gate = app.models.gate().ok_or(ApiError::NotOnDemand)?;
    let entry = app.models.find(caller, Some(name))?;
    let model = entry.id;
    tracing::info!(model = entry.name, path, "an administrator manages a model");
    match action {
        Manage::Load => load(app, gate, &entry).await?,
        Manage::Unload => gate.unload(model, &entry.name).await?,
        Manage::Pin => {
            gate.tell(Event::Pinned { model, is_pinned: true });
            load(app, gate, &entry).await?;
        }
        Manage::Unpin => gate.tell(Event::Pinned { model, is_pinned: false }),
    }
    card(app, &entry)
}

/// Loads a model, if it can be read.
async fn load(app: &App, gate: &Gate, entry: &Entry) -> Result<(), ApiError> {
    app.models.served(entry).await?;
    gate.load(entry.id, &entry.name).await
}
