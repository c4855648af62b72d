//! Blocks that only low-priority sequences have used. They are evicted before all others of their tenant.
//!
//! The policy has these leaves among its candidates too, but it is not asked while there is a low-priority leaf. So a
//! policy need not know about priorities, and a block whose priority rises keeps its position in the policy's order.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_contract::BlockId;

use crate::index::NodeId;

/// The priority of a sequence's blocks when blocks are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePriority {
    /// The eviction policy decides.
    #[default]
    Normal,
    /// The blocks are evicted before all others of their tenant and are never stored.
    Low,
}

#[derive(Debug)]
pub(crate) struct LowPriorityBlocks {
    is_low: Vec<bool>,
}

impl LowPriorityBlocks {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { is_low: vec![false; num_blocks as usize] }
    }

    pub(crate) fn has(&self, block: BlockId) -> bool {
        self.is_low[block.index()]
    }

    pub(crate) fn set(&mut self, block: BlockId, is_low: bool) {
        self.is_low[block.index()] = is_low;
    }

    /// Records that a sequence computed a block of the index. A block that was there before never loses priority.
    pub(crate) fn record_computed(&mut self, block: BlockId, priority: CachePriority, is_new: bool) {
        let is_low = priority == CachePriority::Low && (is_new || self.has(block));
        self.set(block, is_low);
    }
}

/// The low-priority leaves of one tenant, in the order in which they became candidates. A call costs O(log leaves).
#[derive(Debug, Default)]
pub struct LowPriorityLeaves {
    clock: u64,
    added_at: BTreeMap<NodeId, u64>,
    order: BTreeSet<(u64, NodeId)>,
}

impl LowPriorityLeaves {
    /// Adds or removes a leaf. One that is there already keeps its position.
    pub fn set(&mut self, node: NodeId, is_low: bool) {
        if !is_low {
            if let Some(time) = self.added_at.remove(&node) {
                self.order.remove(&(time, node));
            }
            return;
        }
        let (clock, order) = (&mut self.clock, &mut self.order);
        self.added_at.entry(node).or_insert_with(|| {
            *clock += 1;
            order.insert((*clock, node));
            *clock
        });
    }

    /// Returns true if the leaf is there.
    pub fn has(&self, node: NodeId) -> bool {
        self.added_at.contains_key(&node)
    }

    /// Returns the leaf that came first, which is evicted first.
    pub fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, node)| node)
    }
}
