//! Reads the contents of the shard's KV store. The router reads a store on disk itself, because both processes run on
//! one machine. A store in the shard's memory is empty when a stream begins.

use std::path::{Path, PathBuf};
use std::time::Instant;

use trunkline_scheduler::{SlotId, StoreContents, StoredBlock};
use trunkline_store::{OpenError, Records, records};

use super::info::ShardInfo;

/// Returns the contents of the shard's store, or `None` if it has no store. If the store cannot be read, this logs a
/// warning and returns `None`; no block is stored or restored then.
pub async fn read_store(info: &ShardInfo) -> Option<StoreContents> {
    let num_slots = info.num_store_slots;
    if info.has_store_in_memory() {
        return Some(StoreContents { num_slots, blocks: Vec::new(), is_in_memory: true });
    }
    let folder = info.store_folder.clone()?;
    let read = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        let found = read_records(&folder, num_slots);
        (folder, found, began.elapsed())
    });
    // It fails only if the runtime is shutting down.
    let (folder, found, took) = read.await.ok()?;
    match found {
        Ok(found) => {
            tracing::info!(
                folder = %folder.display(),
                num_blocks = found.blocks.len(),
                num_damaged = found.num_damaged,
                num_slots,
                took_ms = took.as_millis() as u64,
                "store read"
            );
            Some(contents(found, num_slots))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot use the store; hint: check that the router can read the shard's folder");
            None
        }
    }
}

fn read_records(folder: &Path, num_slots: u32) -> Result<Records, OpenError> {
    let found = records(folder)?;
    if found.geometry.num_slots == num_slots {
        return Ok(found);
    }
    let what = format!("has {} slots, but the shard reports {num_slots}", found.geometry.num_slots);
    Err(OpenError::Unreadable { path: PathBuf::from(folder), what })
}

fn contents(found: Records, num_slots: u32) -> StoreContents {
    let blocks = found.blocks.into_iter().map(|block| StoredBlock {
        slot: SlotId(block.slot),
        key: block.key,
        parent: (block.depth > 0).then_some(block.parent),
        depth: block.depth,
        sequence: block.sequence,
    });
    StoreContents { num_slots, blocks: blocks.collect(), is_in_memory: false }
}
