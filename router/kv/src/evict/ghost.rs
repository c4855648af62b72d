//! Simulations of a cache under some policy: a tree of paths without blocks.

use super::history::PathHash;
use super::path_table::PathTable;
use super::policy::EvictionPolicy;
use super::trail::{GhostProgress, GhostStep};
use crate::index::NodeId;

#[derive(Debug)]
struct GhostNode {
    /// Absent while the node is free.
    path: Option<PathHash>,
    parent: Option<NodeId>,
    num_children: u32,
}

/// A tree of paths with a capacity. Each path is a node of the ghost's policy.
///
/// A leaf can be evicted as soon as the next request begins. A call costs O(1) expected beside the policy's own cost.
#[derive(Debug)]
pub struct Ghost<P> {
    pub policy: P,
    capacity: usize,
    nodes: Vec<GhostNode>,
    free: Vec<NodeId>,
    by_path: PathTable,
    /// The nodes added since the last request began.
    new: Vec<NodeId>,
}

/// A policy that can tell the victim before a node becomes a candidate.
pub trait GhostPolicy: EvictionPolicy {
    /// Returns true if `node`, which was used and is no candidate, would be the victim if it were one.
    fn would_be_victim(&self, node: NodeId) -> bool;
}

impl<P: GhostPolicy> Ghost<P> {
    pub fn new(capacity: usize, policy: P) -> Self {
        let (nodes, free, new) = (Vec::new(), Vec::new(), Vec::new());
        Self { policy, capacity, nodes, free, by_path: PathTable::new(), new }
    }

    /// Begins a request: evicts the paths that do not fit.
    pub fn begin(&mut self) {
        for node in std::mem::take(&mut self.new) {
            if self.nodes[node.index()].num_children == 0 {
                self.policy.add_candidate(node);
            }
        }
        let mut next = None;
        while self.by_path.len() > self.capacity {
            let leaf = next.take().unwrap_or_else(|| {
                let leaf = self.policy.victim().expect("every leaf is a candidate");
                self.policy.remove_candidate(leaf);
                leaf
            });
            let GhostNode { path, parent, .. } = &mut self.nodes[leaf.index()];
            self.by_path.remove(path.take().expect("a leaf has a path"));
            let parent = *parent;
            self.free.push(leaf);
            let Some(parent) = parent else { continue };
            let num_children = &mut self.nodes[parent.index()].num_children;
            *num_children -= 1;
            if *num_children == 0 {
                // Most paths are evicted from the end to the beginning, so this saves most insertions.
                if self.policy.would_be_victim(parent) {
                    next = Some(parent);
                } else {
                    self.policy.add_candidate(parent);
                }
            }
        }
        if let Some(leaf) = next {
            self.policy.add_candidate(leaf);
        }
    }

    /// Visits `path`, which follows the step `before` of the same sequence, and adds it unless that one was evicted.
    pub fn visit(&mut self, path: PathHash, before: Option<GhostStep>) -> (GhostStep, Found) {
        // Sampling can skip the block before a path, so a path can be there without the one before it.
        if let Some(node) = self.by_path.get(path) {
            self.policy.touch(node);
            return (GhostStep { path, node: Some(node) }, Found::Yes);
        }
        let is_there = |step: GhostStep, node: &NodeId| self.nodes[node.index()].path == Some(step.path);
        let parent = before.map(|step| step.node.filter(|node| is_there(step, node)));
        if parent == Some(None) {
            return (GhostStep { path, node: None }, Found::No);
        }
        let parent = parent.flatten();
        let ghost = GhostNode { path: Some(path), parent, num_children: 0 };
        let node = if let Some(node) = self.free.pop() {
            self.nodes[node.index()] = ghost;
            node
        } else {
            self.nodes.push(ghost);
            NodeId(self.nodes.len() as u32 - 1)
        };
        if let Some(parent) = parent {
            self.nodes[parent.index()].num_children += 1;
            self.policy.remove_candidate(parent);
        }
        self.by_path.insert(path, node);
        self.policy.touch(node);
        self.new.push(node);
        (GhostStep { path, node: Some(node) }, Found::No)
    }

    /// Visits a path on behalf of a sequence. Returns true if the prefix hit of the sequence reaches it.
    pub(super) fn follow(&mut self, path: PathHash, progress: &mut GhostProgress) -> bool {
        let (step, found) = self.visit(path, progress.step);
        progress.step = Some(step);
        progress.has_missed |= found == Found::No;
        !progress.has_missed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Yes,
    No,
}
