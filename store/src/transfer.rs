//! What is asked of [`crate::Transfers`], and what became of it.

use std::time::Duration;

use trunkline_kv::BlockKey;

/// A block to write.
#[derive(Debug)]
pub struct StoreBlock {
    pub slot: u32,
    pub key: BlockKey,
    /// The key before it.
    pub parent: BlockKey,
    /// The key before the first block of its path.
    pub root: BlockKey,
    /// Its index in its path.
    pub depth: u32,
    /// Its tokens.
    pub token_ids: Box<[u32]>,
}

/// A run of a block's bytes, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the block.
    pub offset: usize,
    pub num_bytes: usize,
    /// So many bytes.
    pub destination: *mut u8,
}

/// A block to read.
#[derive(Clone, Debug)]
pub struct RestoreBlock {
    pub slot: u32,
    /// What must be there.
    pub key: BlockKey,
    /// Which of its bytes go where. All of them are read and checked.
    pub pieces: Vec<Piece>,
}

/// What became of a block that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOutcome {
    pub slot: u32,
    /// False: the slot holds nothing.
    pub is_stored: bool,
}

/// What became of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    pub restore_id: u64,
    /// So many blocks, from the first on, are what they should be.
    pub num_blocks: u32,
    /// From the first read to the end of the last.
    pub time: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// In the order of the calls.
    pub stores: Vec<StoreOutcome>,
    /// In the order of their ends.
    pub restores: Vec<RestoreOutcome>,
}

impl Outcomes {
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.restores.is_empty()
    }
}

/// A transfer that may not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store has no such slot.
    #[error("slot {slot} does not exist, the store has {num_slots}")]
    UnknownSlot { slot: u32, num_slots: u32 },
    /// Another transfer is not done with it.
    #[error("slot {slot} is in another transfer")]
    InTransfer { slot: u32 },
}

/// Why a transfer was not even begun.
#[derive(Debug, thiserror::Error)]
#[error("{most} transfers wait for the disk")]
pub(crate) struct QueueFull {
    pub(crate) most: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("a block was not stored as its step failed")]
pub(crate) struct NotComputed;
