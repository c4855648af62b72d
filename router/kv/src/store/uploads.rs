//! Blocks on their way from the store to the object tier, and from there to the store.

use std::collections::VecDeque;

use trunkline_contract::{BlockKey, SlotId};

use super::StoreIndex;
use super::slot::{Offer, SlotState};
use crate::salt::Salt;

/// The stored blocks that wait to be offered to the object tier, in the order of their paths.
#[derive(Debug, Default)]
pub(super) struct UploadQueue {
    /// Each block's key, and whether it was just stored.
    waiting: VecDeque<(BlockKey, bool)>,
    max_len: usize,
    num_dropped: u64,
}

impl UploadQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn num_dropped(&self) -> u64 {
        self.num_dropped
    }

    /// Adds a block. Returns false and counts it as dropped if the queue is full.
    fn push(&mut self, key: BlockKey, is_new: bool) -> bool {
        let has_room = self.waiting.len() < self.max_len;
        if has_room {
            self.waiting.push_back((key, is_new));
        } else {
            self.num_dropped += 1;
        }
        has_room
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.waiting.len() <= self.max_len, "offers are bounded");
    }
}

impl StoreIndex {
    /// Sets how many stored blocks may wait for [`StoreIndex::take_offer`]. Without an object tier it is 0.
    pub fn set_max_offers(&mut self, max_offers: usize) {
        self.uploads.max_len = max_offers;
    }

    /// Begins a read of the next block to upload. The blocks of a path come in order.
    pub fn take_offer(&mut self) -> Option<Offer> {
        while let Some((key, is_new)) = self.uploads.waiting.pop_front() {
            let Some(&slot) = self.by_key.get(&key) else { continue };
            if matches!(self.slots[slot.index()].state, SlotState::Stored) {
                self.begin_read(slot);
                return Some(Offer { slot, key, is_new });
            }
        }
        None
    }

    /// Records that the object tier did not take a block. It is offered again after those that wait.
    pub fn refuse_offer(&mut self, key: BlockKey) {
        let Some(&slot) = self.by_key.get(&key) else { return };
        self.slots[slot.index()].is_offered = self.uploads.push(key, false);
    }

    /// Reserves slots for at most `num_blocks` blocks from the object tier, which continue the stored block `before`.
    ///
    /// Returns no slots if that block is not stored. [`StoreIndex::adopt`] must follow for each slot.
    pub fn reserve_adopted(
        &mut self,
        salt: &Salt,
        before: Option<BlockKey>,
        num_blocks: usize,
    ) -> Vec<SlotId> {
        if let Some(before) = before {
            if !self.has(before) {
                return Vec::new();
            }
            // Otherwise it could be evicted to make room for its own continuation.
            self.touch(before, salt);
        }
        std::iter::from_fn(|| self.reserve(salt)).take(num_blocks).collect()
    }

    /// Ends the write of a block from the object tier to a reserved slot. Returns false if the block is not kept.
    pub fn adopt(&mut self, id: SlotId, key: BlockKey, parent: Option<BlockKey>, is_written: bool) -> bool {
        if is_written && !self.by_key.contains_key(&key) && self.name(id, key, parent) {
            self.slots[id.index()].is_offered = true;
        } else if matches!(self.slots[id.index()].state, SlotState::Writing { is_named: false }) {
            self.abandon(id);
        }
        assert!(self.end_write(id, is_written), "slot {} is reserved when it is adopted", id.0);
        is_written && self.by_key.contains_key(&key)
    }

    /// Queues a stored block for upload, after the blocks before it that were not offered yet.
    ///
    /// The object tier finds a block only if it has the whole path. Blocks that do not fit in the queue are offered
    /// when the path grows again.
    pub(super) fn offer_path(&mut self, id: SlotId) {
        if self.uploads.max_len == 0 {
            return;
        }
        let mut path = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let slot = &self.slots[id.index()];
            if slot.is_offered || !matches!(slot.state, SlotState::Stored) {
                break;
            }
            path.push(id);
            next = slot.parent.and_then(|parent| self.by_key.get(&parent).copied());
        }
        while let Some(id_on_path) = path.pop() {
            let slot = &mut self.slots[id_on_path.index()];
            if !self.uploads.push(slot.key, id_on_path == id) {
                return;
            }
            slot.is_offered = true;
        }
    }
}
