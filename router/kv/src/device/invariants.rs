use trunkline_contract::BlockId;

use super::{BlockState, DeviceTier};

impl DeviceTier {
    /// Recounts everything in O(pool + tree). Panics if anything is wrong.
    pub(crate) fn check_invariants(&self) {
        self.pool.check_invariants();
        let is_free = |block| self.pool.state(block) == BlockState::Free;
        if self.pool.is_settled() {
            let is_cached = |block| self.pool.is_indexed(block) && !self.pool.is_held(block);
            self.tenants.check_invariants(is_free, is_cached);
            if let Some(windows) = &self.windows {
                windows.check_invariants(is_free);
            }
        }
        let mut is_in_tree = vec![false; self.counts().total as usize];
        self.tree.check_invariants(|parent, blocks| {
            if let Some(&last) = blocks.last().filter(|_| self.pool.is_settled()) {
                let node = self.tree.node_of(last);
                let is_candidate = self.tree.leaf_block(node) == Some(last) && !self.pool.is_held(last);
                let is_low_priority = is_candidate && self.low_priority.has(last);
                assert_eq!(
                    self.tenants.is_low_priority(node),
                    is_low_priority,
                    "node {} is a low-priority candidate or not",
                    node.0
                );
            }
            let parent_block = parent.and_then(|parent| self.tree.get(parent)?.blocks.last().copied());
            let before = parent_block.into_iter().chain(blocks.iter().copied());
            let first = usize::from(parent_block.is_some());
            for (before, &block) in before.zip(&blocks[1 - first..]) {
                let is_ordered = self.pool.is_held(block) <= self.pool.is_held(before);
                assert!(is_ordered, "the holder of block {} holds block {} before it", block.0, before.0);
            }
            for block in blocks {
                assert!(self.pool.is_indexed(*block), "block {} of the tree is marked so", block.0);
                let was_in_tree = std::mem::replace(&mut is_in_tree[block.index()], true);
                assert!(!was_in_tree, "block {} is in the tree once", block.0);
            }
        });
        for (index, &in_tree) in is_in_tree.iter().enumerate() {
            let is_indexed = self.pool.is_indexed(BlockId(index as u32));
            assert_eq!(in_tree, is_indexed, "tree and pool agree on block {index}");
        }
    }
}
