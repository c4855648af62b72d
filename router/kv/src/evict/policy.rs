use std::fmt;

use super::history::PathHash;
use crate::index::NodeId;

/// The state that a policy keeps for one sequence while it follows the sequence's path down the tree.
///
/// The cache only carries it from one call of the policy to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// The number of the request, counted from the first one.
    pub(super) request: u64,
    pub(super) num_prompt_blocks: u32,
    pub(super) num_visited_blocks: u32,
    /// True if the last known block was in the middle of an earlier prompt and is not used by nearly all requests. New
    /// blocks after it branch off that prompt.
    pub(super) is_branch: bool,
}

/// An order of eviction for the leaves of one tenant.
///
/// Only leaves that nobody holds are candidates, so a policy never chooses a block in use.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// Begins a sequence whose prompt needs `num_prompt_blocks` blocks.
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        Trail { num_prompt_blocks, ..Trail::default() }
    }
    /// Records that a sequence found or computed the block of `node` that ends `path`.
    ///
    /// Called once for each block of a sequence, in order.
    fn visit(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        let _ = (node, path, trail);
    }
    /// Records that the block that ends `path` is now the last one of `node`, because the next one was evicted or split
    /// off, or because the block is a tail. Tails are never visited.
    fn set_last_block(&mut self, node: NodeId, path: PathHash) {
        let _ = (node, path);
    }
    /// Records that a node was used now.
    fn touch(&mut self, node: NodeId);
    /// Records that `upper` was split off `lower`. Both were last used when `lower` was.
    fn split(&mut self, upper: NodeId, lower: NodeId);
    /// Makes the last block of a node a candidate for eviction. Does nothing if it is one already.
    fn add_candidate(&mut self, node: NodeId);
    /// Removes a node from the candidates, if it is one.
    fn remove_candidate(&mut self, node: NodeId);
    /// Returns the candidate that is evicted next.
    fn victim(&self) -> Option<NodeId>;
    /// Returns an empty policy of the same kind.
    fn new_empty(&self) -> Box<dyn EvictionPolicy>;
}
