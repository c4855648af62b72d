//! The handler of `/v1/responses/{id}/input_items`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trunkline_text::ChatMessage;
use utoipa::{IntoParams, ToSchema};

use super::unknown;
use crate::api::app::App;
use crate::api::openai::ErrorResponse;
use crate::api::respond;
use crate::error::ApiError;
use crate::tenants::Caller;

/// The items of a page, unless the query says otherwise.
const DEFAULT_LIMIT: usize = 20;
/// The most items of a page, as in OpenAI's API.
const MAX_LIMIT: usize = 100;

/// The query of a request for a page of input items.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ItemsQuery {
    /// `asc` or `desc`, the order of the items; the default is `desc`, newest first.
    pub order: Option<String>,
    /// The id of the item after which the page begins.
    pub after: Option<String>,
    /// The most items of the page; the default is 20.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
}

/// A page of the input items of a response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesItemList)]
pub struct ItemList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The items: messages, calls, their results and reasoning.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Value>,
    /// The id of the first item; null if there is none.
    pub first_id: Option<String>,
    /// The id of the last item; null if there is none.
    pub last_id: Option<String>,
    /// True if more items follow the last one.
    pub has_more: bool,
}

/// Returns the input items of a stored response, without those of the responses that it continues.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "OpenAI",
    params(("id" = String, Path, description = "The id of the response"), ItemsQuery),
    responses(
        (status = 200, description = "A page of the items", body = ItemList),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 404, description = "The response is not stored", body = ErrorResponse),
    )
)]
pub async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<ItemsQuery>, QueryRejection>,
    request: Request,
) -> Response {
    respond::answer::<ErrorResponse>(answer(&app, &id, query, request).await)
}

async fn answer(
    app: &App,
    id: &str,
    query: Result<Query<ItemsQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of_request(&request)?;
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let (turn, _) = app.responses.get(caller.name(), id).ok_or_else(|| unknown(id))?;
    let page = page(items(id, turn.input()), &query)?;
    let answer = axum::response::IntoResponse::into_response(axum::Json(page));
    app.admission.answer_memory(&caller).hold(answer).await
}

fn page(mut items: Vec<Value>, query: &ItemsQuery) -> Result<ItemList, ApiError> {
    match query.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::value("order", "must be `asc` or `desc`")),
    }
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::value("limit", format!("is {limit}, but a page has 1 to {MAX_LIMIT} items")));
    }
    if let Some(after) = &query.after {
        let at = items.iter().position(|item| item["id"] == after.as_str());
        let at = at.ok_or_else(|| ApiError::value("after", "is not the id of an input item"))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: &Value| item["id"].as_str().map(str::to_owned);
    Ok(ItemList {
        object: "list",
        first_id: items.first().and_then(id),
        last_id: items.last().and_then(id),
        data: items,
        has_more,
    })
}

/// Converts messages of a stored conversation to items, oldest first. Their ids are the same each time.
fn items(response_id: &str, messages: &[ChatMessage]) -> Vec<Value> {
    let mut items: Vec<Value> = messages.iter().flat_map(items_of).collect();
    let number = response_id.rsplit('_').next().unwrap_or_default();
    for (idx, item) in items.iter_mut().enumerate() {
        let kind = match item["type"].as_str() {
            Some("message") => "msg",
            Some("reasoning") => "rs",
            _ => "fc",
        };
        item["id"] = format!("{kind}_{number}_{idx}").into();
    }
    items
}

fn items_of(message: &ChatMessage) -> Vec<Value> {
    let mut items = Vec::new();
    let text = message.content.as_deref();
    if let Some(Value::String(reasoning)) = message.extra.get("reasoning_content") {
        let content = json!([{"type": "reasoning_text", "text": reasoning}]);
        items.push(json!({"type": "reasoning", "summary": [], "content": content, "status": "completed"}));
    }
    match (message.role.as_str(), text) {
        ("tool", text) => items.push(json!({
            "type": "function_call_output", "call_id": message.extra.get("tool_call_id"), "output": text,
            "status": "completed",
        })),
        (role, Some(text)) => {
            let kind = if role == "assistant" { "output_text" } else { "input_text" };
            let mut part = json!({"type": kind, "text": text});
            if role == "assistant" {
                part["annotations"] = json!([]);
            }
            items.push(json!({"type": "message", "role": role, "content": [part], "status": "completed"}));
        }
        (_, None) => {}
    }
    let calls = message.extra.get("tool_calls").and_then(Value::as_array);
    items.extend(calls.into_iter().flatten().map(|call| {
        let arguments = match &call["function"]["arguments"] {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        };
        json!({
            "type": "function_call", "call_id": call["id"], "name": call["function"]["name"],
            "arguments": arguments, "status": "completed",
        })
    }));
    items
}
