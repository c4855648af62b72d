//! The requests to [`crate::Transfers`] and their outcomes.

use std::time::Duration;

use trunkline_contract::BlockKey;

#[derive(Debug)]
pub struct StoreBlock {
    pub slot: u32,
    pub key: BlockKey,
    pub parent: BlockKey,
    pub root: BlockKey,
    pub depth: u32,
    pub token_ids: Box<[u32]>,
}

/// A range of a block's bytes and its destination in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of the range in the block, in bytes.
    pub offset: usize,
    pub num_bytes: usize,
    /// Points to `num_bytes` writable bytes.
    pub destination: *mut u8,
}

#[derive(Clone, Debug)]
pub struct RestoreBlock {
    pub slot: u32,
    pub key: BlockKey,
    /// The ranges to copy. The whole block is read and verified whatever they cover.
    pub pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOutcome {
    pub slot: u32,
    /// If false, the slot is empty.
    pub is_stored: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    pub restore_id: u64,
    /// The number of leading blocks that were restored intact.
    pub num_blocks: u32,
    /// The time from the first read to the end of the last.
    pub time: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// In the order of the requests.
    pub stores: Vec<StoreOutcome>,
    /// In the order of completion.
    pub restores: Vec<RestoreOutcome>,
}

impl Outcomes {
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.restores.is_empty()
    }
}

/// An error of requesting a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    #[error("slot {slot} does not exist, the store has {num_slots}")]
    UnknownSlot { slot: u32, num_slots: u32 },
    /// Another transfer of the slot has not finished.
    #[error("slot {slot} is in another transfer")]
    InTransfer { slot: u32 },
}

#[derive(Debug, thiserror::Error)]
#[error("{most} transfers are already waiting for the disk")]
pub(crate) struct QueueFull {
    pub(crate) most: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("a block was not stored as its step failed")]
pub(crate) struct NotComputed;
