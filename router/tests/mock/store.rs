//! The mock shard's store. It has real files, and a block's bytes are derived from its key.

use std::path::Path;

use trunkline_engine::shard::proto;
use trunkline_scheduler::BlockKey;
use trunkline_store::{Geometry, NewBlock, Store};

/// The fingerprint of every mock shard.
pub const FINGERPRINT: &str = "0123456789abcdef";
pub const BLOCK_BYTES: u64 = 64;

pub struct MockStore(Store);

/// Returns the contents of the block with this key.
fn block_bytes(key: BlockKey) -> Vec<u8> {
    key.as_bytes().repeat(BLOCK_BYTES as usize / key.as_bytes().len())
}

impl MockStore {
    pub fn open(folder: &Path, block_size: u32, num_slots: u32) -> Self {
        let fingerprint = FINGERPRINT.to_owned();
        let geometry = Geometry { fingerprint, block_bytes: BLOCK_BYTES, block_size, num_slots };
        Self(Store::open(folder, geometry).unwrap().0)
    }

    /// Lists the blocks, in pieces of five slots.
    pub fn contents(&self) -> Vec<proto::StoreContentsResponse> {
        let num_slots = self.0.geometry().num_slots;
        let piece = |first: u32| {
            let blocks = self.0.contents(first..num_slots.min(first + 5)).unwrap();
            proto::StoreContentsResponse {
                slots: blocks.iter().map(|block| block.slot).collect(),
                keys: blocks.iter().flat_map(|block| *block.key.as_bytes()).collect(),
                parent_keys: blocks.iter().flat_map(|block| *block.parent.as_bytes()).collect(),
                depths: blocks.iter().map(|block| block.depth).collect(),
                sequences: blocks.iter().map(|block| block.sequence).collect(),
            }
        };
        (0..num_slots).step_by(5).map(piece).collect()
    }

    /// Writes a block of a sequence with these tokens.
    pub fn store(&self, root: &[u8], known: &[u32], block: &proto::BlockStore) -> proto::StoreOutcome {
        let size = self.0.geometry().block_size as usize;
        let root = BlockKey::from_bytes(root.try_into().unwrap());
        let depth = block.block_index as usize;
        let parent = known[..depth * size].chunks(size).fold(root, |key, tokens| key.extend(tokens));
        let token_ids = &known[depth * size..][..size];
        let key = parent.extend(token_ids);
        let new = NewBlock { key, parent, root, depth: block.block_index, token_ids };
        self.0.write(block.slot, &new, &block_bytes(key)).unwrap();
        proto::StoreOutcome { slot: block.slot, is_stored: true }
    }

    /// Restores the blocks of a step. Panics if a block has other bytes than its key determines.
    pub fn restore(&self, step: &proto::StepPlan) -> Vec<proto::RestoreOutcome> {
        step.discards.iter().for_each(|slot| self.0.erase(*slot).unwrap());
        let read = |block: &proto::BlockRestore| {
            let key = BlockKey::from_bytes(block.key.as_slice().try_into().unwrap());
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            let is_there = self.0.read(block.slot, key, &mut bytes).is_ok();
            assert!(!is_there || bytes == block_bytes(key), "a block with wrong contents");
            is_there
        };
        let restore = |restore: &proto::Restore| proto::RestoreOutcome {
            restore_id: restore.restore_id,
            num_blocks: restore.blocks.iter().take_while(|block| read(block)).count() as u32,
            time_us: 1,
        };
        step.restores.iter().map(restore).collect()
    }
}
