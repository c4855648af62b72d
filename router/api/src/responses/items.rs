//! The handler of `/v1/responses/{id}/input_items`.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trunkline_text::{ChatMessage, ModelText};
use utoipa::{IntoParams, ToSchema};

use super::unknown;
use crate::app::App;
use crate::message_size::json_bytes;
use crate::openai::ErrorResponse;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::answer_memory::BYTES_OF_TEXT_BYTE;

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
    get, path = "/v1/responses/{id}/input_items",
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
    let page = Page::new(id, turn.input(), &query)?;
    let num_bytes = page.num_bytes(turn.input());
    let mut memory = app.admission.answer_memory(&caller);
    memory.grow_to(turn.size().num_bytes + BYTES_OF_TEXT_BYTE * num_bytes)?;
    let write = move |_: &ModelText| {
        let answer = axum::Json(page.list(turn.input())).into_response();
        Ok::<_, ApiError>((answer, memory))
    };
    let (answer, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
    memory.hold(answer).await
}

/// The place of an item in the messages of a turn.
#[derive(Debug, Clone, Copy)]
struct Place {
    message_idx: usize,
    part: Part,
}

/// The part of a message that is an item.
#[derive(Debug, Clone, Copy)]
enum Part {
    Reasoning,
    Text,
    Call(usize),
}

/// The items of a page, which are not copied yet.
struct Page {
    /// The last part of the response's id, which is also in the ids of its input items.
    number: String,
    /// The items with their numbers among all items, in the order of the page.
    places: Vec<(usize, Place)>,
    has_more: bool,
}

impl Page {
    fn new(response_id: &str, messages: &[ChatMessage], query: &ItemsQuery) -> Result<Self, ApiError> {
        let is_ascending = match query.order.as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::value("order", "must be `asc` or `desc`")),
        };
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(ApiError::value(
                "limit",
                format!("is {limit}, but a page has 1 to {MAX_LIMIT} items"),
            ));
        }
        let number = response_id.rsplit('_').next().unwrap_or_default().to_owned();
        let mut all: Vec<(usize, Place)> = places(messages).enumerate().collect();
        if !is_ascending {
            all.reverse();
        }
        let mut first = 0;
        if let Some(after) = &query.after {
            let is_after =
                |(idx, place): &(usize, Place)| place.id(messages, &number, *idx) == after.as_str();
            let number = after.rsplit('_').next().and_then(|text| text.parse::<usize>().ok());
            let at = number.and_then(|number| all.iter().position(|(idx, _)| *idx == number));
            let at = at.filter(|at| is_after(&all[*at]));
            first = 1 + at.ok_or_else(|| ApiError::value("after", "is not the id of an input item"))?;
        }
        let has_more = all.len() - first > limit;
        let places = all.into_iter().skip(first).take(limit).collect();
        Ok(Self { number, places, has_more })
    }

    /// Returns the approximate size in bytes of the items' text.
    fn num_bytes(&self, messages: &[ChatMessage]) -> usize {
        self.places.iter().map(|(_, place)| place.num_bytes(&messages[place.message_idx])).sum()
    }

    fn list(&self, messages: &[ChatMessage]) -> ItemList {
        let items = self.places.iter().map(|(idx, place)| {
            let mut item = place.item(&messages[place.message_idx]);
            item["id"] = place.id(messages, &self.number, *idx).into();
            item
        });
        let data: Vec<Value> = items.collect();
        let id = |item: &Value| item["id"].as_str().map(str::to_owned);
        ItemList {
            object: "list",
            first_id: data.first().and_then(id),
            last_id: data.last().and_then(id),
            data,
            has_more: self.has_more,
        }
    }
}

/// Iterates over the items that messages of a stored conversation make, oldest first.
fn places(messages: &[ChatMessage]) -> impl Iterator<Item = Place> {
    messages.iter().enumerate().flat_map(|(message_idx, message)| {
        let reasoning = reasoning(message).map(|_| Part::Reasoning);
        let has_text = message.content.is_some() || message.role == "tool";
        let text = has_text.then_some(Part::Text);
        let calls = (0..calls(message).len()).map(Part::Call);
        reasoning.into_iter().chain(text).chain(calls).map(move |part| Place { message_idx, part })
    })
}

fn reasoning(message: &ChatMessage) -> Option<&str> {
    message.extra.get("reasoning_content").and_then(Value::as_str)
}

fn calls(message: &ChatMessage) -> &[Value] {
    message.extra.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

impl Place {
    /// Returns the id of the item, which is the same each time. `idx` is its number among all items.
    fn id(self, messages: &[ChatMessage], number: &str, idx: usize) -> String {
        let kind = match self.part {
            Part::Reasoning => "rs",
            Part::Text if messages[self.message_idx].role != "tool" => "msg",
            Part::Text | Part::Call(_) => "fc",
        };
        format!("{kind}_{number}_{idx}")
    }

    fn num_bytes(self, message: &ChatMessage) -> usize {
        match self.part {
            Part::Reasoning => reasoning(message).map_or(0, str::len),
            Part::Text => message.content.as_ref().map_or(0, String::len),
            Part::Call(idx) => json_bytes(&calls(message)[idx]),
        }
    }

    /// Returns the item without its id.
    fn item(self, message: &ChatMessage) -> Value {
        let text = message.content.as_deref();
        match (self.part, message.role.as_str()) {
            (Part::Reasoning, _) => {
                let content = json!([{"type": "reasoning_text", "text": reasoning(message)}]);
                json!({"type": "reasoning", "summary": [], "content": content, "status": "completed"})
            }
            (Part::Text, "tool") => json!({
                "type": "function_call_output", "call_id": message.extra.get("tool_call_id"), "output": text,
                "status": "completed",
            }),
            (Part::Text, role) => {
                let kind = if role == "assistant" { "output_text" } else { "input_text" };
                let mut part = json!({"type": kind, "text": text});
                if role == "assistant" {
                    part["annotations"] = json!([]);
                }
                json!({"type": "message", "role": role, "content": [part], "status": "completed"})
            }
            (Part::Call(idx), _) => {
                let call = &calls(message)[idx];
                let arguments = match &call["function"]["arguments"] {
                    Value::String(text) => text.clone(),
                    arguments => arguments.to_string(),
                };
                json!({
                    "type": "function_call", "call_id": call["id"], "name": call["function"]["name"],
                    "arguments": arguments, "status": "completed",
                })
            }
        }
    }
}
