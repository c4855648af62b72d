//! Which leaf of the KV index goes first.

use std::collections::BTreeSet;
use std::fmt;

use crate::ghost::{GhostPolicy, GhostStep};
use crate::history::PathHash;
use crate::radix::NodeId;

/// What a policy remembers of one sequence on its way down the tree. Plain data; the cache only carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// When the sequence began: its number among all.
    pub request: u64,
    /// Blocks that its prompt needs.
    pub num_prompt_blocks: u32,
    /// Blocks seen so far.
    pub num_seen_blocks: u32,
    /// Conversations are sampled by this: the low bits of the hash of the path where theirs began.
    pub unit: u8,
    /// The block seen last was its path's end before, or new: what follows belongs to the same conversation.
    pub goes_on: bool,
    /// The known block seen last was not its path's end before, nor one that is asked for all the time: what is new
    /// after it branched off that path.
    pub is_branch: bool,
    /// What it found in the ghosts.
    pub ghosts: GhostTrail,
}

/// What a sequence found in [`crate::ghost`]s, on its way down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GhostTrail {
    /// Where it is in the one that evicts by LRU; none: no block was sampled yet.
    pub in_lru: Option<GhostStep>,
    /// The same of the one that evicts by worth.
    pub in_worth: Option<GhostStep>,
    /// Whether a block was missing in the one that evicts by LRU.
    pub is_miss_lru: bool,
    /// The same of the one that evicts by worth.
    pub is_miss_worth: bool,
}

/// Orders the leaves that may be evicted. It never sees a block in use: those leaves are not offered.
///
/// Each tenant has one of its own; what separates them is in [`crate::quota`].
pub trait EvictionPolicy: fmt::Debug + Send {
    /// A sequence begins whose prompt needs so many blocks.
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        Trail { num_prompt_blocks, ..Trail::default() }
    }
    /// A sequence shares, or has computed, the block of `node` that ends `path`: once a block and sequence, in order.
    fn seen(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        let _ = (node, path, trail);
    }
    /// The block of `node` that ends `path` is its last now: what came after it was evicted or cut off, or it is a
    /// tail, which is never seen.
    fn exposed(&mut self, node: NodeId, path: PathHash) {
        let _ = (node, path);
    }
    /// The node was used now.
    fn used(&mut self, node: NodeId);
    /// `node` was cut off `from`, which keeps its id: both were used when `from` was.
    fn inherit(&mut self, node: NodeId, from: NodeId);
    /// The node's last block may be evicted. Again and again is fine.
    fn offer(&mut self, node: NodeId);
    /// It may not any more. Again and again is fine.
    fn withdraw(&mut self, node: NodeId);
    /// The offered node that goes next.
    fn victim(&self) -> Option<NodeId>;
    /// Another of its kind that has seen nothing.
    fn fresh(&self) -> Box<dyn EvictionPolicy>;
}

/// Least recently used leaf first, by a logical clock. Every call costs at most O(log offered).
#[derive(Debug, Default)]
pub struct LeafLru {
    clock: u64,
    last_used: Vec<u64>,
    is_offered: Vec<bool>,
    offered: BTreeSet<(u64, NodeId)>,
}

impl LeafLru {
    fn set_last_used(&mut self, node: NodeId, time: u64) {
        let index = node.index();
        if index >= self.last_used.len() {
            self.last_used.resize(index + 1, 0);
            self.is_offered.resize(index + 1, false);
        }
        if self.is_offered[index] {
            self.offered.remove(&(self.last_used[index], node));
            self.offered.insert((time, node));
        }
        self.last_used[index] = time;
    }
}

impl EvictionPolicy for LeafLru {
    fn used(&mut self, node: NodeId) {
        self.clock += 1;
        self.set_last_used(node, self.clock);
    }

    fn inherit(&mut self, node: NodeId, from: NodeId) {
        let time = self.last_used[from.index()];
        self.set_last_used(node, time);
    }

    fn offer(&mut self, node: NodeId) {
        let index = node.index();
        if !self.is_offered[index] {
            self.is_offered[index] = true;
            self.offered.insert((self.last_used[index], node));
        }
    }

    fn withdraw(&mut self, node: NodeId) {
        let index = node.index();
        // What was never used was never offered: roots.
        if self.is_offered.get(index) == Some(&true) {
            self.is_offered[index] = false;
            self.offered.remove(&(self.last_used[index], node));
        }
    }

    fn victim(&self) -> Option<NodeId> {
        self.offered.first().map(|&(_, node)| node)
    }

    fn fresh(&self) -> Box<dyn EvictionPolicy> {
        Box::<Self>::default()
    }
}

impl GhostPolicy for LeafLru {
    fn would_go_next(&self, node: NodeId) -> bool {
        self.offered.first().is_none_or(|&first| (self.last_used[node.index()], node) < first)
    }
}
