//! What a cache would hold if it evicted by some policy: paths, no blocks.

use crate::evict::EvictionPolicy;
use crate::history::PathHash;
use crate::path_table::PathTable;
use crate::radix::NodeId;

#[derive(Debug)]
struct GhostNode {
    /// None: it is free.
    path: Option<PathHash>,
    parent: Option<NodeId>,
    num_children: u32,
}

/// Where a path that a sequence has seen was in a ghost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostStep {
    pub path: PathHash,
    /// None: it did not come in, as what it follows was gone.
    pub node: Option<NodeId>,
}

/// A tree of paths with a capacity; each is a node of its policy. A leaf may go as soon as the next request begins.
/// Cost: that of the policy, O(1) expected beside it.
#[derive(Debug)]
pub struct Ghost<P> {
    pub policy: P,
    capacity: usize,
    nodes: Vec<GhostNode>,
    free: Vec<NodeId>,
    by_path: PathTable,
    /// Nodes that came since the last request began.
    new: Vec<NodeId>,
}

/// A policy that can tell what an offer would lead to.
pub trait GhostPolicy: EvictionPolicy {
    /// Whether `node`, which was used and is not offered, would be the victim if it were.
    fn would_go_next(&self, node: NodeId) -> bool;
}

impl<P: GhostPolicy> Ghost<P> {
    pub fn new(capacity: usize, policy: P) -> Self {
        let (nodes, free, new) = (Vec::new(), Vec::new(), Vec::new());
        Self { policy, capacity, nodes, free, by_path: PathTable::new(), new }
    }

    /// A request begins: what does not fit goes.
    pub fn begin(&mut self) {
        for node in std::mem::take(&mut self.new) {
            if self.nodes[node.index()].num_children == 0 {
                self.policy.offer(node);
            }
        }
        let mut next = None;
        while self.by_path.len() > self.capacity {
            let leaf = next.take().unwrap_or_else(|| {
                let leaf = self.policy.victim().expect("every leaf was offered");
                self.policy.withdraw(leaf);
                leaf
            });
            let GhostNode { path, parent, .. } = &mut self.nodes[leaf.index()];
            self.by_path.remove(path.take().expect("what is evicted was there"));
            let parent = *parent;
            self.free.push(leaf);
            let Some(parent) = parent else { continue };
            let num_children = &mut self.nodes[parent.index()].num_children;
            *num_children -= 1;
            if *num_children == 0 {
                // Most paths go from end to beginning: what goes at once need not be put into the order before.
                if self.policy.would_go_next(parent) {
                    next = Some(parent);
                } else {
                    self.policy.offer(parent);
                }
            }
        }
        if let Some(leaf) = next {
            self.policy.offer(leaf);
        }
    }

    /// A sequence has `path`, which follows `before`, its step before. It comes in unless that is gone.
    pub fn see(&mut self, path: PathHash, before: Option<GhostStep>) -> (GhostStep, Found) {
        // A sample may have skipped what the path followed when it came in: it may be there whatever is before it.
        if let Some(node) = self.by_path.get(path) {
            self.policy.used(node);
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
            self.policy.withdraw(parent);
        }
        self.by_path.insert(path, node);
        self.policy.used(node);
        self.new.push(node);
        (GhostStep { path, node: Some(node) }, Found::No)
    }
}

/// Whether a path was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Yes,
    No,
}
