//! `/v1/kv`: what the KV cache holds, and removal of parts of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query, State, rejection::QueryRejection};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use trunkline_scheduler::{
    BlockKey, KEY_BYTES, KvCache, Millis, NodeId, NodeView, Scheduler, Stats, StoreIndex, StoreUsage,
    TenantUsage,
};
use utoipa::{IntoParams, ToSchema};

use crate::api::app::App;
use crate::api::openai::ErrorResponse;
use crate::api::respond;
use crate::engine::object::ObjectCounts;
use crate::engine::shard::ShardInfo;
use crate::error::ApiError;
use crate::tenants::Caller;

/// Nodes of a page if the client does not say, and at most: the step loop waits while they are read.
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
/// Characters of a name that errors show.
pub(super) const MAX_SHOWN_NAME: usize = 64;

/// Blocks of the device's pool.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeviceTier {
    /// All.
    pub blocks: u64,
    /// With nothing in them.
    pub free: u64,
    /// Held by sequences that run.
    pub held: u64,
    /// Of those held, by pins.
    pub pinned: u64,
    /// Only the cache holds them; each can be evicted.
    pub cached: u64,
    /// Dropped to make room, so far.
    pub evicted: u64,
    /// Bytes of the pool.
    pub bytes: u64,
    /// Those of blocks that are held or cached.
    pub used_bytes: u64,
}

/// The store on disk, or in the host's memory.
#[derive(Debug, Serialize, ToSchema)]
pub struct DiskTier {
    /// Room for so many blocks.
    pub slots: u64,
    /// Blocks there.
    pub blocks: u64,
    /// Blocks that pins keep, there or on their way.
    pub pinned: u64,
    /// Written, so far.
    pub written: u64,
    /// Not written as the disk was full, slow or failing.
    pub failed: u64,
    /// Read back.
    pub restored: u64,
    /// Dropped to make room.
    pub evicted: u64,
    /// Restores that met a missing or broken block.
    pub broken: u64,
    /// Restores not begun, as computing was predicted to be quicker.
    pub declined: u64,
}

/// The object store, as this replica uses it: since it started.
#[derive(Debug, Serialize, ToSchema)]
pub struct ObjectTotals {
    /// Blocks put.
    pub put_blocks: u64,
    /// Bytes of them.
    pub put_bytes: u64,
    /// Blocks not put, as they were there already.
    pub known_blocks: u64,
    /// Blocks got that are on disk now.
    pub got_blocks: u64,
    /// Bytes of them.
    pub got_bytes: u64,
    /// Blocks that wait to be put.
    pub waiting_blocks: u64,
    /// Gets and puts that failed, and objects that cannot be used.
    pub failed: u64,
    /// Times that a block was asked for and was not there.
    pub missed: u64,
    /// Requests that did not ask, as computing was predicted to be quicker.
    pub declined: u64,
    /// Requests that went on before all was there.
    pub timeouts: u64,
}

/// What a tenant has of the KV cache.
#[derive(Debug, Serialize, ToSchema)]
pub struct TenantTotals {
    /// Its name; null for what is nobody's: without API keys everything, and blocks on disk whose tenant did not ask
    /// for them since the start.
    pub tenant: Option<String>,
    /// Blocks of the device that it has.
    pub device_blocks: u32,
    /// Blocks of the device that are guaranteed to it.
    pub device_share_blocks: u32,
    /// Of its blocks, those that only the cache holds.
    pub device_cached: u32,
    /// Those that its pins hold: so many that nobody else can have.
    pub device_pinned: u32,
    /// Its blocks that went to make room, so far.
    pub device_evicted: u64,
    /// Slots of the disk that it has; null without a disk.
    pub disk_blocks: Option<u32>,
    /// Blocks that its pins keep on disk, there or on their way; null without a disk.
    pub disk_pinned: Option<u32>,
}

/// The KV cache in numbers.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvTotals {
    /// `kv_cache`.
    pub object: &'static str,
    /// Stands for weights, dtypes and kernels: caches with another one are of no use to each other.
    pub fingerprint: String,
    /// How K and V are stored.
    pub dtype: String,
    /// Tokens of a block.
    pub block_size: u32,
    /// Bytes of a whole block, with the layers that have a window.
    pub block_bytes: u64,
    /// Prompt tokens so far.
    pub prompt_tokens: u64,
    /// Those that a prefix hit spared, from any tier.
    pub hit_tokens: u64,
    /// The pool.
    pub device: DeviceTier,
    /// The store in the host's memory; null without `--kv-host-size`, or if there is one on disk.
    pub host: Option<DiskTier>,
    /// The store on disk; null without `--kv-disk-path`.
    pub disk: Option<DiskTier>,
    /// The object store; null without `--kv-object-store`.
    pub object_store: Option<ObjectTotals>,
    /// By tenant: the caller's own, to an admin all.
    pub tenants: Vec<TenantTotals>,
}

/// Which page of the tree.
#[derive(Debug, Deserialize, IntoParams)]
pub struct PageQuery {
    /// `next` of the page before.
    pub after: Option<u32>,
    /// At most so many nodes: 1 to 1,000, by default 100.
    pub limit: Option<usize>,
    /// Only nodes that requests with this `prompt_cache_key` used. A page may have fewer nodes then, or none: `next`
    /// says whether there are more pages.
    pub prompt_cache_key: Option<String>,
}

/// A run of tokens that all its conversations share.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvNode {
    /// Its name, until it changes.
    pub id: String,
    /// The node before it, by the number that its name begins with; null at the root.
    pub parent: Option<u32>,
    /// Which namespace, as eight hexadecimal digits: nodes of different ones share nothing.
    pub namespace: String,
    /// Tokens before it.
    pub first_token: u32,
    /// Tokens in it.
    pub tokens: u32,
    /// Blocks in it.
    pub blocks: u32,
    /// What they take on the device: without the layers that have a window where those were dropped.
    pub bytes: u64,
    /// Those that a sequence holds now.
    pub held: u32,
    /// Those that the disk has too.
    pub stored: u32,
    /// Those that a pin holds.
    pub pinned: u32,
    /// Those that a pin keeps on disk.
    pub disk_pinned: u32,
    /// Until the last of the pins ends whose prompts end in this node; null if none does.
    pub pin_ends_in_ms: Option<u64>,
    /// `prompt_cache_key` of requests that used it, the latest last; at most four.
    pub prompt_cache_keys: Vec<String>,
    /// Nodes that continue it.
    pub children: u32,
    /// Requests that found it.
    pub hits: u32,
    /// Since it was used last.
    pub age_ms: u64,
}

/// Some nodes of the tree.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvPage {
    /// `list`.
    pub object: &'static str,
    /// In no order that means anything. What changes between two pages may come twice or not at all.
    pub data: Vec<KvNode>,
    /// For `after` of the next page; null after the last.
    pub next: Option<u32>,
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvRemoved {
    /// Blocks of the device that are free now.
    pub removed_blocks: u32,
}

pub(super) fn render(result: Result<impl Serialize, ApiError>) -> Response {
    respond::answer::<ErrorResponse>(result.map(axum::Json))
}

/// The KV cache in numbers.
#[utoipa::path(
    get, path = "/v1/kv", tag = "KV cache",
    responses(
        (status = 200, description = "Totals by tier", body = KvTotals),
        (status = 503, description = "No shard", body = ErrorResponse),
    )
)]
pub async fn totals(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    render(all_totals(&app, &caller).await)
}

async fn all_totals(app: &App, caller: &Caller) -> Result<KvTotals, ApiError> {
    let shard = app.served.shard_info()?;
    let look = |scheduler: &mut Scheduler, _| {
        let device: Vec<TenantUsage> = scheduler.tenants().cloned().collect();
        (
            scheduler.stats(),
            device,
            scheduler.kv().and_then(KvCache::store).map(StoreIndex::usages).unwrap_or_default(),
        )
    };
    let (stats, device, disk) = app.served.driver.ask(look).await.map_err(|_| ApiError::ShardAway)?;
    let has_store = stats.store_slots > 0;
    Ok(KvTotals {
        object: "kv_cache",
        fingerprint: shard.numeric_fingerprint.clone(),
        dtype: shard.kv_dtype.clone(),
        block_size: shard.block_size,
        block_bytes: shard.bytes_per_stored_block(),
        prompt_tokens: stats.prompt_tokens,
        hit_tokens: stats.prefix_hit_tokens,
        device: DeviceTier {
            blocks: stats.blocks_total,
            free: stats.blocks_free,
            held: stats.blocks_held,
            pinned: stats.blocks_pinned,
            cached: stats.blocks_cached,
            evicted: stats.evicted_blocks,
            bytes: stats.blocks_total * shard.bytes_per_block
                + stats.window_parts_total * shard.bytes_per_window_part,
            used_bytes: (stats.blocks_held + stats.blocks_cached) * shard.bytes_per_block
                + (stats.window_parts_total - stats.window_parts_free) * shard.bytes_per_window_part,
        },
        host: (has_store && shard.has_store_in_memory()).then(|| disk_tier(&stats)),
        disk: (has_store && !shard.has_store_in_memory()).then(|| disk_tier(&stats)),
        object_store: app.served.objects.as_ref().map(|objects| {
            let counts = *objects.counts().borrow();
            object_totals(&counts, &stats)
        }),
        tenants: tenant_totals(caller, &device, &disk),
    })
}

/// By name, those without one first.
fn tenant_totals(caller: &Caller, device: &[TenantUsage], disk: &[StoreUsage]) -> Vec<TenantTotals> {
    let names = device.iter().map(|usage| usage.tenant.as_deref());
    let names: BTreeSet<Option<&str>> =
        names.chain(disk.iter().map(|usage| usage.tenant.as_deref())).collect();
    let is_shown = |name: &Option<&str>| caller.is_admin() || (name.is_some() && *name == caller.name());
    let totals = names.into_iter().filter(is_shown).map(|name| {
        let on_device = device.iter().find(|usage| usage.tenant.as_deref() == name);
        let on_disk = disk.iter().find(|usage| usage.tenant.as_deref() == name);
        let of_device = |value: fn(&TenantUsage) -> u32| on_device.map_or(0, value);
        // Who has nothing there has nothing pinned there either.
        let of_disk = |value: fn(&StoreUsage) -> u32| (!disk.is_empty()).then(|| on_disk.map_or(0, value));
        TenantTotals {
            tenant: name.map(str::to_owned),
            device_blocks: of_device(|usage| usage.num_blocks),
            device_share_blocks: of_device(|usage| usage.num_share_blocks),
            device_cached: of_device(|usage| usage.num_cached),
            device_pinned: of_device(|usage| usage.num_pinned),
            device_evicted: on_device.map_or(0, |usage| usage.num_evicted),
            disk_blocks: of_disk(|usage| usage.num_slots),
            disk_pinned: of_disk(|usage| usage.num_pinned),
        }
    });
    totals.collect()
}

fn object_totals(counts: &ObjectCounts, stats: &Stats) -> ObjectTotals {
    ObjectTotals {
        put_blocks: counts.uploaded_blocks,
        put_bytes: counts.uploaded_bytes,
        known_blocks: counts.known_blocks,
        got_blocks: counts.downloaded_blocks,
        got_bytes: counts.downloaded_bytes,
        waiting_blocks: stats.offered_blocks,
        failed: counts.failures,
        missed: counts.misses,
        declined: counts.declined,
        timeouts: counts.timeouts,
    }
}

fn disk_tier(stats: &Stats) -> DiskTier {
    DiskTier {
        slots: stats.store_slots,
        blocks: stats.store_blocks,
        pinned: stats.store_blocks_pinned,
        written: stats.stored_blocks,
        failed: stats.store_failures,
        restored: stats.restored_blocks,
        evicted: stats.store_evicted_blocks,
        broken: stats.restore_failures,
        declined: stats.restores_declined,
    }
}

/// Walks the tree of cached prefixes, page by page.
#[utoipa::path(
    get, path = "/v1/kv/tree", tag = "KV cache", params(PageQuery),
    responses(
        (status = 200, description = "Nodes", body = KvPage),
        (status = 400, description = "The query is wrong", body = ErrorResponse),
        (status = 503, description = "No shard", body = ErrorResponse),
    )
)]
pub async fn tree(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    render(page(&app, caller, query).await)
}

async fn page(
    app: &App,
    caller: Caller,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<KvPage, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::value("limit", format!("is {limit}, expected 1 to {MAX_PAGE}")));
    }
    let first = NodeId(query.after.unwrap_or(0));
    let group = query.prompt_cache_key;
    let shard = app.served.shard_info()?;
    let walk = move |scheduler: &mut Scheduler, now: Millis| {
        let page = scheduler.kv().map(|kv| kv.walk(first, limit)).unwrap_or_default();
        let is_asked = |view: &NodeView| match &group {
            Some(group) => view.groups.iter().any(|known| **known == **group),
            None => true,
        };
        let data = page.nodes.iter().filter(|view| caller.may_see(&view.salt) && is_asked(view));
        let data = data.map(|view| node(view, &shard, now)).collect();
        KvPage { object: "list", data, next: page.next.map(|id| id.0) }
    };
    app.served.driver.ask(walk).await.map_err(|_| ApiError::ShardAway)
}

pub(super) fn node(view: &NodeView, shard: &ShardInfo, now: Millis) -> KvNode {
    KvNode {
        id: format!("{}-{}", view.id.0, view.key),
        parent: view.parent.map(|id| id.0),
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

/// Removes a node and what continues it, from all tiers, as far as no sequence holds it.
#[utoipa::path(
    delete, path = "/v1/kv/tree/{id}", tag = "KV cache",
    params(("id" = String, Path, description = "`id` of a node")),
    responses(
        (status = 200, description = "What was removed", body = KvRemoved),
        (status = 404, description = "No such node, or it has changed", body = ErrorResponse),
        (status = 503, description = "No shard", body = ErrorResponse),
    )
)]
pub async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    render(remove_node(&app, caller, &name).await)
}

async fn remove_node(app: &App, caller: Caller, name: &str) -> Result<KvRemoved, ApiError> {
    app.served.shard_info()?;
    let (id, key) = parse_name(name).ok_or_else(|| unknown(name))?;
    let remove = move |scheduler: &mut Scheduler, _| {
        // What is another's is not known here.
        scheduler.kv()?.view(id).filter(|view| caller.may_see(&view.salt))?;
        scheduler.nodes().remove(id, key)
    };
    let removed = app.served.driver.ask(remove).await;
    let removed_blocks = removed.map_err(|_| ApiError::ShardAway)?.ok_or_else(|| unknown(name))?;
    Ok(KvRemoved { removed_blocks })
}

pub(super) fn unknown(name: &str) -> ApiError {
    ApiError::UnknownNode { node: name.chars().take(MAX_SHOWN_NAME).collect() }
}

pub(super) fn parse_name(name: &str) -> Option<(NodeId, BlockKey)> {
    let (id, digits) = name.split_once('-')?;
    if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((NodeId(id.parse().ok()?), BlockKey::from_bytes(bytes)))
}
