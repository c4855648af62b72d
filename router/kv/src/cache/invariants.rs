//! What holds of pool, index, policy and store together.

use trunkline_contract::BlockId;

use super::KvCache;
use crate::block::BlockState;

impl KvCache {
    /// Recounts everything, O(pool + tree). Panics where something is wrong.
    pub fn check_invariants(&self) {
        self.pool.check_invariants();
        if self.pool.is_settled() {
            let is_cached = |block| self.pool.is_indexed(block) && !self.pool.is_held(block);
            self.policy.check_invariants(|block| self.pool.state(block) == BlockState::Free, is_cached);
        }
        if let Some(windows) = self.windows.as_ref().filter(|_| self.pool.is_settled()) {
            windows.check_invariants(|block| self.pool.state(block) == BlockState::Free);
        }
        if let Some(store) = &self.store {
            store.check_invariants();
        }
        let mut is_in_tree = vec![false; self.counts().total as usize];
        self.tree.check_invariants(|parent, blocks| {
            if let Some(&last) = blocks.last().filter(|_| self.pool.is_settled()) {
                let node = self.tree.node_of(last);
                let may_go = self.tree.leaf_block(node) == Some(last) && !self.pool.is_held(last);
                let goes_first = may_go && self.low.is_low(last);
                assert_eq!(self.policy.goes_first(node), goes_first, "node {} goes first or not", node.0);
            }
            for (index, block) in blocks.iter().enumerate() {
                assert!(self.pool.is_indexed(*block), "block {} of the tree is marked so", block.0);
                assert!(
                    !std::mem::replace(&mut is_in_tree[block.index()], true),
                    "block {} is once there",
                    block.0
                );
                let before = if index > 0 { Some(blocks[index - 1]) } else { self.last_block(parent) };
                if let Some(before) = before {
                    let holds = self.pool.is_held(*block) <= self.pool.is_held(before);
                    assert!(holds, "who holds block {} holds block {} before it", block.0, before.0);
                }
            }
        });
        for (index, &in_tree) in is_in_tree.iter().enumerate() {
            assert_eq!(
                in_tree,
                self.pool.is_indexed(BlockId(index as u32)),
                "index and pool agree on block {index}"
            );
        }
    }
}
