//! Blocks, their states, and counted handles on them.
//!
//! A handle frees by being dropped. It cannot reach into the pool (that would need a lock), so it counts down in a
//! shared array and, when it was the last, puts its block on a list that the pool takes over at its next call:
//!
//! ```text
//! holds          [ 2 | 0 | 1 | 0 ]      handles per block
//! next_released  [ . | 3 | . | - ]      released_head = 1: blocks 1 and 3 wait for `BlockPool::settle`
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use trunkline_contract::BlockId;

/// What a block holds. `Reserved → Filling → Computed`; only computed blocks are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Nothing, and nobody holds it.
    Free,
    /// Nothing yet; a sequence holds it.
    Reserved,
    /// A step that writes it is in flight or was.
    Filling,
    /// Everything that is said to be in it was acknowledged.
    Computed,
}

/// End of the list of released blocks.
const NIL: u32 = u32::MAX;

/// The part of a pool that its handles reach.
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

    /// Handles on a block now.
    pub(crate) fn num_holds(&self, id: BlockId) -> u32 {
        self.holds[id.index()].load(Ordering::Acquire)
    }

    /// True if no block waits to be settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.released_head.load(Ordering::Acquire) == NIL
    }

    /// Takes the list of released blocks; each is in it once.
    pub(crate) fn take_released(&self) -> ReleasedBlocks<'_> {
        ReleasedBlocks { counts: self, next: self.released_head.swap(NIL, Ordering::AcqRel) }
    }

    /// Looks at the list without taking it.
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

/// Blocks whose last handle was dropped, newest first.
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

/// One counted handle on a block; a held block is neither evicted nor given to another. Dropping it releases it, O(1).
///
/// Cannot be cloned; [`BlockHold::share`] says what it does.
#[derive(Debug)]
pub struct BlockHold {
    id: BlockId,
    counts: Arc<HoldCounts>,
}

impl BlockHold {
    /// Counts one handle more. Only the pool calls it, and settles before: a block is never on the released list and
    /// held again.
    pub(crate) fn new(id: BlockId, counts: &Arc<HoldCounts>) -> Self {
        counts.holds[id.index()].fetch_add(1, Ordering::AcqRel);
        Self { id, counts: Arc::clone(counts) }
    }

    /// The block.
    pub fn id(&self) -> BlockId {
        self.id
    }

    /// A second handle on the same block.
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
