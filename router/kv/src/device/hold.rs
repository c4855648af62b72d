//! The states of blocks, and counted holds on them.
//!
//! Dropping a hold releases it. A hold cannot change the pool, which would need a lock. It decrements a counter in a
//! shared array instead, and the last one adds its block to a list that the pool takes over at its next call:
//!
//! ```text
//! holds          [ 2 | 0 | 1 | 0 ]      holds of each block
//! next_released  [ . | 3 | . | - ]      released_head = 1: blocks 1 and 3 wait for `BlockPool::settle`
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use trunkline_contract::BlockId;

/// The state of a block, which goes `Reserved → Filling → Computed`. Only computed blocks are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The block is empty and nobody holds it.
    Free,
    /// The block is empty and a sequence holds it.
    Reserved,
    /// A step that writes the block was planned.
    Filling,
    /// The steps that wrote the block were acknowledged.
    Computed,
}

const NIL: u32 = u32::MAX;

/// The part of a pool that its holds share.
#[derive(Debug)]
pub(crate) struct HoldCounts {
    holds: Box<[AtomicU32]>,
    next_released: Box<[AtomicU32]>,
    released_head: AtomicU32,
}

impl HoldCounts {
    pub(crate) fn new(num_blocks: u32) -> Self {
        assert!(num_blocks < NIL, "a pool holds fewer than 2^32 - 1 blocks");
        let zeros = || (0..num_blocks).map(|_| AtomicU32::new(0)).collect();
        Self { holds: zeros(), next_released: zeros(), released_head: AtomicU32::new(NIL) }
    }

    pub(crate) fn num_holds(&self, id: BlockId) -> u32 {
        self.holds[id.index()].load(Ordering::Acquire)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.released_head.load(Ordering::Acquire) == NIL
    }

    /// Takes the list of released blocks. Each block is in it once.
    pub(crate) fn take_released(&self) -> ReleasedBlocks<'_> {
        ReleasedBlocks { counts: self, next: self.released_head.swap(NIL, Ordering::AcqRel) }
    }

    pub(crate) fn peek_released(&self) -> ReleasedBlocks<'_> {
        ReleasedBlocks { counts: self, next: self.released_head.load(Ordering::Acquire) }
    }

    fn push_released(&self, id: BlockId) {
        let mut head = self.released_head.load(Ordering::Acquire);
        loop {
            self.next_released[id.index()].store(head, Ordering::Release);
            match self.released_head.compare_exchange_weak(head, id.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }
}

/// The blocks whose last hold was dropped, the latest first.
pub(crate) struct ReleasedBlocks<'a> {
    counts: &'a HoldCounts,
    next: u32,
}

impl Iterator for ReleasedBlocks<'_> {
    type Item = BlockId;

    fn next(&mut self) -> Option<BlockId> {
        if self.next == NIL {
            return None;
        }
        let id = BlockId(self.next);
        self.next = self.counts.next_released[id.index()].load(Ordering::Acquire);
        Some(id)
    }
}

/// One counted hold on a block. A held block is neither evicted nor allocated again. Dropping the hold releases it in
/// O(1).
///
/// It does not implement `Clone`, so that [`BlockHold::share`] makes a second hold visible.
#[derive(Debug)]
pub struct BlockHold {
    id: BlockId,
    counts: Arc<HoldCounts>,
}

impl BlockHold {
    /// Counts one more hold. Only the pool calls this, after it settled, so that no block on the released list is held
    /// again.
    pub(crate) fn new(id: BlockId, counts: &Arc<HoldCounts>) -> Self {
        counts.holds[id.index()].fetch_add(1, Ordering::AcqRel);
        Self { id, counts: Arc::clone(counts) }
    }

    pub fn id(&self) -> BlockId {
        self.id
    }

    pub fn share(&self) -> Self {
        Self::new(self.id, &self.counts)
    }

    pub(crate) fn is_of(&self, counts: &Arc<HoldCounts>) -> bool {
        Arc::ptr_eq(&self.counts, counts)
    }
}

impl Drop for BlockHold {
    fn drop(&mut self) {
        if self.counts.holds[self.id.index()].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.counts.push_released(self.id);
        }
    }
}
