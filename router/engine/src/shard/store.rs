//! Asks the shard which blocks its store holds.

use std::ops::Range;
use std::time::Instant;

use tonic::Code;
use trunkline_scheduler::{BlockKey, KEY_BYTES, SlotId, StoreContents, StoredBlock};

use super::client::{Client, failed, within};
use super::info::ShardInfo;
use super::{ShardError, proto};

const CALL: &str = "StoreContents";

/// Returns the contents of the shard's store, or `None` if it has no store.
///
/// If the shard cannot read its store, this logs a warning and returns `None`; no block is stored or restored then.
pub(super) async fn read_store(
    client: &mut Client,
    info: &ShardInfo,
) -> Result<Option<StoreContents>, ShardError> {
    let num_slots = info.num_store_slots;
    if num_slots == 0 {
        return Ok(None);
    }
    let began = Instant::now();
    match read_blocks(client, num_slots).await {
        Ok(blocks) => {
            let took_ms = began.elapsed().as_millis() as u64;
            tracing::debug!(num_blocks = blocks.len(), num_slots, took_ms, "store read");
            Ok(Some(StoreContents {
                num_slots,
                blocks,
                is_in_memory: info.has_store_in_memory(),
                folder: info.store_folder.as_ref().and_then(|folder| folder.to_str()).map(Into::into),
                reads_others: info.reads_other_stores,
            }))
        }
        Err(ShardError::Call { status, .. }) if status.code() == Code::DataLoss => {
            tracing::warn!(
                error = status.message(),
                "cannot use the store; hint: check the disk of the store"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn read_blocks(client: &mut Client, num_slots: u32) -> Result<Vec<StoredBlock>, ShardError> {
    let call = async { client.store_contents(proto::StoreContentsRequest {}).await.map_err(failed(CALL)) };
    let mut pieces = within(CALL, call).await?.into_inner();
    let mut blocks = Vec::new();
    while let Some(piece) = within(CALL, async { pieces.message().await.map_err(failed(CALL)) }).await? {
        let first_slot = blocks.last().map_or(0, |block: &StoredBlock| block.slot.0 + 1);
        blocks.extend(stored_blocks_from_proto(&piece, first_slot..num_slots)?);
    }
    Ok(blocks)
}

/// Converts a piece of the store's contents, whose blocks must be in `slots`, in ascending order.
pub fn stored_blocks_from_proto(
    piece: &proto::StoreContentsResponse,
    slots: Range<u32>,
) -> Result<Vec<StoredBlock>, ShardError> {
    let invalid = |detail: String| ShardError::InvalidMessage { detail };
    let num_blocks = piece.slots.len();
    let ((keys, _), (parents, _)) =
        (piece.keys.as_chunks::<KEY_BYTES>(), piece.parent_keys.as_chunks::<KEY_BYTES>());
    let key_bytes = [piece.keys.len(), piece.parent_keys.len()];
    let lens = [piece.depths.len(), piece.sequences.len()];
    if key_bytes != [num_blocks * KEY_BYTES; 2] || lens != [num_blocks; 2] {
        return Err(invalid(format!("the lists of a piece of {num_blocks} stored blocks differ in length")));
    }
    let mut next = slots.start;
    let block = |index: usize| {
        let (slot, depth) = (piece.slots[index], piece.depths[index]);
        if !(next..slots.end).contains(&slot) {
            let end = slots.end;
            return Err(invalid(format!("a stored block is in slot {slot}, expected {next}..{end}")));
        }
        next = slot + 1;
        Ok(StoredBlock {
            slot: SlotId(slot),
            key: BlockKey::from_bytes(keys[index]),
            parent: (depth > 0).then(|| BlockKey::from_bytes(parents[index])),
            depth,
            sequence: piece.sequences[index],
        })
    };
    (0..num_blocks).map(block).collect()
}
