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
    pub(crate) path: PathHash,
    /// None: it did not come in, as what it follows was gone.
    pub(crate) node: Option<NodeId>,
}

/// A tree of paths with a capacity; each is a node of its policy. A leaf may go as soon as the next request begins.
/// Cost: that of the policy, O(1) expected beside it.
#[derive(Debug)]
pub(crate) struct Ghost<P> {
    pub(crate) policy: P,
    capacity: usize,
    nodes: Vec<GhostNode>,
    free: Vec<NodeId>,
    by_path: PathTable,
    /// Nodes that came since the last request began.
    new: Vec<NodeId>,
}

/// A policy that can tell what an offer would lead to.
pub(crate) trait GhostPolicy: EvictionPolicy {
    /// Whether `node`, which was used and is not offered, would be the victim if it were.
    fn would_go_next(&self, node: NodeId) -> bool;
}

impl<P: GhostPolicy> Ghost<P> {
    pub(crate) fn new(capacity: usize, policy: P) -> Self {
        let (nodes, free, new) = (Vec::new(), Vec::new(), Vec::new());
        Self { policy, capacity, nodes, free, by_path: PathTable::new(), new }
    }

    /// A request begins: what does not fit goes.
    pub(crate) fn begin(&mut self) {
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
    pub(crate) fn see(&mut self, path: PathHash, before: Option<GhostStep>) -> (GhostStep, Found) {
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
pub(crate) enum Found {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::LeafLru;

    /// Has a sequence with these paths, one after another; returns how many from the front were there.
    fn request(ghost: &mut Ghost<LeafLru>, paths: &[PathHash]) -> usize {
        ghost.begin();
        let (mut found, mut step) = (Vec::new(), None);
        for &path in paths {
            let (at, was_there) = ghost.see(path, step);
            assert!(at.node.is_some(), "nothing goes while a request runs");
            found.push(was_there);
            step = Some(at);
        }
        found.into_iter().take_while(|&found| found == Found::Yes).count()
    }

    #[test]
    fn leaves_go_first_and_only_what_does_not_fit() {
        let mut ghost = Ghost::new(4, LeafLru::default());
        assert_eq!(request(&mut ghost, &[1, 2, 3]), 0);
        assert_eq!(request(&mut ghost, &[1, 4]), 1);
        assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
        assert_eq!(request(&mut ghost, &[1, 4, 5, 6]), 2);
        // Six paths are two too many: 3 was used longest ago, then 2, which is a leaf now.
        assert_eq!(request(&mut ghost, &[1, 2, 3]), 1);
        assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
    }

    #[test]
    fn what_follows_a_path_that_went_is_not_there() {
        let mut ghost = Ghost::new(1, LeafLru::default());
        ghost.begin();
        let (first, _) = ghost.see(1, None);
        let (second, _) = ghost.see(2, Some(first));
        ghost.begin();
        let (third, found) = ghost.see(3, Some(second));
        assert_eq!((third.node, found), (None, Found::No));
        assert_eq!(ghost.see(4, Some(third)).0.node, None);
        // Another path has the place of the one that went.
        let (other, _) = ghost.see(5, Some(first));
        assert_eq!(other.node, second.node);
        assert_eq!(ghost.see(3, Some(second)).0.node, None);
    }
}
