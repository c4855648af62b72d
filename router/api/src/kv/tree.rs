//! `/v1/kv/tree`: the nodes of the KV cache, and their removal.

use axum::Extension;
use axum::extract::{Path, Query, rejection::QueryRejection};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use trunkline_scheduler::{BlockKey, KEY_BYTES, LaneId, Millis, NodeId, NodeView, Salt, Scheduler};
use utoipa::{IntoParams, ToSchema};

use super::number::{node_id, number};
use super::render;
use crate::app::App;
use crate::of_model::{ModelQuery, OfModel};
use crate::openai::ErrorResponse;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::ShardInfo;

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
/// The most characters of a node's id that errors repeat.
const MAX_SHOWN_NAME: usize = 64;

/// The query of a request for a page of the tree.
#[derive(Debug, Deserialize, IntoParams)]
pub struct PageQuery {
    /// The lane whose tree is walked; the default is 0.
    pub lane: Option<u32>,
    /// The `next` of the previous page.
    pub after: Option<u32>,
    /// The most nodes to return, from 1 to 1,000; the default is 100.
    pub limit: Option<usize>,
    /// Returns only nodes that requests with this `prompt_cache_key` used.
    pub prompt_cache_key: Option<String>,
}

/// A node of the tree: a run of tokens that all prompts through it share.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvNode {
    /// The id of the node. It is valid until the node changes.
    pub id: String,
    /// The number before the `-` of the parent's `id`; null for a node at the start of its prompts.
    pub parent: Option<u32>,
    /// The namespace of the node, as eight hexadecimal digits. Nodes of different namespaces never share blocks.
    pub namespace: String,
    /// The number of tokens before the node.
    pub first_token: u32,
    /// The number of tokens in the node.
    pub tokens: u32,
    /// The number of blocks in the node.
    pub blocks: u32,
    /// The size of the blocks in device memory, in bytes. Sliding-window layers count only where they are still
    /// present.
    pub bytes: u64,
    /// The number of blocks that a sequence holds now.
    pub held: u32,
    /// The number of blocks that are also on disk.
    pub stored: u32,
    /// The number of blocks that a pin holds.
    pub pinned: u32,
    /// The number of blocks that a pin keeps on disk.
    pub disk_pinned: u32,
    /// The time until the last pin of a prompt that ends in this node expires, in milliseconds; null if there is none.
    pub pin_ends_in_ms: Option<u64>,
    /// The `prompt_cache_key`s of the requests that used the node, the latest last; at most four.
    pub prompt_cache_keys: Vec<String>,
    /// The number of child nodes.
    pub children: u32,
    /// The number of requests that found the node.
    pub hits: u32,
    /// The time since the node was last used, in milliseconds.
    pub age_ms: u64,
}

/// A page of the tree's nodes.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvPage {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The nodes of the page. The order is unspecified. A node that changes between two pages can be listed twice or
    /// not at all.
    pub data: Vec<KvNode>,
    /// The `after` of the next page; null on the last page.
    pub next: Option<u32>,
}

/// The result of a removal.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvRemoved {
    /// The number of device blocks that were freed.
    pub removed_blocks: u32,
}

/// Walks the tree of cached prefixes in pages (`after`, `limit`), of one `lane` (0 by default), optionally of one
/// `prompt_cache_key`.
#[utoipa::path(
    get, path = "/v1/kv/tree", params(PageQuery, ModelQuery),
    responses(
        (status = 200, description = "A page of nodes", body = KvPage),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn tree(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    let memory = app.admission.answer_memory(&caller);
    match page(&app, &caller, query).await {
        Ok(page) => respond::answer::<ErrorResponse>(memory.hold(axum::Json(page).into_response()).await),
        Err(error) => respond::error::<ErrorResponse>(&error),
    }
}

async fn page(
    app: &App,
    caller: &Caller,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<KvPage, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::value("limit", format!("is {limit}, expected 1 to {MAX_PAGE}")));
    }
    let lane = app.served.lane(query.lane.unwrap_or(0))?;
    // A number that is not that of a node of the caller's, or not any more, gives the caller's nodes after its id.
    let mut first = query.after.map_or(NodeId(0), node_id);
    let group = query.prompt_cache_key;
    let shard = app.served.shard_info()?;
    let mut found = Vec::new();
    // One question reads a part of the tree. The pages themselves depend only on nodes that the caller may see, so that
    // they tell nothing about other tenants. One node more than the limit begins the next page.
    while found.len() <= limit {
        let (looker, group, shard) = (caller.clone(), group.clone(), shard.clone());
        let num_missing = limit + 1 - found.len();
        let walk = move |scheduler: &mut Scheduler, now: Millis| {
            let may_see = |salt: &Salt| looker.may_see(salt);
            let page = scheduler.kv(lane).map(|kv| kv.walk(first, num_missing, may_see)).unwrap_or_default();
            let is_asked = |view: &&NodeView| match &group {
                Some(group) => view.groups.iter().any(|known| **known == **group),
                None => true,
            };
            let nodes =
                page.nodes.iter().filter(is_asked).map(|view| (view.id, node(lane, view, &shard, now)));
            (nodes.collect::<Vec<_>>(), page.next)
        };
        let (nodes, next) = app.admission.ask(&app.served, caller, walk).await?;
        found.extend(nodes);
        match next {
            Some(next) => first = next,
            None => break,
        }
    }
    let next = found.get(limit).map(|&(id, _)| number(id));
    let data = found.into_iter().take(limit).map(|(_, node)| node).collect();
    Ok(KvPage { object: "list", data, next })
}

pub(super) fn node(lane: LaneId, view: &NodeView, shard: &ShardInfo, now: Millis) -> KvNode {
    let place = if lane == LaneId::FIRST { String::new() } else { format!("{}.", lane.0) };
    KvNode {
        id: format!("{place}{}-{}", number(view.id), view.key),
        parent: view.parent.map(number),
        namespace: view.salt.root_key().to_string()[..8].to_owned(),
        first_token: view.first_token,
        tokens: view.num_tokens,
        blocks: view.num_blocks,
        bytes: u64::from(view.num_blocks) * shard.bytes_per_block
            + u64::from(view.num_windowed) * shard.bytes_per_window_part,
        held: view.num_held,
        stored: view.num_stored,
        pinned: view.num_pinned,
        disk_pinned: view.num_stored_pinned,
        pin_ends_in_ms: view.pin_ends_at_ms.map(|end| end.saturating_sub(now.0)),
        prompt_cache_keys: view.groups.iter().map(|group| group.to_string()).collect(),
        children: view.num_children,
        hits: view.num_hits,
        age_ms: now.0.saturating_sub(view.used_at_ms),
    }
}

/// Removes a node and its descendants from all tiers, except for blocks that sequences or pins hold.
///
/// Blocks of the object store are removed for all servers that share it. Another server that has a block in its device
/// memory or on its disk keeps it there and may upload it again. Descendants that only the disk or the object store has
/// stay there; they are found again only after the removed blocks have been computed again.
#[utoipa::path(
    delete, path = "/v1/kv/tree/{id}",
    params(("id" = String, Path, description = "The `id` of a node"), ModelQuery),
    responses(
        (status = 200, description = "The number of removed blocks", body = KvRemoved),
        (status = 404, description = "The node does not exist or has changed", body = ErrorResponse),
        (status = 503, description = "No shard is connected, or the object store failed", body = ErrorResponse),
    )
)]
pub async fn remove(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    render(remove_node(&app, caller, &name).await)
}

async fn remove_node(app: &App, caller: Caller, name: &str) -> Result<KvRemoved, ApiError> {
    let shard = app.served.shard_info()?;
    let (lane, id, key) = find_name(app, name)?;
    let remover = caller.clone();
    // Nodes of other tenants are reported as not found.
    let find = move |scheduler: &mut Scheduler, _| {
        let kv = scheduler.kv(lane)?;
        let view = kv.view(id).filter(|view| remover.may_see(&view.salt))?;
        Some((view.salt, kv.subtree_keys(id, key)?))
    };
    let found = app.admission.ask(&app.served, &caller, find.clone()).await?;
    let (salt, mut keys) = found.ok_or_else(|| unknown(name))?;
    let failed = |_| ApiError::NotRemoved { node: shown(name) };
    let removal = match &app.served.objects {
        Some(objects) => Some(objects.begin_removal().await.map_err(failed)?),
        None => None,
    };
    if let Some(removal) = &removal {
        // Until the removal began, blocks could still be added. The object store comes first, so that after a failure
        // the node is still there for another try.
        let found = app.admission.ask(&app.served, &caller, find).await?;
        keys = found.ok_or_else(|| unknown(name))?.1;
        removal.remove(&shard.block_shape(), &keys).await.map_err(failed)?;
    }
    let has_objects = removal.is_some();
    let remove = move |scheduler: &mut Scheduler, _| {
        let removed_blocks = scheduler.nodes(lane).remove(id, key)?;
        for key in keys.into_iter().filter(|_| has_objects) {
            scheduler.lower_tier(lane).note_object((key, None), Some(&salt), false);
        }
        Some(KvRemoved { removed_blocks })
    };
    app.admission.ask(&app.served, &caller, remove).await?.ok_or_else(|| unknown(name))
}

pub(super) fn unknown(name: &str) -> ApiError {
    ApiError::UnknownNode { node: shown(name) }
}

pub(super) fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN_NAME).collect()
}

/// Returns the lane, the id and the key of the node with this name.
pub(super) fn find_name(app: &App, name: &str) -> Result<(LaneId, NodeId, BlockKey), ApiError> {
    let (lane, id, key) = parse_name(name).ok_or_else(|| unknown(name))?;
    Ok((app.served.lane(lane).map_err(|_| unknown(name))?, id, key))
}

fn parse_name(name: &str) -> Option<(u32, NodeId, BlockKey)> {
    let (place, digits) = name.split_once('-')?;
    let (lane, id) = place.split_once('.').unwrap_or(("0", place));
    if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((lane.parse().ok()?, node_id(id.parse().ok()?), BlockKey::from_bytes(bytes)))
}
