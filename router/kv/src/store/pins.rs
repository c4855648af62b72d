//! Prefixes that are kept in the store for a while.
//!
//! A pin names the keys of its blocks, whether the store has them already or will get them later. A pinned block is not
//! evicted. Pins outlive the index, because a new index can take them over.

use std::collections::BTreeMap;

use trunkline_contract::BlockKey;

use super::StoreIndex;
use crate::pin_table::{Pin, PinTable};
use crate::salt::Salt;

#[derive(Debug)]
struct StorePin {
    keys: Box<[BlockKey]>,
    tenant: Box<str>,
}

impl Pin for StorePin {
    type Id = BlockKey;

    fn ids(&self) -> impl Iterator<Item = BlockKey> {
        self.keys.iter().copied()
    }
}

/// All pins of the store.
#[derive(Debug, Default)]
pub struct StorePins {
    max_slots: u32,
    table: PinTable<StorePin>,
    /// The number of pinned blocks of each tenant. Blocks without a tenant are under the empty name.
    num_blocks_by_tenant: BTreeMap<Box<str>, u32>,
}

/// The slots of the store that a tenant uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// The name; absent for blocks without a tenant, and for those found at the start whose tenant has not asked for
    /// them yet.
    pub tenant: Option<Box<str>>,
    pub num_slots: u32,
    /// The number of pinned blocks, stored or not.
    pub num_pinned: u32,
}

impl StorePins {
    pub(crate) fn has(&self, key: BlockKey) -> bool {
        self.table.is_pinned(key)
    }

    /// Returns the time when the pin of the prefix that ends with this block ends.
    pub(crate) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.table.end_of(last)
    }

    pub fn num_blocks(&self) -> u32 {
        self.table.num_blocks()
    }

    /// Returns the number of pinned blocks of a tenant. Blocks without a tenant are under the empty name.
    pub fn num_blocks_of(&self, tenant: &str) -> u32 {
        self.num_blocks_by_tenant.get(tenant).copied().unwrap_or(0)
    }

    fn add(&mut self, end: u64, keys: Vec<BlockKey>, tenant: &str) {
        let Some(&last) = keys.last() else { return };
        if !self.table.renew(last, end) {
            let num_new = self.table.insert(end, last, StorePin { keys: keys.into(), tenant: tenant.into() });
            *self.num_blocks_by_tenant.entry(tenant.into()).or_default() += num_new;
        }
    }

    /// Ends the pin of a prefix. Returns the blocks that are not pinned any more.
    fn remove(&mut self, last: BlockKey) -> Vec<BlockKey> {
        let Some((StorePin { tenant, .. }, unpinned)) = self.table.remove(last) else { return Vec::new() };
        let of_tenant = self.num_blocks_by_tenant.get_mut(&tenant).expect("the tenant of a pin is counted");
        *of_tenant -= unpinned.len() as u32;
        if *of_tenant == 0 {
            self.num_blocks_by_tenant.remove(&tenant);
        }
        unpinned
    }
}

impl StoreIndex {
    /// Takes over the pins of an earlier index, and sets how many blocks may be pinned.
    pub fn set_pins(&mut self, pins: StorePins, max_slots: u32) {
        self.pins = StorePins { max_slots, ..pins };
        self.update_candidates(self.pins.table.ids().collect());
    }

    pub fn pins(&self) -> &StorePins {
        &self.pins
    }

    /// Takes the pins away, for the next index.
    pub fn take_pins(&mut self) -> StorePins {
        std::mem::take(&mut self.pins)
    }

    /// Pins a prefix until `end`. Returns how many of its leading blocks are stored or being written.
    ///
    /// Returns none if the limit for all pins, or the tenant's share of the slots, has no room.
    pub fn pin(&mut self, salt: &Salt, keys: Vec<BlockKey>, end: u64) -> Option<u32> {
        let num_new = keys.iter().filter(|&&key| !self.pins.has(key)).count() as u32;
        let name = salt.tenant().unwrap_or_default();
        let num_before = self.pins.num_blocks_of(name);
        let share = self.tenants.share_of(salt, self.slots.len() as u32);
        if self.pins.num_blocks() + num_new > self.pins.max_slots || num_before + num_new > share {
            return None;
        }
        let num_stored = keys.iter().take_while(|&&key| self.has(key)).count() as u32;
        self.pins.add(end, keys.clone(), name);
        self.update_candidates(keys);
        Some(num_stored)
    }

    /// Ends the pin of the prefix that ends with this block.
    pub fn unpin(&mut self, last: BlockKey) {
        let unpinned = self.pins.remove(last);
        self.update_candidates(unpinned);
    }

    /// Ends the pins whose time is over at `now_ms`.
    pub fn expire_pins(&mut self, now_ms: u64) {
        while let Some((_, last)) = self.pins.table.first().filter(|&(end, _)| end <= now_ms) {
            self.unpin(last);
        }
    }

    pub fn usages(&self) -> Vec<StoreUsage> {
        let usages = self.num_slots_by_tenant().map(|(tenant, num_slots)| {
            let num_pinned = self.pins.num_blocks_of(tenant.unwrap_or_default());
            StoreUsage { tenant: tenant.map(Into::into), num_slots, num_pinned }
        });
        usages.collect()
    }

    fn update_candidates(&mut self, keys: Vec<BlockKey>) {
        for key in keys {
            if let Some(&slot) = self.by_key.get(&key) {
                self.update_candidate(slot);
            }
        }
    }
}
