//! `/v1/history`: conversations that the server keeps for its tenants, such as those of its page.

mod types;

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::history::{History, Mode, StoreError};
use crate::kept_streams::is_id;
use crate::openai::ErrorResponse;
use crate::page::has_tag;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

use types::{
    ConversationCard, ConversationList, DeletedConversation, HistoryChange, HistoryQuery, WholeConversation,
};

/// The most conversations in one list.
const MAX_LISTED: usize = 1000;
/// The memory of a conversation in a list: its longest title as JSON, and numbers.
const LISTED_BYTES: usize = 4 * MAX_TITLE_CHARS + 512;
/// The most characters of a title.
const MAX_TITLE_CHARS: usize = 200;
/// The most characters of a search.
const MAX_SEARCH_CHARS: usize = 200;

/// Lists your conversations, those changed last first; with `?search=WORDS` those that contain all words.
///
/// With the header `If-None-Match` it answers 304 if nothing has changed since the list with that `ETag`.
#[utoipa::path(
    get, path = "/v1/history", params(HistoryQuery),
    responses(
        (status = 200, description = "The conversations", body = ConversationList),
        (status = 304, description = "Nothing has changed"),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 404, description = "The conversation `after` does not exist", body = ErrorResponse),
        (status = 503, description = "The history cannot be read", body = ErrorResponse),
    )
)]
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Response {
    respond::answer::<ErrorResponse>(list_own(&app, &caller, &headers, query).await)
}

async fn list_own(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let selection = query.selection()?;
    if owner(app, caller).is_err() {
        let list = ConversationList { object: "list", enabled: false, data: Vec::new(), has_more: false };
        return Ok(axum::Json(list).into_response());
    }
    let mut memory = app.admission.answer_memory(caller);
    memory.grow_to(selection.limit * LISTED_BYTES)?;
    let known = headers.get(header::IF_NONE_MATCH).cloned();
    let answer = work(app, caller, "", move |history, owner, _| {
        let tag = HeaderValue::from_str(&format!("\"{}\"", history.version(owner)?))
            .map_err(|error| StoreError::Failed(error.to_string()))?;
        if known.is_some_and(|known| has_tag(&known, &tag)) {
            return Ok(StatusCode::NOT_MODIFIED.into_response());
        }
        let page = history.list(owner, &selection)?;
        let data = page.listed.into_iter().map(ConversationCard::from).collect();
        let list = ConversationList { object: "list", enabled: true, data, has_more: page.has_more };
        Ok(([(header::ETAG, tag)], axum::Json(list)).into_response())
    });
    memory.hold(answer.await?).await
}

/// Returns a conversation with all of its turns; 404 `conversation_not_found`.
#[utoipa::path(
    get, path = "/v1/history/{id}",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses(
        (status = 200, description = "The conversation", body = WholeConversation),
        (status = 404, description = "The conversation does not exist", body = ErrorResponse),
        (status = 503, description = "The history cannot be read, or other answers use the memory", body = ErrorResponse),
    )
)]
pub async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Response {
    respond::answer::<ErrorResponse>(get_own(&app, &caller, &id).await)
}

async fn get_own(app: &App, caller: &Caller, id: &str) -> Result<Response, ApiError> {
    let mut memory = app.admission.answer_memory(caller);
    let num_bytes = work(app, caller, id, |history, owner, id| history.num_bytes(owner, id)).await?;
    // Its parts, and the text of the answer.
    memory.grow_to(2 * num_bytes as usize)?;
    let answer = work(app, caller, id, |history, owner, id| {
        let whole = WholeConversation::try_from(history.get(owner, id)?);
        let whole = whole.map_err(|error| StoreError::Failed(error.to_string()))?;
        Ok(axum::Json(whole).into_response())
    });
    memory.hold(answer.await?).await
}

/// Creates a conversation, or replaces it.
#[utoipa::path(
    put, path = "/v1/history/{id}", request_body = HistoryChange,
    params(("id" = String, Path, description = "An id of 1 to 64 letters, digits, `-` or `_`")),
    responses(
        (status = 200, description = "The conversation without its turns", body = ConversationCard),
        (status = 404, description = "The server keeps no history for you", body = ErrorResponse),
        (status = 503, description = "The history cannot be written", body = ErrorResponse),
    )
)]
pub async fn put(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    respond::answer::<ErrorResponse>(change(&app, &caller, &id, Mode::Replace, request).await)
}

/// Changes a conversation. What the body does not name stays, and a turn that is null is removed.
#[utoipa::path(
    patch, path = "/v1/history/{id}", request_body = HistoryChange,
    params(("id" = String, Path, description = "The id of the conversation")),
    responses(
        (status = 200, description = "The conversation without its turns", body = ConversationCard),
        (status = 404, description = "The conversation does not exist", body = ErrorResponse),
        (status = 503, description = "The history cannot be written", body = ErrorResponse),
    )
)]
pub async fn patch(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    respond::answer::<ErrorResponse>(change(&app, &caller, &id, Mode::Update, request).await)
}

async fn change(
    app: &App,
    caller: &Caller,
    id: &str,
    mode: Mode,
    request: Request,
) -> Result<Response, ApiError> {
    // A client without a history need not send a body that is in vain.
    owner(app, caller)?;
    if !is_id(id) {
        return Err(ApiError::value("id", "must have 1 to 64 letters, digits, `-` or `_`"));
    }
    let parse = |body: &[u8]| HistoryChange::parse(body)?.change();
    let (caller, _place, parsed) = app.read_of_any_model(request, parse).await?;
    let card =
        work(app, &caller, id, move |history, owner, id| history.change(owner, id, mode, &parsed)).await?;
    Ok(axum::Json(ConversationCard::from(card)).into_response())
}

/// Deletes a conversation from the history.
#[utoipa::path(
    delete, path = "/v1/history/{id}",
    params(("id" = String, Path, description = "The id of the conversation")),
    responses(
        (status = 200, description = "The conversation was deleted", body = DeletedConversation),
        (status = 404, description = "The conversation does not exist", body = ErrorResponse),
        (status = 503, description = "The history cannot be written", body = ErrorResponse),
    )
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let removed = work(&app, &caller, &id, |history, owner, id| history.remove(owner, id)).await;
    let answer = |()| axum::Json(DeletedConversation { id, object: "conversation", deleted: true });
    respond::answer::<ErrorResponse>(removed.map(answer))
}

/// Returns the history and the name under which it keeps the caller's conversations. Without keys, those of everybody
/// have one owner, if only this machine reaches the server.
fn owner<'a>(app: &App, caller: &'a Caller) -> Result<(Arc<dyn History>, &'a str), ApiError> {
    let history =
        app.history.get().ok_or(ApiError::NoHistory { hint: "start the server with `--history-path`" })?;
    match caller.name() {
        Some(name) => Ok((history.clone(), name)),
        None if caller.is_admin() => Ok((history.clone(), "")),
        None => {
            Err(ApiError::NoHistory { hint: "start the server with `--api-keys`, which tell whose they are" })
        }
    }
}

/// Calls `work` with the history and the owner's name on the blocking pool, when it is the caller's turn.
async fn work<T: Send + 'static>(
    app: &App,
    caller: &Caller,
    id: &str,
    work: impl FnOnce(&dyn History, &str, &str) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ApiError> {
    let (history, owner) = owner(app, caller)?;
    let (owner, own_id) = (owner.to_owned(), id.to_owned());
    let done = app.admission.look_blocking(caller, move || work(&*history, &owner, &own_id)).await;
    done.map_err(|error| match error {
        StoreError::Unknown => ApiError::UnknownConversation { id: id.chars().take(64).collect() },
        StoreError::Full { limit } => ApiError::HistoryFull { limit },
        StoreError::Failed(problem) => {
            tracing::error!(problem, "the history of conversations failed");
            ApiError::HistoryFailed
        }
    })
}
