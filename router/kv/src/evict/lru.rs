use std::collections::BTreeSet;

use super::policy::EvictionPolicy;
use crate::index::NodeId;

/// Evicts the least recently used leaf, by a logical clock. Every call costs at most O(log candidates).
#[derive(Debug, Default)]
pub struct LeafLru {
    clock: u64,
    last_used: Vec<u64>,
    is_candidate: Vec<bool>,
    candidates: BTreeSet<(u64, NodeId)>,
}

impl LeafLru {
    fn set_last_used(&mut self, node: NodeId, time: u64) {
        let index = node.index();
        if index >= self.last_used.len() {
            self.last_used.resize(index + 1, 0);
            self.is_candidate.resize(index + 1, false);
        }
        if self.is_candidate[index] {
            self.candidates.remove(&(self.last_used[index], node));
            self.candidates.insert((time, node));
        }
        self.last_used[index] = time;
    }
}

impl EvictionPolicy for LeafLru {
    fn touch(&mut self, node: NodeId) {
        self.clock += 1;
        self.set_last_used(node, self.clock);
    }

    fn split(&mut self, upper: NodeId, lower: NodeId) {
        let time = self.last_used[lower.index()];
        self.set_last_used(upper, time);
    }

    fn add_candidate(&mut self, node: NodeId) {
        let index = node.index();
        if !self.is_candidate[index] {
            self.is_candidate[index] = true;
            self.candidates.insert((self.last_used[index], node));
        }
    }

    fn remove_candidate(&mut self, node: NodeId) {
        let index = node.index();
        // Roots were never used, so they have no entry.
        if self.is_candidate.get(index) == Some(&true) {
            self.is_candidate[index] = false;
            self.candidates.remove(&(self.last_used[index], node));
        }
    }

    fn victim(&self) -> Option<NodeId> {
        self.candidates.first().map(|&(_, node)| node)
    }

    fn new_empty(&self) -> Box<dyn EvictionPolicy> {
        Box::<Self>::default()
    }
}
