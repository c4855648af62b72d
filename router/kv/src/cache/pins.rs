//! Prefixes that users keep on the device or in the store for a while.
//!
//! A pin on the device holds the blocks of its prefix, as a sequence does. They are not evicted, and nobody else can
//! use them. Therefore all pins together have a limit, each tenant's pins are limited by its share, and the pin that
//! would end first is dropped if a sequence could not run otherwise.

use trunkline_contract::{BlockId, BlockKey};

use super::KvCache;
use crate::device::PinnedBlocks;
use crate::index::NodeId;
use crate::pin_table::PinTable;
use crate::salt::Salt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// The indexed part of the prefix is pinned.
    Granted {
        num_blocks: u32,
        /// The number of those blocks that were not pinned before.
        num_new_blocks: u32,
    },
    /// The limit for all pins or the tenant's share has no room.
    Refused,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinCounts {
    /// Blocks pinned now, each counted once.
    pub num_blocks: u32,
    pub granted: u64,
    pub refused: u64,
    /// Pins that ended early so that a sequence could run.
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(super) struct DevicePins {
    max_blocks: u32,
    table: PinTable<PinnedBlocks>,
    counts: PinCounts,
}

impl DevicePins {
    pub(super) fn is_pinned(&self, block: BlockId) -> bool {
        self.table.is_pinned(block)
    }

    /// Returns the time when the pin of the prefix that ends with this block ends.
    pub(super) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.table.end_of(last)
    }
}

impl KvCache {
    /// Sets how many blocks may be pinned. Without a call it is 0.
    pub fn set_max_pinned_blocks(&mut self, max_blocks: u32) {
        self.pins.max_blocks = max_blocks;
    }

    pub fn pin_counts(&self) -> PinCounts {
        PinCounts { num_blocks: self.pins.table.num_blocks(), ..self.pins.counts }
    }

    /// Pins the indexed whole blocks of `tokens` for `ttl_ms` from now on, or until an earlier pin of them ends.
    ///
    /// The cost is O(blocks · log blocks).
    pub fn pin(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> PinOutcome {
        self.device.settle();
        let blocks = self.device.tree().find(salt, tokens).blocks;
        let Some(&last) = blocks.last() else {
            return PinOutcome::Granted { num_blocks: 0, num_new_blocks: 0 };
        };
        let key = self.device.tree().block_key(last, blocks.len() - 1);
        let num_new_blocks = blocks.iter().filter(|&&block| !self.pins.is_pinned(block)).count() as u32;
        let has_room = self.pins.table.num_blocks() + num_new_blocks <= self.pins.max_blocks;
        let pinned = has_room.then(|| self.device.pin(salt, &blocks, num_new_blocks)).flatten();
        let Some(pinned) = pinned else {
            self.pins.counts.refused += 1;
            return PinOutcome::Refused;
        };
        let end = self.device.now_ms().saturating_add(ttl_ms);
        if self.pins.table.renew(key, end) {
            // The pin that the prefix has keeps the same blocks.
            self.device.unpin(pinned, 0);
        } else {
            self.pins.table.insert(end, key, pinned);
        }
        self.pins.counts.granted += 1;
        PinOutcome::Granted { num_blocks: blocks.len() as u32, num_new_blocks }
    }

    /// Extends a pin of the whole blocks of `tokens` until `ttl_ms` from now on, if that is later.
    ///
    /// Returns false if there is no such pin.
    pub fn renew_pin(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> bool {
        let end = self.device.now_ms().saturating_add(ttl_ms);
        self.block_keys(salt, tokens).last().is_some_and(|&last| self.pins.table.renew(last, end))
    }

    /// Ends the pins whose prefixes end in a node or in its descendants, on the device and in the store.
    ///
    /// Returns how many blocks of the device are not pinned any more, or none if `key` is not that of the node. The
    /// cost is O(blocks · log pins).
    pub fn unpin_node(&mut self, id: NodeId, key: BlockKey) -> Option<u32> {
        let mut keys = self.subtree_keys(id, key)?;
        let tree = self.device.tree();
        if tree.is_tail(id) {
            // A pin of a tail pins the whole blocks before it.
            keys.extend(tree.parent(id).map(|parent| tree.last_key(parent)));
        }
        let num_before = self.pins.table.num_blocks();
        for key in keys {
            self.unpin(key);
            if let Some(store) = &mut self.store {
                store.unpin(key);
            }
        }
        Some(num_before - self.pins.table.num_blocks())
    }

    /// Ends the pins whose time is over, by the clock of [`KvCache::set_now`].
    pub fn expire_pins(&mut self) {
        let now_ms = self.device.now_ms();
        while let Some((_, key)) = self.pins.table.first().filter(|&(end, _)| end <= now_ms) {
            self.unpin(key);
        }
        if let Some(store) = &mut self.store {
            store.expire_pins(now_ms);
        }
    }

    /// Ends the pin on the device that would end first. The store keeps its blocks. Returns false if there is none.
    pub fn drop_pin(&mut self) -> bool {
        let Some((_, key)) = self.pins.table.first() else { return false };
        self.unpin(key);
        self.pins.counts.dropped += 1;
        true
    }

    /// Pins the whole blocks of `tokens` in the store for `ttl_ms` from now on, including those that it gets later.
    ///
    /// Returns how many leading blocks are stored or being written: 0 if the limit for all pins or the tenant's share
    /// of the slots has no room, and none without a store. The cost is O(tokens).
    pub fn pin_stored(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> Option<u32> {
        let keys = self.block_keys(salt, tokens);
        let end = self.device.now_ms().saturating_add(ttl_ms);
        Some(self.store.as_mut()?.pin(salt, keys, end).unwrap_or(0))
    }

    fn unpin(&mut self, key: BlockKey) {
        if let Some((pinned, unpinned)) = self.pins.table.remove(key) {
            self.device.unpin(pinned, unpinned.len() as u32);
        }
    }

    fn block_keys(&self, salt: &Salt, tokens: &[u32]) -> Vec<BlockKey> {
        let mut key = salt.root_key();
        let blocks = tokens.chunks_exact(self.device.block_size() as usize);
        blocks
            .map(|block| {
                key = key.extend(block);
                key
            })
            .collect()
    }
}
