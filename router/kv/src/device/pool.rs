use std::sync::Arc;

use trunkline_contract::BlockId;

use super::hold::{BlockHold, BlockState, HoldCounts};

/// The number of blocks in each state: `free + held + cached = total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    pub free: u32,
    pub held: u32,
    /// Blocks that only the index has.
    pub cached: u32,
    pub total: u32,
}

/// The new state of a block whose last hold was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    Cached,
    Free,
}

/// All blocks of the device. Allocating, holding, releasing and freeing a block cost O(1).
///
/// These invariants hold after [`BlockPool::settle`]:
/// - `free` has the blocks that have no hold and are not in the index;
/// - `num_held` blocks have holds, and `num_cached` blocks are in the index and have none.
#[derive(Debug)]
pub struct BlockPool {
    counts: Arc<HoldCounts>,
    states: Vec<BlockState>,
    indexed: Vec<bool>,
    free: Vec<BlockId>,
    num_held: u32,
    num_cached: u32,
}

impl BlockPool {
    pub fn new(num_blocks: u32) -> Self {
        Self {
            counts: Arc::new(HoldCounts::new(num_blocks)),
            states: vec![BlockState::Free; num_blocks as usize],
            indexed: vec![false; num_blocks as usize],
            free: (0..num_blocks).rev().map(BlockId).collect(),
            num_held: 0,
            num_cached: 0,
        }
    }

    pub fn allocate(&mut self) -> Option<BlockHold> {
        self.assert_settled();
        let id = self.free.pop()?;
        assert_eq!(self.states[id.index()], BlockState::Free, "block {} was free", id.0);
        self.states[id.index()] = BlockState::Reserved;
        self.num_held += 1;
        Some(BlockHold::new(id, &self.counts))
    }

    pub fn hold_indexed(&mut self, id: BlockId) -> BlockHold {
        self.assert_settled();
        assert!(self.indexed[id.index()], "only indexed blocks can be found and held: block {}", id.0);
        if self.counts.num_holds(id) == 0 {
            self.num_cached -= 1;
            self.num_held += 1;
        }
        BlockHold::new(id, &self.counts)
    }

    /// Updates the counts for blocks whose last hold was dropped, and calls `on_released` with each and its new state.
    pub fn settle(&mut self, mut on_released: impl FnMut(BlockId, Released)) {
        // Nearly every call finds nothing to do, and a load costs much less than taking the list.
        if self.is_settled() {
            return;
        }
        let counts = Arc::clone(&self.counts);
        for id in counts.take_released() {
            assert_eq!(counts.num_holds(id), 0, "block {} is released", id.0);
            self.num_held -= 1;
            if self.indexed[id.index()] {
                self.num_cached += 1;
                on_released(id, Released::Cached);
            } else {
                self.free_block(id);
                on_released(id, Released::Free);
            }
        }
    }

    /// Makes a reserved block `Filling`, because a step that writes it was planned. It may be filling already.
    pub fn begin_fill(&mut self, hold: &BlockHold) {
        let state = self.state_mut(hold);
        assert!(
            matches!(state, BlockState::Reserved | BlockState::Filling),
            "a block that is written is reserved or filling, not {state:?}"
        );
        *state = BlockState::Filling;
    }

    /// Makes a filling block `Computed`. The steps that wrote it are acknowledged, and none will write it again.
    pub fn mark_computed(&mut self, hold: &BlockHold) {
        let state = self.state_mut(hold);
        assert_eq!(*state, BlockState::Filling, "a block is computed after it was filling");
        *state = BlockState::Computed;
    }

    /// Marks a block that the caller holds as one of the index.
    pub fn set_indexed(&mut self, hold: &BlockHold) {
        let id = hold.id();
        assert_eq!(
            *self.state_mut(hold),
            BlockState::Computed,
            "only computed blocks are shared: block {}",
            id.0
        );
        assert!(!self.indexed[id.index()], "block {} is in the index once", id.0);
        self.indexed[id.index()] = true;
    }

    /// Marks a block as removed from the index. Returns true if it is free now, and false if it is still held.
    pub fn clear_indexed(&mut self, id: BlockId) -> bool {
        self.assert_settled();
        assert!(self.indexed[id.index()], "block {} is indexed", id.0);
        self.indexed[id.index()] = false;
        if self.counts.num_holds(id) == 0 {
            self.num_cached -= 1;
            self.free_block(id);
            return true;
        }
        false
    }

    pub fn is_held(&self, id: BlockId) -> bool {
        self.counts.num_holds(id) > 0
    }

    pub fn num_holds(&self, id: BlockId) -> u32 {
        self.counts.num_holds(id)
    }

    pub fn is_indexed(&self, id: BlockId) -> bool {
        self.indexed[id.index()]
    }

    pub fn state(&self, id: BlockId) -> BlockState {
        self.states[id.index()]
    }

    /// Counts the blocks by state, with released blocks counted as released. O(1) plus the number not yet settled.
    pub fn counts(&self) -> BlockCounts {
        let mut counts = BlockCounts {
            free: self.free.len() as u32,
            held: self.num_held,
            cached: self.num_cached,
            total: self.states.len() as u32,
        };
        for id in self.counts.peek_released() {
            counts.held -= 1;
            if self.indexed[id.index()] {
                counts.cached += 1;
            } else {
                counts.free += 1;
            }
        }
        counts
    }

    /// Recounts everything in O(num_blocks). Panics if a count or a state is wrong.
    pub fn check_invariants(&self) {
        let counts = self.counts();
        assert_eq!(
            counts.free + counts.held + counts.cached,
            counts.total,
            "free + held + cached = total: {counts:?}"
        );
        let mut is_free = vec![false; self.states.len()];
        for id in &self.free {
            assert!(!is_free[id.index()], "block {} is free once", id.0);
            is_free[id.index()] = true;
        }
        for id in self.counts.peek_released() {
            is_free[id.index()] = !self.indexed[id.index()];
        }
        let (mut held, mut cached) = (0, 0);
        for (index, &state) in self.states.iter().enumerate() {
            let id = BlockId(index as u32);
            let is_held = self.is_held(id);
            held += u32::from(is_held);
            cached += u32::from(!is_held && self.indexed[index]);
            assert_eq!(
                is_free[index],
                !is_held && !self.indexed[index],
                "block {index} is free, held or cached"
            );
            if self.indexed[index] {
                assert_eq!(state, BlockState::Computed, "indexed block {index} is computed");
            }
            if is_held {
                assert_ne!(state, BlockState::Free, "held block {index} has a state");
            }
        }
        assert_eq!((held, cached), (counts.held, counts.cached), "held and cached blocks");
    }

    /// Returns true if no released block waits for [`BlockPool::settle`].
    pub(crate) fn is_settled(&self) -> bool {
        self.counts.is_settled()
    }

    fn free_block(&mut self, id: BlockId) {
        self.states[id.index()] = BlockState::Free;
        self.free.push(id);
    }

    fn state_mut(&mut self, hold: &BlockHold) -> &mut BlockState {
        assert!(hold.is_of(&self.counts), "block {} is of another pool", hold.id().0);
        &mut self.states[hold.id().index()]
    }

    fn assert_settled(&self) {
        assert!(self.is_settled(), "released blocks are settled first");
    }
}
