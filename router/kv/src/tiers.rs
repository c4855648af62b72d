//! How the device and the store below it meet: what is found there, what is written to it and read back.

use trunkline_contract::{BlockId, BlockKey, SlotId};

use crate::block::BlockHold;
use crate::cache::KvCache;
use crate::hit::PrefixHit;
use crate::radix::{Cursor, PrefixMatch};
use crate::salt::Salt;
use crate::store::{Offer, StoreCounts, StoreIndex, StoredHit};
use crate::table::{BlockTable, UnnamedStore, Worth};

/// A block that is read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredBlock {
    /// Where it lies.
    pub slot: SlotId,
    /// What must be there.
    pub key: BlockKey,
    /// Where it goes.
    pub block: BlockId,
    /// It lies before the window of what is computed next: it gets no window part.
    pub base_only: bool,
}

impl KvCache {
    /// Puts a store below the device.
    pub fn set_store(&mut self, mut store: StoreIndex) {
        store.set_shares(&self.policy.shares());
        store.record_events(self.events.is_on());
        self.store = Some(store);
    }

    /// How full the store is; none if there is none.
    pub fn store_counts(&self) -> Option<StoreCounts> {
        self.store.as_ref().map(StoreIndex::counts)
    }

    /// Takes a slot for the next block of the table that is not stored, if it lies before `num_full_blocks`. The step
    /// that is told of it takes the block's contents, with its window part, which the sequence needs until then. None:
    /// nothing to store, or no slot to be had.
    ///
    /// Its tokens need not be known yet: `index` says them, and `close` that they will never be.
    pub fn begin_store(&mut self, table: &mut BlockTable, num_full_blocks: usize) -> Option<(usize, SlotId)> {
        let block_idx = table.num_stored_blocks;
        if block_idx >= num_full_blocks || table.worth == Worth::Low {
            return None;
        }
        if self.windows.is_some() && block_idx < table.needed.start as usize {
            // Its window part may be gone; and what follows could not be found without it.
            table.num_stored_blocks = usize::MAX;
            return None;
        }
        let slot = self.store.as_mut()?.reserve(&table.salt)?;
        table.num_stored_blocks += 1;
        if block_idx < table.num_indexed_blocks() {
            let key = self.indexed_key(table, block_idx);
            let parent = block_idx.checked_sub(1).map(|before| self.indexed_key(table, before));
            self.name_slot(table, slot, key, parent);
        } else {
            table.unnamed.push_back(UnnamedStore { block_idx, slot });
        }
        Some((block_idx, slot))
    }

    /// What became of a slot from [`KvCache::begin_store`]. False if nobody waited for it: a bug of the shard.
    #[must_use]
    pub fn end_store(&mut self, slot: SlotId, is_stored: bool) -> bool {
        self.store.as_mut().is_some_and(|store| store.written(slot, is_stored))
    }

    /// Begins to read what a hit found in the store into the table's blocks after those that the hit found on the
    /// device; the table has grown by as many. There are window parts for those that the next position looks at.
    pub fn begin_restore(&mut self, table: &mut BlockTable, hit: &PrefixHit) -> Vec<RestoredBlock> {
        let first = hit.num_blocks();
        let first_windowed = self.give_restored(table, hit);
        let Some(store) = &mut self.store else { return Vec::new() };
        let blocks = (first..).zip(hit.stored()).map(|(block_idx, &StoredHit { slot, key })| {
            store.begin_read(slot);
            let block = table.blocks[block_idx].id();
            RestoredBlock { slot, key, block, base_only: block_idx < first_windowed }
        });
        let restored: Vec<RestoredBlock> = blocks.collect();
        if let Some(last) = restored.last() {
            store.touch(last.key, &table.salt);
        }
        table.num_stored_blocks = first + restored.len();
        let (first, count) = (first as u32 * self.block_size, restored.len() as u32 * self.block_size);
        self.begin_fill(table, first, count);
        restored
    }

    /// What became of the blocks from [`KvCache::begin_restore`]: so many, from the first on, are there. The one after
    /// them is broken; those behind it were not looked at.
    pub fn end_restore(&mut self, table: &mut BlockTable, restored: &[RestoredBlock], num_good: usize) {
        self.end_reads(restored, num_good);
        table.num_stored_blocks -= restored.len().saturating_sub(num_good);
    }

    /// A restore is not waited for any longer: its blocks, the table's last, are no longer the table's. Whoever has the
    /// handles keeps them, and their window parts are needed, until the reads are over: then it calls
    /// [`KvCache::end_late_restore`].
    pub fn detach_restored(&mut self, table: &mut BlockTable, restored: &[RestoredBlock]) -> Vec<BlockHold> {
        let first = table.blocks.len() - restored.len();
        let needed = &mut table.needed;
        *needed = needed.start.min(first as u32)..needed.end.min(first as u32);
        let holds = table.blocks.split_off(first);
        let is_it = |(hold, block): (&BlockHold, &RestoredBlock)| hold.id() == block.block;
        assert!(
            holds.iter().zip(restored).all(is_it),
            "nothing was added to a table that waits for the store"
        );
        holds
    }

    /// What became of blocks that nobody waited for, as in [`KvCache::end_restore`].
    pub fn end_late_restore(&mut self, restored: &[RestoredBlock], num_good: usize) {
        self.release_restored(restored);
        self.end_reads(restored, num_good);
    }

    fn end_reads(&mut self, restored: &[RestoredBlock], num_good: usize) {
        let Some(store) = &mut self.store else { return };
        for (index, block) in restored.iter().enumerate() {
            store.end_read(block.slot, index == num_good);
        }
    }

    /// True if the block is in the store or on its way there.
    pub fn is_stored(&self, key: BlockKey) -> bool {
        self.store.as_ref().is_some_and(|store| store.has(key))
    }

    /// The next stored block for the tier below; a read of it begins.
    pub fn take_offer(&mut self) -> Option<Offer> {
        self.store.as_mut()?.take_offer()
    }

    /// The read of an offer is over.
    pub fn end_offer(&mut self, offer: &Offer, is_broken: bool) {
        if let Some(store) = &mut self.store {
            store.end_read(offer.slot, is_broken);
        }
    }

    /// The tier below did not take a block: it is offered again, after those that wait.
    pub fn refuse_offer(&mut self, key: BlockKey) {
        if let Some(store) = &mut self.store {
            store.refuse_offer(key);
        }
    }

    /// Slots for at most `num_blocks` blocks of a salt that come from the tier below and continue the stored block
    /// `before`; none if that is not there.
    pub fn reserve_adopted(
        &mut self,
        salt: &Salt,
        before: Option<BlockKey>,
        num_blocks: usize,
    ) -> Vec<SlotId> {
        let Some(store) = &mut self.store else { return Vec::new() };
        if let Some(before) = before {
            if !store.has(before) {
                return Vec::new();
            }
            // Or it might go to make room for what continues it.
            store.touch(before, salt);
        }
        std::iter::from_fn(|| store.reserve(salt)).take(num_blocks).collect()
    }

    /// What became of a slot from [`KvCache::reserve_adopted`]. False: its block is not kept.
    pub fn adopt(&mut self, slot: SlotId, key: BlockKey, parent: Option<BlockKey>, is_written: bool) -> bool {
        self.store.as_mut().is_some_and(|store| store.adopt(slot, key, parent, is_written))
    }

    pub(crate) fn find_stored(&self, salt: &Salt, found: &PrefixMatch, usable: &[u32]) -> Vec<StoredHit> {
        let Some(store) = &self.store else { return Vec::new() };
        let rest = &usable[found.blocks.len() * self.block_size as usize..];
        if rest.len() < self.block_size as usize {
            return Vec::new();
        }
        store.find(self.key_before(salt, &found.cursor), rest, self.block_size as usize)
    }

    /// The key of the block before a cursor.
    pub(crate) fn key_before(&self, salt: &Salt, cursor: &Cursor) -> BlockKey {
        match cursor.last_block {
            Some(block) => self.tree.block_key(block, cursor.num_blocks as usize - 1),
            None => salt.root_key(),
        }
    }

    /// Finds how many of the blocks that a table begins with are stored, and says that they are used.
    pub(crate) fn count_stored(&mut self, table: &mut BlockTable) {
        let Some(store) = &mut self.store else { return };
        // From the last one on: mostly all are.
        for block_idx in (0..table.blocks.len()).rev() {
            let key = self.tree.block_key(table.blocks[block_idx].id(), block_idx);
            if store.has(key) {
                store.touch(key, &table.salt);
                table.num_stored_blocks = block_idx + 1;
                return;
            }
        }
    }

    /// A block of the table entered the index: if it is on its way to the store, now it has a name.
    pub(crate) fn name_stored(&mut self, table: &mut BlockTable, block_idx: usize, key: BlockKey) {
        let before = std::mem::replace(&mut table.key, key);
        if let Some(&unnamed) = table.unnamed.front()
            && unnamed.block_idx == block_idx
        {
            table.unnamed.pop_front();
            let parent = (block_idx > 0).then_some(before);
            self.name_slot(table, unnamed.slot, key, parent);
        }
    }

    /// The table ends: what it was still to name never will be.
    pub(crate) fn abandon_unnamed(&mut self, table: &mut BlockTable) {
        let Some(store) = &mut self.store else { return };
        table.unnamed.drain(..).for_each(|unnamed| store.abandon(unnamed.slot));
    }

    fn name_slot(&mut self, table: &mut BlockTable, slot: SlotId, key: BlockKey, parent: Option<BlockKey>) {
        let store = self.store.as_mut().expect("a slot has a store");
        if !store.name(slot, key, parent) {
            // What follows could not be found either.
            table.num_stored_blocks = usize::MAX;
        }
    }

    fn indexed_key(&self, table: &BlockTable, block_idx: usize) -> BlockKey {
        let shadow = table.shadows.iter().find(|shadow| shadow.block_idx == block_idx);
        let block = shadow.map_or_else(|| table.blocks[block_idx].id(), |shadow| shadow.indexed.id());
        self.tree.block_key(block, block_idx)
    }
}
