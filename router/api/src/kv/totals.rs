//! `/v1/kv`: the size and use of the KV cache, by tier and by tenant.

use std::collections::BTreeSet;

use axum::Extension;
use axum::response::Response;
use serde::Serialize;
use trunkline_scheduler::{LaneStats, Scheduler, Stats, StoreIndex, StoreUsage, TenantUsage};
use utoipa::ToSchema;

use super::render;
use crate::app::App;
use crate::of_model::{ModelQuery, OfModel};
use crate::openai::ErrorResponse;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_engine::object::ObjectCounts;

/// The pool of blocks in device memory.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeviceTier {
    /// The number of blocks in the pool.
    pub blocks: u64,
    /// The number of free blocks.
    pub free: u64,
    /// The number of blocks that running sequences or pins hold.
    pub held: u64,
    /// The number of held blocks that pins hold.
    pub pinned: u64,
    /// The number of blocks that only the cache holds. They can be evicted.
    pub cached: u64,
    /// The number of blocks evicted since the server started.
    pub evicted: u64,
    /// The size of the pool in bytes.
    pub bytes: u64,
    /// The size of the held and cached blocks in bytes.
    pub used_bytes: u64,
}

/// The store of blocks on disk or in the host's memory. Counts of events start with the server.
#[derive(Debug, Serialize, ToSchema)]
pub struct DiskTier {
    /// The number of blocks that fit into the store.
    pub slots: u64,
    /// The number of stored blocks.
    pub blocks: u64,
    /// The number of blocks that pins keep in the store, including blocks that are still being written.
    pub pinned: u64,
    /// The number of blocks written.
    pub written: u64,
    /// The number of blocks not written because the store was full, slow or failing.
    pub failed: u64,
    /// The number of blocks read back.
    pub restored: u64,
    /// The number of blocks evicted.
    pub evicted: u64,
    /// The number of restores that found a missing or damaged block.
    pub broken: u64,
    /// The number of restores not started because computing was predicted to be faster.
    pub declined: u64,
}

/// This replica's use of the object store since it started.
#[derive(Debug, Serialize, ToSchema)]
pub struct ObjectTotals {
    /// The number of blocks uploaded.
    pub put_blocks: u64,
    /// The number of bytes uploaded.
    pub put_bytes: u64,
    /// The number of blocks not uploaded because the object store already had them.
    pub known_blocks: u64,
    /// The number of blocks downloaded to the disk.
    pub got_blocks: u64,
    /// The number of bytes downloaded.
    pub got_bytes: u64,
    /// The number of blocks waiting to be uploaded.
    pub waiting_blocks: u64,
    /// The number of failed downloads and uploads and of unusable objects.
    pub failed: u64,
    /// The number of lookups that did not find the block.
    pub missed: u64,
    /// The number of requests that skipped the object store because computing was predicted to be faster.
    pub declined: u64,
    /// The number of requests that continued before all their blocks were downloaded.
    pub timeouts: u64,
}

/// The device pool of one lane.
#[derive(Debug, Serialize, ToSchema)]
pub struct LaneTotals {
    /// The number of the lane, from 0.
    pub lane: u32,
    /// True while its shard is connected.
    pub connected: bool,
    /// The number of sequences that run on it.
    pub running: u64,
    /// The number of blocks in the pool.
    pub blocks: u64,
    /// The number of blocks that sequences or pins hold.
    pub held: u64,
    /// The number of blocks that only the cache holds.
    pub cached: u64,
    /// The number of prompt tokens that were found in its tiers and not computed again.
    pub hit_tokens: u64,
}

fn lane_totals(lane: u32, stats: &LaneStats) -> LaneTotals {
    LaneTotals {
        lane,
        connected: stats.is_connected,
        running: stats.num_running,
        blocks: stats.blocks_total,
        held: stats.blocks_held,
        cached: stats.blocks_cached,
        hit_tokens: stats.prefix_hit_tokens,
    }
}

/// A tenant's use of the KV cache.
#[derive(Debug, Serialize, ToSchema)]
pub struct TenantTotals {
    /// The name of the tenant. Null for blocks without an owner: all blocks if no API keys are configured, and blocks
    /// on disk that their tenant has not used since the server started.
    pub tenant: Option<String>,
    /// The number of device blocks that the tenant owns.
    pub device_blocks: u32,
    /// The number of device blocks that are guaranteed to the tenant.
    pub device_share_blocks: u32,
    /// The number of the tenant's device blocks that only the cache holds.
    pub device_cached: u32,
    /// The number of device blocks that the tenant's pins hold. Other tenants cannot use them.
    pub device_pinned: u32,
    /// The number of the tenant's device blocks evicted since the server started.
    pub device_evicted: u64,
    /// The number of disk slots that the tenant owns; null without a disk.
    pub disk_blocks: Option<u32>,
    /// The number of blocks that the tenant's pins keep on disk, including blocks that are still being written; null
    /// without a disk.
    pub disk_pinned: Option<u32>,
}

/// The size and use of the KV cache.
#[derive(Debug, Serialize, ToSchema)]
pub struct KvTotals {
    /// The object type, always `kv_cache`.
    pub object: &'static str,
    /// A digest of weights, dtypes and kernels. Servers share cached blocks only if their fingerprints are equal.
    pub fingerprint: String,
    /// The data type of K and V in the cache.
    pub dtype: String,
    /// The number of tokens in a block.
    pub block_size: u32,
    /// The size of a whole block in bytes, including the sliding-window layers.
    pub block_bytes: u64,
    /// The number of prompt tokens since the server started.
    pub prompt_tokens: u64,
    /// The number of prompt tokens that were found in any tier and not computed again.
    pub hit_tokens: u64,
    /// The pool in device memory.
    pub device: DeviceTier,
    /// The store in the host's memory; null without `--kv-host-size`, or if there is one on disk.
    pub host: Option<DiskTier>,
    /// The store on disk; null without `--kv-disk-path`.
    pub disk: Option<DiskTier>,
    /// The object store; null without `--kv-object-store`.
    pub object_store: Option<ObjectTotals>,
    /// The device pools of the lanes, each that of one shard.
    pub lanes: Vec<LaneTotals>,
    /// The use of your own tenant; for admins, of all tenants.
    pub tenants: Vec<TenantTotals>,
}

/// Returns the size and use of the KV cache, by tier and by tenant. A tenant sees its own; an admin sees all.
#[utoipa::path(
    get, path = "/v1/kv", params(ModelQuery),
    responses(
        (status = 200, description = "The totals", body = KvTotals),
        (status = 503, description = "No shard is connected", body = ErrorResponse),
    )
)]
pub async fn totals(OfModel(app): OfModel, Extension(caller): Extension<Caller>) -> Response {
    render(all_totals(&app, &caller).await)
}

async fn all_totals(app: &App, caller: &Caller) -> Result<KvTotals, ApiError> {
    let shard = app.served.shard_info()?;
    let look = |scheduler: &mut Scheduler, _| {
        let mut device: Vec<TenantUsage> = Vec::new();
        scheduler.tenants(&mut device);
        let stores = scheduler.lane_ids().filter_map(|lane| scheduler.kv(lane)?.store());
        let disk: Vec<StoreUsage> = stores.flat_map(StoreIndex::usages).collect();
        let lanes: Vec<LaneStats> = scheduler.lane_ids().map(|lane| scheduler.lane_stats(lane)).collect();
        (scheduler.stats(), lanes, device, disk)
    };
    let (stats, lanes, device, disk) = app.admission.ask(&app.served, caller, look).await?;
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
            bytes: shard.pool_bytes(&stats),
            used_bytes: (stats.blocks_held + stats.blocks_cached) * shard.bytes_per_block
                + (stats.window_parts_total - stats.window_parts_free) * shard.bytes_per_window_part,
        },
        host: (has_store && shard.has_store_in_memory()).then(|| disk_tier(&stats)),
        disk: (has_store && !shard.has_store_in_memory()).then(|| disk_tier(&stats)),
        object_store: app.served.objects.as_ref().map(|objects| {
            let counts = *objects.counts().borrow();
            object_totals(&counts, &stats)
        }),
        lanes: (0..).zip(&lanes).map(|(lane, stats)| lane_totals(lane, stats)).collect(),
        tenants: tenant_totals(caller, &device, &disk),
    })
}

/// Returns the totals that the caller may see, sorted by name; blocks without an owner come first.
fn tenant_totals(caller: &Caller, device: &[TenantUsage], disk: &[StoreUsage]) -> Vec<TenantTotals> {
    let names = device.iter().map(|usage| usage.tenant.as_deref());
    let names: BTreeSet<Option<&str>> =
        names.chain(disk.iter().map(|usage| usage.tenant.as_deref())).collect();
    let is_shown = |name: &Option<&str>| caller.is_admin() || (name.is_some() && *name == caller.name());
    let totals = names.into_iter().filter(is_shown).map(|name| {
        let on_device = device.iter().find(|usage| usage.tenant.as_deref() == name);
        // Each lane has a store.
        let on_disk = disk.iter().filter(|usage| usage.tenant.as_deref() == name);
        let of_device = |value: fn(&TenantUsage) -> u32| on_device.map_or(0, value);
        // A tenant without slots on disk has no pins there either.
        let of_disk =
            |value: fn(&StoreUsage) -> u32| (!disk.is_empty()).then(|| on_disk.clone().map(value).sum());
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
