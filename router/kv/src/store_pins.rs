//! Prefixes that are kept in the store for a while.
//!
//! They are named by keys, whether the store has their blocks or will have them: what is named so does not go to make
//! room. Plain data, so that it can outlive the index and be put on the next one.

use std::collections::BTreeMap;

use trunkline_contract::BlockKey;

use crate::cache::KvCache;
use crate::salt::Salt;
use crate::store::StoreIndex;

#[derive(Debug)]
struct StorePin {
    keys: Box<[BlockKey]>,
    tenant: Box<str>,
}

/// All pins of the store. A prefix is named by the key of its last block.
#[derive(Debug, Default)]
pub struct StorePins {
    max_slots: u32,
    by_end: BTreeMap<(u64, BlockKey), StorePin>,
    ends: BTreeMap<BlockKey, u64>,
    /// Pins of each pinned block.
    num_pins: BTreeMap<BlockKey, u32>,
    /// Blocks pinned by tenant; those without one under no name.
    #[doc(hidden)]
    pub by_tenant: BTreeMap<Box<str>, u32>,
}

/// What a tenant has of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Its name; none for blocks without a tenant, and for those whose tenant did not ask for them since the start.
    pub tenant: Option<Box<str>>,
    /// Slots in use.
    pub num_slots: u32,
    /// Blocks that pins keep, there or on their way.
    pub num_pinned: u32,
}

impl StorePins {
    /// Whether a pin keeps this block.
    pub(crate) fn has(&self, key: BlockKey) -> bool {
        !self.num_pins.is_empty() && self.num_pins.contains_key(&key)
    }

    /// When the pin of the prefix that ends with this block ends.
    pub(crate) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.ends.get(&last).copied()
    }

    /// Blocks that pins keep.
    #[doc(hidden)]
    pub fn num_blocks(&self) -> u32 {
        self.num_pins.len() as u32
    }

    /// The pin of a prefix that is there ends then, if that is later.
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
        *self.by_tenant.entry(tenant.into()).or_default() += num_new;
        self.by_end.insert((end, last), StorePin { keys: keys.into(), tenant: tenant.into() });
        self.ends.insert(last, end);
    }

    /// Ends the pin of a prefix; returns the blocks that none keeps any more.
    fn take(&mut self, last: BlockKey) -> Vec<BlockKey> {
        let Some(end) = self.ends.remove(&last) else { return Vec::new() };
        let StorePin { keys, tenant } = self.by_end.remove(&(end, last)).expect("an end has a pin");
        let mut left = Vec::new();
        for key in keys {
            let count = self.num_pins.get_mut(&key).expect("a pinned block is counted");
            *count -= 1;
            if *count == 0 {
                self.num_pins.remove(&key);
                left.push(key);
            }
        }
        let of_tenant = self.by_tenant.get_mut(&tenant).expect("who pinned is counted");
        *of_tenant -= left.len() as u32;
        if *of_tenant == 0 {
            self.by_tenant.remove(&tenant);
        }
        left
    }
}

impl StoreIndex {
    /// Pins that were there before this index was, and how many blocks may be pinned: 0, as at first, none.
    pub fn set_pins(&mut self, pins: StorePins, max_slots: u32) {
        self.pins = StorePins { max_slots, ..pins };
        self.refresh_all(self.pins.num_pins.keys().copied().collect());
    }

    /// Keeps a prefix until `end`. Returns how many of its blocks, from the first on, are there or on their way; none
    /// if the limit for all, or the tenant's share, has no room for it.
    #[doc(hidden)]
    pub fn pin(&mut self, salt: &Salt, keys: Vec<BlockKey>, end: u64) -> Option<u32> {
        let num_new = keys.iter().filter(|&&key| !self.pins.has(key)).count() as u32;
        let name = salt.tenant().unwrap_or_default();
        let num_before = self.pins.by_tenant.get(name).copied().unwrap_or(0);
        let share = self.groups.share_of(salt, self.slots.len() as u32);
        if self.pins.num_blocks() + num_new > self.pins.max_slots || num_before + num_new > share {
            return None;
        }
        let num_there = keys.iter().take_while(|&&key| self.has(key)).count() as u32;
        self.pins.add(end, keys.clone(), name);
        self.refresh_all(keys);
        Some(num_there)
    }

    /// Ends the pin of the prefix that ends with this block.
    #[doc(hidden)]
    pub fn unpin(&mut self, last: BlockKey) {
        let left = self.pins.take(last);
        self.refresh_all(left);
    }

    /// Ends the pins whose time is over.
    #[doc(hidden)]
    pub fn expire_pins(&mut self, now_ms: u64) {
        while let Some(&(end, last)) = self.pins.by_end.first_key_value().map(|(place, _)| place)
            && end <= now_ms
        {
            self.unpin(last);
        }
    }

    fn refresh_all(&mut self, keys: Vec<BlockKey>) {
        for key in keys {
            if let Some(&slot) = self.by_key.get(&key) {
                self.refresh(slot);
            }
        }
    }
}

impl KvCache {
    /// Keeps the whole blocks of `tokens` in the store for `ttl_ms` from now on, those that it has and those that it
    /// will get. Returns how many, from the first on, are there or on their way: none without a store, 0 if the limit
    /// for all, or the tenant's share of the slots, has no room. Cost: O(tokens).
    pub fn pin_stored(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> Option<u32> {
        let store = self.store.as_mut()?;
        let mut key = salt.root_key();
        let keys = tokens.chunks_exact(self.block_size as usize).map(|block| {
            key = key.extend(block);
            key
        });
        let keys = keys.collect();
        Some(store.pin(salt, keys, self.now_ms.saturating_add(ttl_ms)).unwrap_or(0))
    }

    /// Takes the store's pins away, to be put on another index.
    pub fn take_store_pins(&mut self) -> StorePins {
        self.store.as_mut().map(|store| std::mem::take(&mut store.pins)).unwrap_or_default()
    }

    /// Blocks that pins keep in the store.
    pub fn num_store_pinned(&self) -> u32 {
        self.store.as_ref().map_or(0, |store| store.pins.num_blocks())
    }

    /// What each tenant has of the store; nothing without one.
    pub fn store_usages(&self) -> Vec<StoreUsage> {
        let Some(store) = &self.store else { return Vec::new() };
        let usages = store.num_slots_by_tenant().map(|(tenant, num_slots)| {
            let num_pinned = store.pins.by_tenant.get(tenant.unwrap_or_default()).copied().unwrap_or(0);
            StoreUsage { tenant: tenant.map(Into::into), num_slots, num_pinned }
        });
        usages.collect()
    }
}
