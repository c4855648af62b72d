//! `/v1/kv/tree/{id}`: one node of the KV cache, its text and its pins.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query, Request, rejection::QueryRejection};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use trunkline_scheduler::{Millis, Pinned, Scheduler};
use trunkline_text::{DecodeSpecial, Detokenizer, TextStart, Tokenizer};
use utoipa::{IntoParams, ToSchema};

use super::tree::{self, KvNode};
use crate::app::App;
use crate::of_model::{ModelQuery, OfModel};
use crate::openai::ErrorResponse;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::request::retention::{DEFAULT_TTL_S, check_ttl_s, to_ms};
use trunkline_http::parse;

/// The most tokens of a node that are decoded to text.
const MAX_TEXT_TOKENS: usize = 4_096;

/// The query of a request for a node.
#[derive(Debug, Deserialize, IntoParams)]
pub struct NodeQuery {
    /// If true, the response includes the node's text. Requires API keys.
    pub text: Option<bool>,
}

/// A node, with its text if `text` was true.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvNodeText {
    /// The node's position, size and state.
    #[serde(flatten)]
    pub node: KvNode,
    /// The text of the node's first tokens, including the chat template's control tokens; null if it was not requested.
    pub text: Option<String>,
    /// The number of tokens in `text`, at most 4,096.
    pub text_tokens: u32,
}

/// The body of a request to pin a node.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PinRequest {
    /// The least time to keep the pin, in seconds.
    #[schema(minimum = 1, maximum = 86400, default = 300)]
    pub ttl_s: Option<i64>,
}

/// The result of a request to pin a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvPinned {
    /// The number of tokens that are pinned in device memory, counted from the start of the prompt; 0 if there was no
    /// room.
    pub pinned_tokens: u32,
    /// The number of tokens that are pinned on disk; null without a disk.
    pub disk_pinned_tokens: Option<u32>,
    /// The least time for which the pin is kept, in seconds. A pin is never shortened.
    pub ttl_s: i64,
}

/// The result of a request to end pins.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvUnpinned {
    /// The number of device blocks that no pin holds any longer.
    pub unpinned_blocks: u32,
}

/// Returns one node and, with `?text=true`, its text.
///
/// Text is shown only to the tenant that owns the node and to admins.
#[utoipa::path(
    get, path = "/v1/kv/tree/{id}",
    params(("id" = String, Path, description = "The `id` of a node"), NodeQuery, ModelQuery),
    responses(
        (status = 200, description = "The node", body = KvNodeText),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 403, description = "Text was requested, but no API keys are configured", body = ErrorResponse),
        (status = 404, description = "The node does not exist or has changed", body = ErrorResponse),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn show(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    query: Result<Query<NodeQuery>, QueryRejection>,
) -> Response {
    super::render(show_node(&app, caller, &name, query).await)
}

async fn show_node(
    app: &App,
    caller: Caller,
    name: &str,
    query: Result<Query<NodeQuery>, QueryRejection>,
) -> Result<KvNodeText, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let with_text = query.text.unwrap_or(false);
    if with_text && caller.tenant().is_none() {
        return Err(ApiError::TextNotShown);
    }
    let shard = app.served.shard_info()?;
    let (lane, id, key) = tree::find_name(app, name)?;
    let looker = caller.clone();
    let look = move |scheduler: &mut Scheduler, now: Millis| {
        let kv = scheduler.kv(lane)?;
        // Nodes of other tenants are reported as not found.
        let view = kv.view(id).filter(|view| view.key == key && looker.may_see(&view.salt))?;
        let mut tokens = if with_text { kv.path_tokens(id, key)? } else { Vec::new() };
        tokens.drain(..tokens.len().min(view.first_token as usize));
        tokens.truncate(MAX_TEXT_TOKENS);
        let start = if view.first_token == 0 { TextStart::Beginning } else { TextStart::Continuation };
        Some((tree::node(lane, &view, &shard, now), tokens, start))
    };
    let found = app.admission.ask(&app.served, &caller, look).await?;
    let (node, tokens, start) = found.ok_or_else(|| tree::unknown(name))?;
    let text = with_text.then(|| decode(&app.served.model.text.tokenizer, &tokens, start));
    Ok(KvNodeText { node, text, text_tokens: tokens.len() as u32 })
}

fn decode(tokenizer: &Arc<Tokenizer>, tokens: &[u32], start: TextStart) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), DecodeSpecial::Keep, start);
    let mut text: String = tokens.iter().map(|&token_id| detokenizer.push(token_id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

/// Pins the prefix that ends in a node, from the start of the prompt, in device memory and on disk, for `ttl_s`.
///
/// The pin counts towards the node's tenant, within `--max-pinned-share` and the tenant's share.
#[utoipa::path(
    post, path = "/v1/kv/tree/{id}/pin", request_body = PinRequest,
    params(("id" = String, Path, description = "The `id` of a node"), ModelQuery),
    responses(
        (status = 200, description = "The numbers of pinned tokens", body = KvPinned),
        (status = 400, description = "The body is invalid", body = ErrorResponse),
        (status = 404, description = "The node does not exist or has changed", body = ErrorResponse),
        (status = 409, description = "There is no room for a pin", body = ErrorResponse),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn pin(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    super::render(pin_node(&app, caller, &name, request).await)
}

async fn pin_node(app: &App, caller: Caller, name: &str, request: Request) -> Result<KvPinned, ApiError> {
    let (body, _memory) = app.admission.read_body(&caller, request.into_body()).await?;
    let body: PinRequest = app.served.parse(&caller, body, |body| parse(body, &[], "")).await?;
    let ttl_s = check_ttl_s("ttl_s", body.ttl_s.unwrap_or(DEFAULT_TTL_S))?;
    app.served.shard_info()?;
    let (lane, id, key) = tree::find_name(app, name)?;
    let pinner = caller.clone();
    let pin = move |scheduler: &mut Scheduler, _| {
        scheduler.kv(lane)?.view(id).filter(|view| pinner.may_see(&view.salt))?;
        scheduler.nodes(lane).pin(id, key, to_ms(ttl_s))
    };
    let pinned = app.admission.ask(&app.served, &caller, pin).await?;
    let Pinned { num_tokens, num_stored_tokens } = pinned.ok_or_else(|| tree::unknown(name))?;
    if num_tokens == 0 && num_stored_tokens.unwrap_or(0) == 0 {
        return Err(ApiError::PinRefused { node: tree::shown(name) });
    }
    Ok(KvPinned { pinned_tokens: num_tokens, disk_pinned_tokens: num_stored_tokens, ttl_s })
}

/// Ends all pins of prefixes that end in a node or in its descendants, no matter which request made them.
#[utoipa::path(
    delete, path = "/v1/kv/tree/{id}/pin",
    params(("id" = String, Path, description = "The `id` of a node"), ModelQuery),
    responses(
        (status = 200, description = "The number of unpinned blocks", body = KvUnpinned),
        (status = 404, description = "The node does not exist or has changed", body = ErrorResponse),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn unpin(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    super::render(unpin_node(&app, caller, &name).await)
}

async fn unpin_node(app: &App, caller: Caller, name: &str) -> Result<KvUnpinned, ApiError> {
    app.served.shard_info()?;
    let (lane, id, key) = tree::find_name(app, name)?;
    let unpinner = caller.clone();
    let unpin = move |scheduler: &mut Scheduler, _| {
        scheduler.kv(lane)?.view(id).filter(|view| unpinner.may_see(&view.salt))?;
        scheduler.nodes(lane).unpin(id, key)
    };
    let unpinned = app.admission.ask(&app.served, &caller, unpin).await?;
    Ok(KvUnpinned { unpinned_blocks: unpinned.ok_or_else(|| tree::unknown(name))? })
}
