//! Blocks that go before all others: what sequences of [`Worth::Low`] computed and nobody else asked for since.
//!
//! The policy knows these leaves too, as any others: it is not asked while there is one of them. So a policy need not
//! know of them, and a block that is worth more from now on needs no new place.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_contract::BlockId;

use crate::radix::NodeId;
use crate::table::Worth;

/// Which blocks of the index are worth nothing. One byte a block.
#[derive(Debug)]
pub struct LowBlocks {
    is_low: Vec<bool>,
}

impl LowBlocks {
    pub fn new(num_blocks: u32) -> Self {
        Self { is_low: vec![false; num_blocks as usize] }
    }

    pub fn is_low(&self, block: BlockId) -> bool {
        self.is_low[block.index()]
    }

    pub fn set(&mut self, block: BlockId, is_low: bool) {
        self.is_low[block.index()] = is_low;
    }

    /// A sequence computed what stands in this block of the index: it `is_new` there, or was there before.
    pub fn entered(&mut self, block: BlockId, worth: Worth, is_new: bool) {
        let is_low = worth == Worth::Low && (is_new || self.is_low(block));
        self.set(block, is_low);
    }
}

/// Leaves of one tenant whose last block is worth nothing, in the order in which they could go. O(log leaves) a call.
#[derive(Debug, Default)]
pub struct LowLeaves {
    clock: u64,
    places: BTreeMap<NodeId, u64>,
    order: BTreeSet<(u64, NodeId)>,
}

impl LowLeaves {
    /// The leaf is, or is not, among them from now on.
    pub fn set(&mut self, node: NodeId, is_low: bool) {
        if !is_low {
            if let Some(place) = self.places.remove(&node) {
                self.order.remove(&(place, node));
            }
            return;
        }
        let (clock, order) = (&mut self.clock, &mut self.order);
        self.places.entry(node).or_insert_with(|| {
            *clock += 1;
            order.insert((*clock, node));
            *clock
        });
    }

    pub fn has(&self, node: NodeId) -> bool {
        self.places.contains_key(&node)
    }

    /// What goes next.
    pub fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, node)| node)
    }
}
