//! The model that a query names, for routes whose bodies name none.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::openai::ErrorResponse;
use super::respond;
use crate::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

/// The query of a route that shows something of a model.
#[derive(Debug, Default, Deserialize, IntoParams)]
pub struct ModelQuery {
    /// The name of the model, on a server of several ones. The default is the first one.
    model: Option<String>,
}

/// The server from the point of view of the model that the query names.
pub struct OfModel(pub Arc<App>);

/// Why the query names no model. Its answer has OpenAI's form; a route of another dialect takes it as a `Result`.
pub struct NoModel(pub ApiError);

impl IntoResponse for NoModel {
    fn into_response(self) -> Response {
        respond::error::<ErrorResponse>(&self.0)
    }
}

impl FromRequestParts<Arc<App>> for OfModel {
    type Rejection = NoModel;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, NoModel> {
        let view = async {
            // The route says what is wrong with the rest of its query.
            let query = Query::<ModelQuery>::try_from_uri(&parts.uri);
            let name = query.ok().and_then(|Query(query)| query.model);
            match (name, parts.extensions.get::<Caller>()) {
                (Some(name), Some(caller)) => {
                    let entry = app.models.find(caller, Some(&name))?;
                    // Nothing is known of a model that was never in memory.
                    let served = entry.opened().ok_or(ApiError::ModelLoading)?;
                    Ok(app.of_model(served.clone()))
                }
                _ => Ok(app.clone()),
            }
        };
        view.await.map(Self).map_err(NoModel)
    }
}
