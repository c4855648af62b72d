//! Transfers of blocks between the device and the store.

use trunkline_contract::{BlockId, BlockKey, SlotId};

use super::KvCache;
use crate::device::{BlockHold, BlockTable, PrefixHit};
use crate::evict::CachePriority;
use crate::store::{StoreIndex, StoredHit};

/// A block that is read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredBlock {
    pub slot: SlotId,
    /// The key that the slot's record must have.
    pub key: BlockKey,
    pub block: BlockId,
    /// True if the next position does not attend to the block within its window, so that it gets no window part.
    pub base_only: bool,
}

impl KvCache {
    /// Reserves a slot for the table's next block that is not stored, if that is one of its first `num_full_blocks`.
    ///
    /// Returns the index of the block and the slot, or none if nothing can be stored. The shard copies the block in the
    /// step that computes it. The sequence needs the block's window part until then. The block's tokens need not be
    /// known yet: [`KvCache::index`] or [`KvCache::close`] follows.
    pub fn begin_store(&mut self, table: &mut BlockTable, num_full_blocks: usize) -> Option<(usize, SlotId)> {
        let block_idx = table.store.num_blocks();
        if block_idx >= num_full_blocks || table.priority() == CachePriority::Low {
            return None;
        }
        if self.device.windows().is_some() && block_idx < table.first_windowed_block() {
            // The window part may be missing, and later blocks could not be found without this one.
            table.store.stop();
            return None;
        }
        let store = self.store.as_mut()?;
        let slot = store.reserve(table.salt())?;
        table.store.set_num_blocks(block_idx + 1);
        if block_idx < table.num_indexed_blocks() {
            let (key, parent) = self.device.indexed_keys(table, block_idx);
            table.store.name_slot(store, slot, key, parent);
        } else {
            table.store.add_unnamed(block_idx, slot);
        }
        Some((block_idx, slot))
    }

    /// Begins to restore the stored blocks of a hit to the table's blocks after those that the hit found on the device.
    ///
    /// The table has grown by these blocks. `other` is the store that has them, if it is not the own one. Panics if
    /// window parts are missing for the next position.
    pub fn begin_restore(
        &mut self,
        table: &mut BlockTable,
        hit: &PrefixHit,
        other: Option<&mut StoreIndex>,
    ) -> Vec<RestoredBlock> {
        let first = hit.num_blocks();
        let end = first + hit.stored().len();
        let first_windowed = self.device.reserve_restored(table, hit, first..end);
        let is_own = other.is_none();
        let Some(store) = other.or(self.store.as_mut()) else { return Vec::new() };
        let blocks = (first..).zip(hit.stored()).map(|(block_idx, &StoredHit { slot, key })| {
            store.begin_read(slot);
            let block = table.blocks()[block_idx].id();
            RestoredBlock { slot, key, block, base_only: block_idx < first_windowed }
        });
        let restored: Vec<RestoredBlock> = blocks.collect();
        if let Some(last) = restored.last() {
            store.touch(last.key, table.salt());
        }
        if is_own {
            table.store.set_num_blocks(end);
        }
        let block_size = self.device.block_size();
        self.device.begin_fill(table, first as u32 * block_size, restored.len() as u32 * block_size);
        restored
    }

    /// Notes that `num_failed` blocks of a restore from the own store, which are the table's last, are missing there.
    /// [`KvCache::end_reads`] follows.
    pub fn fail_restored(&mut self, table: &mut BlockTable, num_failed: usize) {
        table.store.set_num_blocks(table.store.num_blocks() - num_failed);
    }

    /// Takes the blocks of a restore, which are the table's last, away from a sequence that waits for it no longer.
    ///
    /// The caller keeps the holds, and the blocks keep their window parts, until [`KvCache::end_detached_restore`].
    pub fn detach_restored(&mut self, table: &mut BlockTable, restored: &[RestoredBlock]) -> Vec<BlockHold> {
        let holds = table.detach_last(restored.len());
        let is_same = |(hold, block): (&BlockHold, &RestoredBlock)| hold.id() == block.block;
        assert!(
            holds.iter().zip(restored).all(is_same),
            "a table does not grow while it waits for the store"
        );
        holds
    }

    /// Releases the window parts of a detached restore, which has ended. [`KvCache::end_reads`] follows if it was from
    /// the own store.
    pub fn end_detached_restore(&mut self, restored: &[RestoredBlock]) {
        let windowed = restored.iter().filter(|block| !block.base_only);
        self.device.release_restored(windowed.map(|block| block.block));
    }

    /// Ends reads of the own store, of which the first `num_good` succeeded and the next one found a damaged block.
    pub fn end_reads(&mut self, restored: &[RestoredBlock], num_good: usize) {
        let Some(store) = &mut self.store else { return };
        for (index, block) in restored.iter().enumerate() {
            store.end_read(block.slot, index == num_good);
        }
    }

    /// Returns true if a block of the table is still being written to the store.
    pub fn is_storing(&self, table: &BlockTable) -> bool {
        let Some(store) = &self.store else { return false };
        let num_blocks = table.store.num_blocks().min(table.num_indexed_blocks());
        // From the last block on, which is mostly the last one to be written.
        let mut blocks = (0..num_blocks).rev();
        table.store.has_unnamed()
            || blocks.any(|block| store.is_writing(self.device.indexed_keys(table, block).0))
    }

    /// Finds how many of the blocks that a table begins with are stored, and marks them as used.
    pub(super) fn find_stored_prefix(&mut self, table: &mut BlockTable) {
        let Some(store) = &mut self.store else { return };
        // From the last block on, because usually all are stored.
        for block_idx in (0..table.blocks().len()).rev() {
            let (key, _) = self.device.indexed_keys(table, block_idx);
            if store.has(key) {
                store.touch(key, table.salt());
                table.store.set_num_blocks(block_idx + 1);
                return;
            }
        }
    }
}
