//! `/v1/streams`: streamed answers that a client has left and comes back to.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::kept_streams::Listed;
use crate::openai::ErrorResponse;
use crate::respond;
use crate::stream::event_stream;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

/// A kept stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamCard {
    /// The id that the request gave the stream.
    id: String,
    /// The object type, always `stream`.
    object: &'static str,
    /// The time at which the request arrived, in seconds since 1970.
    created: u64,
    /// True while the answer is generated.
    running: bool,
    /// The memory that it takes.
    memory_bytes: usize,
}

/// The kept streams of a tenant, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamList {
    /// The object type, always `list`.
    object: &'static str,
    data: Vec<StreamCard>,
}

/// A stream that was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeletedStream {
    id: String,
    /// The object type, always `stream`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// Lists your kept streams, newest first.
///
/// Without API keys the list is empty, since nobody knows whose a stream is: only those find it who know its id.
#[utoipa::path(
    get, path = "/v1/streams",
    responses((status = 200, description = "The streams, newest first", body = StreamList)),
)]
pub async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let card = |Listed { id, created, is_running, num_bytes }: Listed| StreamCard {
        id,
        object: "stream",
        created,
        running: is_running,
        memory_bytes: num_bytes,
    };
    let own = caller.name().map(|tenant| app.kept_streams.list(tenant)).unwrap_or_default();
    let data = own.into_iter().map(card).collect();
    axum::Json(StreamList { object: "list", data }).into_response()
}

/// Returns a kept stream from its beginning, and follows it to its end; 404 `stream_not_found`.
///
/// A request whose header `Trunkline-Stream` has an id goes on when its client is gone. Its answer is kept for a day
/// after its end, while there is memory for it.
#[utoipa::path(
    get, path = "/v1/streams/{id}",
    params(("id" = String, Path, description = "The id of the stream")),
    responses(
        (status = 200, description = "The events of the request's own route", content_type = "text/event-stream", body = String),
        (status = 404, description = "The stream is not kept", body = ErrorResponse),
    )
)]
pub async fn read(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Response {
    match app.kept_streams.read(caller.name(), &id).await {
        Some((form, body)) => event_stream(body, form),
        None => respond::answer::<ErrorResponse>(Err::<(), _>(unknown(&id))),
    }
}

/// Stops a kept stream if it runs, and forgets it.
#[utoipa::path(
    delete, path = "/v1/streams/{id}",
    params(("id" = String, Path, description = "The id of the stream")),
    responses(
        (status = 200, description = "The stream was deleted", body = DeletedStream),
        (status = 404, description = "The stream is not kept", body = ErrorResponse),
    )
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let is_removed = app.kept_streams.remove(caller.name(), &id);
    let deleted = if is_removed { Ok(()) } else { Err(unknown(&id)) };
    let answer = |()| axum::Json(DeletedStream { id, object: "stream", deleted: true });
    respond::answer::<ErrorResponse>(deleted.map(answer))
}

fn unknown(id: &str) -> ApiError {
    ApiError::UnknownStream { id: id.chars().take(64).collect() }
}
