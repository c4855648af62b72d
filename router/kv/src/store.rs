//! Which blocks lie in the store below the device: an index by key, without their tokens.
//!
//! ```text
//! reserve ──▶ Writing ──written──▶ Stored ──▶ evicted for another, or found broken
//!                │  the block's tokens, and so its key, may be known before or after it is written: `name`
//!                └──▶ Abandoned: nobody wants it any more, the transfer is still under way
//! ```
//!
//! A block is found only if all before it are: `find` follows a path from its beginning. What goes first is the least
//! recently used block that no other continues, so that paths lose their ends, not their middles: of the tenant that is
//! furthest beyond its share of the slots. Whose blocks are that were found at the start is known when their tenant
//! asks for them; until then they are together, with the weight of those who have not come yet.

use std::collections::{BTreeMap, VecDeque};

use trunkline_contract::{BlockKey, KEY_BYTES, SlotId};

use crate::events::{EventLog, KvEvent, Owner, StoredEvent, Tier};
use crate::quota::TenantShare;
use crate::salt::Salt;
use crate::store_groups::{GroupIdx, StoreGroups};
use crate::store_pins::StorePins;

/// A block that the store had when the server started, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// Where it lies.
    pub slot: SlotId,
    /// What it is.
    pub key: BlockKey,
    /// The block before it; none if it is the first of its path.
    pub parent: Option<BlockKey>,
    /// Blocks before it.
    pub depth: u32,
    /// Grows with each block that is written: the higher, the more recent.
    pub sequence: u64,
}

/// A block that a lookup found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredHit {
    /// Where it lies.
    pub slot: SlotId,
    /// What must be there.
    pub key: BlockKey,
}

/// A stored block that is offered to the tier below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Where it lies; it stays there until [`StoreIndex::end_read`].
    pub slot: SlotId,
    /// What it is.
    pub key: BlockKey,
    /// It was stored just now. False: long ago, so that the tier below may have it.
    pub is_new: bool,
}

/// Slots and how they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Slots that hold a block which can be found.
    pub stored: u32,
    /// All slots.
    pub total: u32,
    /// Blocks dropped to make room, so far.
    pub evicted: u64,
    /// Blocks that wait to be offered to the tier below.
    pub offered: u32,
    /// Blocks not offered as too many waited, so far.
    pub unoffered: u64,
}

#[derive(Debug, Default)]
pub(crate) enum SlotState {
    #[default]
    Free,
    /// The transfer is under way; the name comes with `name`.
    Writing { is_named: bool },
    /// Being written for nobody.
    Abandoned,
    /// The transfer is over and the tokens are not known yet; false: it failed.
    Unnamed { is_written: bool },
    /// Can be found.
    Stored,
    /// Found broken, and still read by somebody.
    Broken,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    pub(crate) key: BlockKey,
    pub(crate) parent: Option<BlockKey>,
    /// Blocks in `by_key` that continue it.
    num_children: u32,
    num_reads: u32,
    last_used: u64,
    /// The tier below was told of it, or it came from there.
    pub(crate) is_offered: bool,
    /// Whose it is; meaningless while it is free.
    group: GroupIdx,
}

/// The index of the store. Every call costs O(log slots) or less a block.
#[derive(Debug, Default)]
pub struct StoreIndex {
    pub(crate) slots: Vec<Slot>,
    free: Vec<SlotId>,
    /// Named blocks, being written or stored.
    pub(crate) by_key: BTreeMap<BlockKey, SlotId>,
    /// Whose slots they are, and which may be evicted.
    pub(crate) groups: StoreGroups,
    clock: u64,
    num_stored: u32,
    num_evicted: u64,
    /// For the tier below, in the order of their paths.
    pub(crate) offers: VecDeque<(BlockKey, bool)>,
    pub(crate) max_offers: usize,
    pub(crate) num_unoffered: u64,
    pub(crate) events: EventLog,
    #[doc(hidden)]
    pub pins: StorePins,
    is_in_memory: bool,
}

impl StoreIndex {
    /// An index over `num_slots` slots that hold `blocks`. Also returns the slots whose block cannot be found: the
    /// beginning of its path is not there.
    pub fn new(num_slots: u32, mut blocks: Vec<StoredBlock>) -> (Self, Vec<SlotId>) {
        let mut index = Self::default();
        index.slots.resize_with(num_slots as usize, Slot::default);
        blocks.retain(|block| block.slot.0 < num_slots);
        blocks.sort_by_key(|block| (block.depth, block.sequence));
        index.clock = blocks.iter().map(|block| block.sequence).max().unwrap_or(0);
        let mut lost = Vec::new();
        for block in blocks {
            let has_parent = block.parent.is_none_or(|parent| index.by_key.contains_key(&parent));
            let is_free = matches!(index.slots[block.slot.index()].state, SlotState::Free);
            if !has_parent || !is_free || index.by_key.contains_key(&block.key) {
                lost.push(block.slot);
                continue;
            }
            index.groups.take(GroupIdx::default());
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
        (index, lost)
    }

    /// Says that its blocks lie in memory, not on disk: its events name that tier.
    pub fn set_in_memory(&mut self, is_in_memory: bool) {
        self.is_in_memory = is_in_memory;
    }

    fn tier(&self) -> Tier {
        if self.is_in_memory { Tier::Host } else { Tier::Disk }
    }

    /// How full it is.
    pub fn counts(&self) -> StoreCounts {
        StoreCounts {
            stored: self.num_stored,
            total: self.slots.len() as u32,
            evicted: self.num_evicted,
            offered: self.offers.len() as u32,
            unoffered: self.num_unoffered,
        }
    }

    /// True if the block is in the store or on its way there.
    pub fn has(&self, key: BlockKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// The stored blocks of `tokens`, whole ones, that follow the block `before`; up to the first that is not there.
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

    /// Sets the tenants' weights; see [`crate::KvCache::set_shares`].
    pub fn set_shares(&mut self, shares: &[TenantShare]) {
        self.groups.set_shares(shares);
    }

    /// Slots in use by tenant, those without one under no name.
    pub fn num_slots_by_tenant(&self) -> impl Iterator<Item = (Option<&str>, u32)> {
        self.groups.num_slots_by_tenant()
    }

    /// Whose the block is, if it is there and that is known.
    pub(crate) fn owner_of(&self, key: BlockKey) -> Owner {
        let slot = self.by_key.get(&key);
        slot.map_or(Owner::Unknown, |slot| owner(&self.groups, self.slots[slot.index()].group))
    }

    /// The block, which is of this salt, was used now, and so were those before it.
    pub fn touch(&mut self, key: BlockKey, salt: &Salt) {
        if let Some(&slot) = self.by_key.get(&key) {
            self.clock += 1;
            let now = self.clock;
            self.set_last_used(slot, now);
            self.claim(slot, salt);
        }
    }

    /// The path up to a slot belongs to a tenant: now that it asks for it, that is known. O(1) for each slot, once.
    fn claim(&mut self, last: SlotId, salt: &Salt) {
        let group = self.groups.of(salt);
        let mut next = Some(last);
        while let Some(id) = next.filter(|id| self.slots[id.index()].group != group) {
            let Slot { last_used, group: before, parent, .. } = self.slots[id.index()];
            self.slots[id.index()].group = group;
            self.groups.give_back(before);
            self.groups.take(group);
            if self.groups.leaves(before).remove(&(last_used, id)) {
                self.groups.leaves(group).insert((last_used, id));
            }
            next = parent.and_then(|parent| self.by_key.get(&parent).copied());
        }
    }

    /// A slot for a block of this salt that will be written now: [`StoreIndex::written`] says when it is. None if all
    /// are in use.
    pub fn reserve(&mut self, salt: &Salt) -> Option<SlotId> {
        let group = self.groups.of(salt);
        // Counted as its owner's before another goes for it: who asks is not spared.
        self.groups.take(group);
        let Some(id) = self.free.pop().or_else(|| self.evict()) else {
            self.groups.give_back(group);
            return None;
        };
        self.slots[id.index()].group = group;
        self.slots[id.index()].state = SlotState::Writing { is_named: false };
        Some(id)
    }

    /// Says what a reserved slot holds or will hold. False: it is not kept, because what comes before it is not there.
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
            self.offer(id);
        }
        true
    }

    /// The tokens of a reserved slot's block will never be known.
    pub fn abandon(&mut self, id: SlotId) {
        match std::mem::take(&mut self.slots[id.index()].state) {
            SlotState::Writing { is_named: false } => self.slots[id.index()].state = SlotState::Abandoned,
            SlotState::Unnamed { .. } => self.set_free(id),
            state => panic!("slot {} is reserved and has no name, not {state:?}", id.0),
        }
    }

    /// The transfer of a reserved slot is over. False if nobody waited for one: a bug of the shard.
    #[must_use]
    pub fn written(&mut self, id: SlotId, is_stored: bool) -> bool {
        let Some(slot) = self.slots.get_mut(id.index()) else { return false };
        match std::mem::take(&mut slot.state) {
            SlotState::Writing { is_named: true } if is_stored => {
                slot.state = SlotState::Stored;
                self.count_stored(id);
                self.refresh(id);
                self.offer(id);
            }
            SlotState::Writing { is_named: true } => {
                self.leave(id);
                self.set_free(id);
            }
            SlotState::Writing { is_named: false } => {
                slot.state = SlotState::Unnamed { is_written: is_stored };
            }
            SlotState::Abandoned => self.set_free(id),
            state => {
                slot.state = state;
                return false;
            }
        }
        true
    }

    /// A read of a stored block begins: it stays where it is until [`StoreIndex::end_read`].
    pub fn begin_read(&mut self, id: SlotId) {
        self.slots[id.index()].num_reads += 1;
        self.refresh(id);
    }

    /// A read is over; what is broken is not found again.
    pub fn end_read(&mut self, id: SlotId, is_broken: bool) {
        self.slots[id.index()].num_reads -= 1;
        if is_broken && matches!(self.slots[id.index()].state, SlotState::Stored) {
            self.leave(id);
            self.count_gone(id);
            self.slots[id.index()].state = SlotState::Broken;
        }
        let slot = &mut self.slots[id.index()];
        if slot.num_reads == 0 && matches!(slot.state, SlotState::Broken) {
            slot.state = SlotState::Free;
            self.set_free(id);
        }
        self.refresh(id);
    }

    /// The block of a slot can be found from now on.
    fn count_stored(&mut self, id: SlotId) {
        self.num_stored += 1;
        let tier = self.tier();
        let Self { events, slots, groups, .. } = self;
        let &Slot { key, parent, group, .. } = &slots[id.index()];
        events.note(|| {
            let (owner, token_ids) = (owner(groups, group), Box::default());
            KvEvent::BlockStored(StoredEvent { key, parent, depth: None, token_ids, owner, tier })
        });
    }

    /// The block of a slot can be found no more.
    fn count_gone(&mut self, id: SlotId) {
        self.num_stored -= 1;
        let tier = self.tier();
        let Self { events, slots, groups, .. } = self;
        let &Slot { key, group, .. } = &slots[id.index()];
        events.note(|| KvEvent::BlockRemoved { key, tier, owner: owner(groups, group) });
    }

    fn set_free(&mut self, id: SlotId) {
        self.groups.give_back(self.slots[id.index()].group);
        self.free.push(id);
    }

    /// Forgets a stored block that nobody reads; its slot is to be emptied, if it has one.
    pub fn remove(&mut self, key: BlockKey) -> Option<SlotId> {
        let &id = self.by_key.get(&key)?;
        let slot = &self.slots[id.index()];
        if !matches!(slot.state, SlotState::Stored) || slot.num_reads > 0 {
            return None;
        }
        self.leave(id);
        self.slots[id.index()].state = SlotState::Free;
        self.count_gone(id);
        self.set_free(id);
        Some(id)
    }

    fn evict(&mut self) -> Option<SlotId> {
        let (last_used, id) = self.groups.victim()?;
        let parent = self.slots[id.index()].parent;
        self.leave(id);
        self.slots[id.index()].state = SlotState::Free;
        self.groups.give_back(self.slots[id.index()].group);
        self.count_gone(id);
        self.num_evicted += 1;
        // Whoever used it used what is before it.
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
            self.refresh(parent);
        }
        self.refresh(id);
    }

    /// Takes a named block out of the index. What continues it can no longer be found, until it comes back.
    fn leave(&mut self, id: SlotId) {
        let Slot { key, parent, last_used, group, .. } = self.slots[id.index()];
        self.groups.leaves(group).remove(&(last_used, id));
        self.by_key.remove(&key);
        if let Some(parent) = parent.and_then(|parent| self.by_key.get(&parent).copied()) {
            // A parent that came back after its children counts only those that came later.
            let slot = &mut self.slots[parent.index()];
            slot.num_children = slot.num_children.saturating_sub(1);
            self.refresh(parent);
        }
    }

    fn set_last_used(&mut self, id: SlotId, time: u64) {
        let Slot { last_used: before, group, .. } = self.slots[id.index()];
        self.slots[id.index()].last_used = time;
        let leaves = self.groups.leaves(group);
        if leaves.remove(&(before, id)) {
            leaves.insert((time, id));
        }
    }

    fn may_go(&self, id: SlotId) -> bool {
        let slot = &self.slots[id.index()];
        let is_unused = slot.num_children == 0 && slot.num_reads == 0;
        matches!(slot.state, SlotState::Stored) && is_unused && !self.pins.has(slot.key)
    }

    /// Offers a slot for eviction if it may go, else withdraws it.
    pub(crate) fn refresh(&mut self, id: SlotId) {
        let may_go = self.may_go(id);
        let slot = &self.slots[id.index()];
        let (leaves, place) = (self.groups.leaves(slot.group), (slot.last_used, id));
        if may_go {
            leaves.insert(place);
        } else {
            leaves.remove(&place);
        }
    }

    /// Recounts everything, O(slots). Panics where something is wrong.
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
            let is_offered = self.groups.may_go(slot.group, (slot.last_used, id));
            assert_eq!(self.may_go(id), is_offered, "slot {index} may go or not");
        }
        let used = self.slots.iter().zip(&is_free).filter(|(_, is_free)| !**is_free);
        self.groups.check_invariants(used.map(|(slot, _)| slot.group));
        assert_eq!(num_stored, self.num_stored, "stored blocks");
        assert_eq!(num_named, self.by_key.len(), "named blocks");
        assert!(self.groups.num_leaves() <= num_stored as usize, "only stored blocks go");
        assert!(self.offers.len() <= self.max_offers, "offers are bounded");
    }

    /// Bytes of memory of one slot in use, about: for capacity planning.
    pub const fn bytes_per_slot() -> usize {
        // Nodes of a B-tree are two thirds full.
        size_of::<Slot>() + (KEY_BYTES + size_of::<SlotId>() + size_of::<(u64, SlotId)>()) * 3 / 2
    }
}

fn owner(groups: &StoreGroups, group: GroupIdx) -> Owner {
    groups.tenant(group).map_or(Owner::Unknown, |tenant| Owner::Tenant(tenant.into()))
}
