use trunkline_contract::{BlockKey, SlotId};

use super::tenants::StoreTenantIdx;

/// A block that the store had when the server started, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub slot: SlotId,
    pub key: BlockKey,
    /// The block before it; absent if it is the first of its path.
    pub parent: Option<BlockKey>,
    /// The number of blocks before it.
    pub depth: u32,
    /// The number of the write. Later writes have higher numbers.
    pub sequence: u64,
}

/// A block that a lookup found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredHit {
    pub slot: SlotId,
    /// The key that the slot's record must have.
    pub key: BlockKey,
}

/// A stored block that is offered to the object tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The slot that has the block. The block stays there until [`super::StoreIndex::end_read`].
    pub slot: SlotId,
    pub key: BlockKey,
    /// True if the block was just stored. An older block may be in the object tier already.
    pub is_new: bool,
}

/// The slots of the store by state, and what was done with their blocks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Slots with a block that can be found.
    pub stored: u32,
    pub total: u32,
    pub evicted: u64,
    /// Blocks that wait to be offered to the object tier.
    pub offered: u32,
    /// Blocks not offered so far because too many waited.
    pub unoffered: u64,
}

#[derive(Debug, Default)]
pub(super) enum SlotState {
    #[default]
    Free,
    /// The block is being written. [`super::StoreIndex::name`] tells its key.
    Writing {
        is_named: bool,
    },
    /// The block is being written, but is not wanted any more.
    Abandoned,
    /// The write is over, or has failed, and the key is not known yet.
    Unnamed {
        is_written: bool,
    },
    Stored,
    /// The block was damaged and removed from the index, but reads of it are in flight.
    Broken,
    /// The block was removed on request, but its write or reads of it are in flight.
    Leaving,
    /// The block was removed on request, and the shard has not emptied the slot yet.
    Discarding,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    pub(super) key: BlockKey,
    pub(super) parent: Option<BlockKey>,
    /// The number of named blocks that continue this one.
    pub(super) num_children: u32,
    pub(super) num_reads: u32,
    pub(super) last_used: u64,
    /// True if the block was offered to the object tier or came from there.
    pub(super) is_offered: bool,
    /// Meaningless while the slot is free.
    pub(super) tenant: StoreTenantIdx,
}
