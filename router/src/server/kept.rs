//! Keeps streamed answers of requests that ask for it; see [`KeptStreams`](trunkline_api::kept_streams::KeptStreams).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use trunkline_api::app::App;
use trunkline_api::dialect::Errors;
use trunkline_api::kept_streams::{NotKept, is_id};
use trunkline_api::route::{Kind, Route};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

/// The header of a request whose answer is kept. Its value is the id of the stream.
const KEEP_STREAM: &str = "trunkline-stream";

/// Keeps the answer of a request with the header [`KEEP_STREAM`], if it is a stream.
pub async fn keep(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let generates = |route: &Route| matches!(route.kind, Kind::Chats(_) | Kind::Completes(_));
    let streams = Route::of(&request).is_some_and(generates) && app.limits.max_response_store_bytes > 0;
    let Some(id) = request.headers().get(KEEP_STREAM).filter(|_| streams) else {
        return next.run(request).await;
    };
    let errors = Errors::of(&request);
    let Some(id) = id.to_str().ok().filter(|id| is_id(id)).map(str::to_owned) else {
        let problem = "must have 1 to 64 letters, digits, `-` or `_`";
        return errors.response(&ApiError::value("Trunkline-Stream", problem));
    };
    let caller = match Caller::of_request(&request) {
        Ok(caller) => caller,
        Err(error) => return errors.response(&error),
    };
    let kept = app.kept_streams.keep(caller.name(), &id, async move { next.run(request).await }).await;
    kept.unwrap_or_else(|error| {
        errors.response(&match error {
            NotKept::Taken => ApiError::StreamExists { id },
            NotKept::Deleted => ApiError::UnknownStream { id },
        })
    })
}
