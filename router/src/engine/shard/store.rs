//! What the shard's store holds: on disk, it is read by the router itself, as both are on one machine. A store in the
//! shard's memory begins empty with each stream.

use std::path::{Path, PathBuf};
use std::time::Instant;

use trunkline_scheduler::{SlotId, StoreContents, StoredBlock};
use trunkline_store::{OpenError, Records, records};

use super::ShardInfo;

/// What the shard's store holds, by its records if it is on disk. `None` if it has no store, or none that can be read:
/// then nothing is stored and nothing restored, and a warning says why.
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
    // It fails only if the runtime shuts down.
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
            tracing::warn!(%error, "the store cannot be used; hint: the router must be able to read the shard's folder");
            None
        }
    }
}

fn read_records(folder: &Path, num_slots: u32) -> Result<Records, OpenError> {
    let found = records(folder)?;
    if found.geometry.num_slots == num_slots {
        return Ok(found);
    }
    let what = format!("has {} slots, the shard says {num_slots}", found.geometry.num_slots);
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
