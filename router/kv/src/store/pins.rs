//! Prefixes that are kept in the store for a while.
//!
//! A pin names the keys of its blocks, whether the store has them already or will get them later. A pinned block is not
//! evicted. Pins outlive the index, because a new index can take them over.

use std::collections::BTreeMap;

use trunkline_contract::BlockKey;

use super::StoreIndex;
use crate::salt::Salt;

#[derive(Debug)]
struct StorePin {
    keys: Box<[BlockKey]>,
    tenant: Box<str>,
}

/// All pins of the store. The key of its last block names a prefix.
#[derive(Debug, Default)]
pub struct StorePins {
    max_slots: u32,
    /// The pins by the time when they end.
    by_end: BTreeMap<(u64, BlockKey), StorePin>,
    ends: BTreeMap<BlockKey, u64>,
    num_pins: BTreeMap<BlockKey, u32>,
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
        !self.num_pins.is_empty() && self.num_pins.contains_key(&key)
    }

    /// Returns the time when the pin of the prefix that ends with this block ends.
    pub(crate) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.ends.get(&last).copied()
    }

    pub fn num_blocks(&self) -> u32 {
        self.num_pins.len() as u32
    }

    /// Returns the number of pinned blocks of a tenant. Blocks without a tenant are under the empty name.
    pub fn num_blocks_of(&self, tenant: &str) -> u32 {
        self.num_blocks_by_tenant.get(tenant).copied().unwrap_or(0)
    }

    /// Moves the end of a pin to `end`, if that is later.
    fn renew(&mut self, last: BlockKey, end: u64) {
        let Some(before) = self.ends.get_mut(&last).filter(|before| **before < end) else { return };
        let before = std::mem::replace(before, end);
        let pin = self.by_end.remove(&(before, last)).expect("a pin has an end");
        self.by_end.insert((end, last), pin);
    }

    fn add(&mut self, end: u64, keys: Vec<BlockKey>, tenant: &str) {
        let Some(&last) = keys.last() else { return };
        if self.ends.contains_key(&last) {
            self.renew(last, end);
            return;
        }
        let mut num_new = 0;
        for &key in &keys {
            let count = self.num_pins.entry(key).or_default();
            num_new += u32::from(*count == 0);
            *count += 1;
        }
        *self.num_blocks_by_tenant.entry(tenant.into()).or_default() += num_new;
        self.by_end.insert((end, last), StorePin { keys: keys.into(), tenant: tenant.into() });
        self.ends.insert(last, end);
    }

    /// Ends the pin of a prefix. Returns the blocks that are not pinned any more.
    fn remove(&mut self, last: BlockKey) -> Vec<BlockKey> {
        let Some(end) = self.ends.remove(&last) else { return Vec::new() };
        let StorePin { keys, tenant } = self.by_end.remove(&(end, last)).expect("an end has a pin");
        let mut unpinned = Vec::new();
        for key in keys {
            let count = self.num_pins.get_mut(&key).expect("a pinned block is counted");
            *count -= 1;
            if *count == 0 {
                self.num_pins.remove(&key);
                unpinned.push(key);
            }
        }
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
        self.update_candidates(self.pins.num_pins.keys().copied().collect());
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
    #[doc(hidden)]
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
    #[doc(hidden)]
    pub fn unpin(&mut self, last: BlockKey) {
        let unpinned = self.pins.remove(last);
        self.update_candidates(unpinned);
    }

    #[doc(hidden)]
    pub fn expire_pins(&mut self, now_ms: u64) {
        while let Some(&(end, last)) = self.pins.by_end.first_key_value().map(|(entry, _)| entry)
            && end <= now_ms
        {
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
