//! The index of the store: which blocks are on the disk, by key and without their tokens.
//!
//! ```text
//! reserve ──▶ Writing ──end_write──▶ Stored ──▶ evicted, or found damaged
//!                │  `name` tells the block's key, before or after the write ends
//!                └──▶ Abandoned: the block is not wanted any more, but the write is still in flight
//! Writing, Stored ──remove──▶ Leaving ──transfers end──▶ Discarding ──end_discard──▶ Free
//! ```
//!
//! The slot of a removed block is given to nobody before the shard has emptied it. The object tier writes its blocks
//! without the shard's knowledge, so the shard could erase one of them.
//!
//! A block is found only if all blocks before it are stored, because `find` follows a path from its beginning. Only
//! blocks that no other one continues are evicted, so paths lose their ends and not their middles. The victim is the
//! least recently used one of the tenant that exceeds its share of the slots the most. The tenant of a block found at
//! the start is known once the tenant asks for it. Until then, these blocks count as one tenant with the weights of all
//! tenants that have not asked yet.

mod pins;
mod progress;
mod slot;
mod tenants;
mod uploads;

use std::collections::BTreeMap;

use trunkline_contract::{BlockKey, KEY_BYTES, SlotId};

pub use self::pins::{StorePins, StoreUsage};
pub(crate) use self::progress::StoreProgress;
pub use self::slot::{Offer, StoreCounts, StoredBlock, StoredHit};
use self::slot::{Slot, SlotState};
use self::tenants::{StoreTenantIdx, StoreTenants};
use self::uploads::UploadQueue;
use crate::events::{EventLog, KvEvent, Owner, StoredEvent, Tier};
use crate::salt::Salt;
use crate::tenants::TenantShare;

/// The index of the store. Every call costs O(log slots) or less for each block.
#[derive(Debug, Default)]
pub struct StoreIndex {
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    /// The named blocks, stored or being written.
    by_key: BTreeMap<BlockKey, SlotId>,
    tenants: StoreTenants,
    clock: u64,
    num_stored: u32,
    num_evicted: u64,
    /// Slots for the shard to empty.
    discards: Vec<SlotId>,
    uploads: UploadQueue,
    events: EventLog,
    pins: StorePins,
    is_in_memory: bool,
}

impl StoreIndex {
    /// Makes an index over `num_slots` slots that have `blocks`.
    ///
    /// Blocks that cannot be found, because a block before them is missing, are discarded.
    pub fn new(num_slots: u32, mut blocks: Vec<StoredBlock>) -> Self {
        let mut index = Self::default();
        index.slots.resize_with(num_slots as usize, Slot::default);
        blocks.retain(|block| block.slot.0 < num_slots);
        blocks.sort_by_key(|block| (block.depth, block.sequence));
        index.clock = blocks.iter().map(|block| block.sequence).max().unwrap_or(0);
        for block in blocks {
            if !matches!(index.slots[block.slot.index()].state, SlotState::Free) {
                continue;
            }
            index.tenants.charge(StoreTenantIdx::default());
            let has_parent = block.parent.is_none_or(|parent| index.by_key.contains_key(&parent));
            if !has_parent || index.by_key.contains_key(&block.key) {
                index.discard(block.slot);
                continue;
            }
            let slot = &mut index.slots[block.slot.index()];
            slot.last_used = block.sequence;
            slot.state = SlotState::Stored;
            index.num_stored += 1;
            index.enter(block.slot, block.key, block.parent);
        }
        for id in (0..num_slots).rev().map(SlotId) {
            if matches!(index.slots[id.index()].state, SlotState::Free) {
                index.free.push(id);
            }
        }
        index
    }

    /// Tells whether the store is in memory and not on disk. Events name the tier.
    pub fn set_in_memory(&mut self, is_in_memory: bool) {
        self.is_in_memory = is_in_memory;
    }

    fn tier(&self) -> Tier {
        if self.is_in_memory { Tier::Host } else { Tier::Disk }
    }

    pub fn counts(&self) -> StoreCounts {
        StoreCounts {
            stored: self.num_stored,
            total: self.slots.len() as u32,
            evicted: self.num_evicted,
            offered: self.uploads.len() as u32,
            unoffered: self.uploads.num_dropped(),
        }
    }

    /// Returns true if the block is stored or being written.
    pub fn has(&self, key: BlockKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Returns true if the block is being written.
    pub fn is_writing(&self, key: BlockKey) -> bool {
        let slot = self.by_key.get(&key);
        slot.is_some_and(|slot| matches!(self.slots[slot.index()].state, SlotState::Writing { .. }))
    }

    /// Returns the stored blocks of `tokens` that follow the block `before`, up to the first one that is not stored.
    pub fn find(&self, before: BlockKey, tokens: &[u32], block_size: usize) -> Vec<StoredHit> {
        let mut key = before;
        let mut found = Vec::new();
        for block in tokens.chunks_exact(block_size) {
            key = key.extend(block);
            let Some(&slot) = self.by_key.get(&key) else { break };
            if !matches!(self.slots[slot.index()].state, SlotState::Stored) {
                break;
            }
            found.push(StoredHit { slot, key });
        }
        found
    }

    /// Sets the weights of all tenants. A tenant that is not named has none. Without any names, all weigh the same.
    pub fn set_shares(&mut self, shares: &[TenantShare]) {
        self.tenants.set_shares(shares);
    }

    /// Returns the number of slots in use by each tenant. Slots without a tenant have no name.
    pub fn num_slots_by_tenant(&self) -> impl Iterator<Item = (Option<&str>, u32)> {
        self.tenants.num_slots()
    }

    /// Returns the owner of a block.
    pub(crate) fn owner_of(&self, key: BlockKey) -> Owner {
        let slot = self.by_key.get(&key);
        slot.map_or(Owner::Unknown, |slot| owner(&self.tenants, self.slots[slot.index()].tenant))
    }

    /// Records that a block of this salt was used now, and so the blocks before it.
    pub fn touch(&mut self, key: BlockKey, salt: &Salt) {
        if let Some(&slot) = self.by_key.get(&key) {
            self.clock += 1;
            let now = self.clock;
            self.set_last_used(slot, now);
            self.set_tenant(slot, salt);
        }
    }

    /// Gives the path up to a slot to the tenant that asks for it. The cost is O(1) for each slot that changes owner.
    fn set_tenant(&mut self, last: SlotId, salt: &Salt) {
        let tenant = self.tenants.of(salt);
        let mut next = Some(last);
        while let Some(id) = next.filter(|id| self.slots[id.index()].tenant != tenant) {
            let Slot { last_used, tenant: before, parent, .. } = self.slots[id.index()];
            self.slots[id.index()].tenant = tenant;
            self.tenants.release(before);
            self.tenants.charge(tenant);
            if self.tenants.candidates(before).remove(&(last_used, id)) {
                self.tenants.candidates(tenant).insert((last_used, id));
            }
            next = parent.and_then(|parent| self.by_key.get(&parent).copied());
        }
    }

    /// Reserves a slot for a block of this salt. [`StoreIndex::end_write`] must follow.
    ///
    /// Evicts a block if no slot is free. Returns none if all slots are in use.
    pub fn reserve(&mut self, salt: &Salt) -> Option<SlotId> {
        let tenant = self.tenants.of(salt);
        // The slot counts before the victim is chosen, so the tenant that asks can lose a block itself.
        self.tenants.charge(tenant);
        let Some(id) = self.free.pop().or_else(|| self.evict()) else {
            self.tenants.release(tenant);
            return None;
        };
        self.slots[id.index()].tenant = tenant;
        self.slots[id.index()].state = SlotState::Writing { is_named: false };
        Some(id)
    }

    /// Sets the key of the block in a reserved slot, during or after its write.
    ///
    /// Returns false if the block is not kept, because the block before it is not stored or the write failed.
    pub fn name(&mut self, id: SlotId, key: BlockKey, parent: Option<BlockKey>) -> bool {
        let has_parent = parent.is_none_or(|parent| self.by_key.contains_key(&parent));
        let is_known = self.by_key.contains_key(&key);
        let has_failed = matches!(self.slots[id.index()].state, SlotState::Unnamed { is_written: false });
        if !has_parent || is_known || has_failed {
            self.abandon(id);
            return is_known;
        }
        let mut is_stored = false;
        match &mut self.slots[id.index()].state {
            SlotState::Writing { is_named } => *is_named = true,
            state @ SlotState::Unnamed { is_written: true } => {
                *state = SlotState::Stored;
                is_stored = true;
            }
            state => panic!("slot {} is reserved when it is named, not {state:?}", id.0),
        }
        self.clock += 1;
        self.slots[id.index()].last_used = self.clock;
        self.enter(id, key, parent);
        if is_stored {
            self.count_stored(id);
            self.offer_path(id);
        }
        true
    }

    /// Gives up a reserved slot whose block will never have a key.
    pub fn abandon(&mut self, id: SlotId) {
        match std::mem::take(&mut self.slots[id.index()].state) {
            SlotState::Writing { is_named: false } => self.slots[id.index()].state = SlotState::Abandoned,
            SlotState::Unnamed { .. } => self.set_free(id),
            state => panic!("slot {} is reserved and has no name, not {state:?}", id.0),
        }
    }

    /// Ends the write of a reserved slot. Returns false if no write was in flight, which is a bug of the shard.
    #[must_use]
    pub fn end_write(&mut self, id: SlotId, is_stored: bool) -> bool {
        let Some(slot) = self.slots.get_mut(id.index()) else { return false };
        match std::mem::take(&mut slot.state) {
            SlotState::Writing { is_named: true } if is_stored => {
                slot.state = SlotState::Stored;
                self.count_stored(id);
                self.update_candidate(id);
                self.offer_path(id);
            }
            SlotState::Writing { is_named: true } => {
                self.leave(id);
                self.set_free(id);
            }
            SlotState::Writing { is_named: false } => {
                slot.state = SlotState::Unnamed { is_written: is_stored };
            }
            SlotState::Abandoned => self.set_free(id),
            SlotState::Leaving if slot.num_reads == 0 => self.discard(id),
            state => {
                slot.state = state;
                return false;
            }
        }
        true
    }

    /// Begins a read of a stored block. The block is not evicted until [`StoreIndex::end_read`].
    pub fn begin_read(&mut self, id: SlotId) {
        self.slots[id.index()].num_reads += 1;
        self.update_candidate(id);
    }

    /// Ends a read. A damaged block is removed from the index.
    pub fn end_read(&mut self, id: SlotId, is_broken: bool) {
        self.slots[id.index()].num_reads -= 1;
        if is_broken && matches!(self.slots[id.index()].state, SlotState::Stored) {
            self.leave(id);
            self.count_removed(id);
            self.slots[id.index()].state = SlotState::Broken;
        }
        let slot = &mut self.slots[id.index()];
        match slot.state {
            SlotState::Broken if slot.num_reads == 0 => {
                slot.state = SlotState::Free;
                self.set_free(id);
            }
            SlotState::Leaving if slot.num_reads == 0 => self.discard(id),
            _ => {}
        }
        self.update_candidate(id);
    }

    /// Counts a block that can be found from now on.
    fn count_stored(&mut self, id: SlotId) {
        self.num_stored += 1;
        let tier = self.tier();
        let Self { events, slots, tenants, .. } = self;
        let &Slot { key, parent, tenant, .. } = &slots[id.index()];
        events.note(|| {
            let (owner, token_ids) = (owner(tenants, tenant), Box::default());
            KvEvent::BlockStored(StoredEvent { key, parent, depth: None, token_ids, owner, tier })
        });
    }

    /// Counts a block that can no longer be found.
    fn count_removed(&mut self, id: SlotId) {
        self.num_stored -= 1;
        let tier = self.tier();
        let Self { events, slots, tenants, .. } = self;
        let &Slot { key, tenant, .. } = &slots[id.index()];
        events.note(|| KvEvent::BlockRemoved { key, tier, owner: owner(tenants, tenant) });
    }

    fn set_free(&mut self, id: SlotId) {
        self.tenants.release(self.slots[id.index()].tenant);
        self.free.push(id);
    }

    /// Removes a block that is stored or being written. Its slot is in [`StoreIndex::take_discards`] once no transfer
    /// uses it.
    pub fn remove(&mut self, key: BlockKey) {
        let Some(&id) = self.by_key.get(&key) else { return };
        self.leave(id);
        let slot = &mut self.slots[id.index()];
        let is_stored = matches!(slot.state, SlotState::Stored);
        let is_in_transfer = !is_stored || slot.num_reads > 0;
        slot.state = SlotState::Leaving;
        if is_stored {
            self.count_removed(id);
        }
        if !is_in_transfer {
            self.discard(id);
        }
    }

    fn discard(&mut self, id: SlotId) {
        self.slots[id.index()].state = SlotState::Discarding;
        self.discards.push(id);
    }

    /// Returns the slots of removed blocks since the last call. The shard must empty them.
    pub fn take_discards(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.discards)
    }

    /// Frees a slot of [`StoreIndex::take_discards`] that the shard has emptied.
    pub fn end_discard(&mut self, id: SlotId) {
        let state = std::mem::take(&mut self.slots[id.index()].state);
        assert!(
            matches!(state, SlotState::Discarding),
            "slot {} is emptied when it is freed, not {state:?}",
            id.0
        );
        self.set_free(id);
    }

    fn evict(&mut self) -> Option<SlotId> {
        let (last_used, id) = self.tenants.victim()?;
        let parent = self.slots[id.index()].parent;
        self.leave(id);
        self.slots[id.index()].state = SlotState::Free;
        self.tenants.release(self.slots[id.index()].tenant);
        self.count_removed(id);
        self.num_evicted += 1;
        // Its users also used the block before it.
        if let Some(parent) = parent.and_then(|parent| self.by_key.get(&parent).copied())
            && self.slots[parent.index()].last_used < last_used
        {
            self.set_last_used(parent, last_used);
        }
        Some(id)
    }

    fn enter(&mut self, id: SlotId, key: BlockKey, parent: Option<BlockKey>) {
        let slot = &mut self.slots[id.index()];
        (slot.key, slot.parent, slot.num_children, slot.is_offered) = (key, parent, 0, false);
        self.by_key.insert(key, id);
        if let Some(parent) = parent.and_then(|parent| self.by_key.get(&parent).copied()) {
            self.slots[parent.index()].num_children += 1;
            self.update_candidate(parent);
        }
        self.update_candidate(id);
    }

    /// Removes a named block from the index. The blocks that continue it cannot be found until it is stored again.
    fn leave(&mut self, id: SlotId) {
        let Slot { key, parent, last_used, tenant, .. } = self.slots[id.index()];
        self.tenants.candidates(tenant).remove(&(last_used, id));
        self.by_key.remove(&key);
        if let Some(parent) = parent.and_then(|parent| self.by_key.get(&parent).copied()) {
            // A parent that was stored again after its children counts only later ones.
            let slot = &mut self.slots[parent.index()];
            slot.num_children = slot.num_children.saturating_sub(1);
            self.update_candidate(parent);
        }
    }

    fn set_last_used(&mut self, id: SlotId, time: u64) {
        let Slot { last_used: before, tenant, .. } = self.slots[id.index()];
        self.slots[id.index()].last_used = time;
        let candidates = self.tenants.candidates(tenant);
        if candidates.remove(&(before, id)) {
            candidates.insert((time, id));
        }
    }

    fn may_evict(&self, id: SlotId) -> bool {
        let slot = &self.slots[id.index()];
        let is_unused = slot.num_children == 0 && slot.num_reads == 0;
        matches!(slot.state, SlotState::Stored) && is_unused && !self.pins.has(slot.key)
    }

    /// Makes a slot a candidate for eviction if it may be evicted, and removes it from the candidates otherwise.
    fn update_candidate(&mut self, id: SlotId) {
        let may_evict = self.may_evict(id);
        let slot = &self.slots[id.index()];
        let (candidates, entry) = (self.tenants.candidates(slot.tenant), (slot.last_used, id));
        if may_evict {
            candidates.insert(entry);
        } else {
            candidates.remove(&entry);
        }
    }

    pub(crate) fn record_events(&mut self, is_on: bool) {
        self.events.set_on(is_on);
    }

    pub(crate) fn take_events(&mut self) -> (Vec<KvEvent>, bool) {
        self.events.take()
    }

    /// Recounts everything in O(slots). Panics if anything is wrong.
    pub fn check_invariants(&self) {
        let mut is_free = vec![false; self.slots.len()];
        for id in &self.free {
            assert!(!std::mem::replace(&mut is_free[id.index()], true), "slot {} is free once", id.0);
        }
        let (mut num_stored, mut num_named) = (0, 0);
        for (index, slot) in self.slots.iter().enumerate() {
            let id = SlotId(index as u32);
            assert_eq!(is_free[index], matches!(slot.state, SlotState::Free), "slot {index} is free or not");
            let is_named = matches!(slot.state, SlotState::Stored | SlotState::Writing { is_named: true });
            num_named += usize::from(is_named);
            if is_named {
                assert_eq!(self.by_key.get(&slot.key), Some(&id), "a named block is found by its key");
            }
            num_stored += u32::from(matches!(slot.state, SlotState::Stored));
            let is_candidate = self.tenants.is_candidate(slot.tenant, (slot.last_used, id));
            assert_eq!(self.may_evict(id), is_candidate, "slot {index} is a candidate for eviction or not");
        }
        let used = self.slots.iter().zip(&is_free).filter(|(_, is_free)| !**is_free);
        self.tenants.check_invariants(used.map(|(slot, _)| slot.tenant));
        assert_eq!(num_stored, self.num_stored, "stored blocks");
        assert_eq!(num_named, self.by_key.len(), "named blocks");
        assert!(self.tenants.num_candidates() <= num_stored as usize, "only stored blocks are evicted");
        self.uploads.check_invariants();
    }

    /// Returns the approximate memory that a slot in use takes in the index, in bytes.
    pub const fn bytes_per_slot() -> usize {
        // The nodes of a B-tree are two thirds full on average.
        size_of::<Slot>() + (KEY_BYTES + size_of::<SlotId>() + size_of::<(u64, SlotId)>()) * 3 / 2
    }
}

fn owner(tenants: &StoreTenants, tenant: StoreTenantIdx) -> Owner {
    tenants.name(tenant).map_or(Owner::Unknown, |tenant| Owner::Tenant(tenant.into()))
}
