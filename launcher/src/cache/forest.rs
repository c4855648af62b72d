//! Arranges the blocks of a store as paths, which share common prefixes.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_store::{BlockKey, StoredBlock};

/// A sequence of blocks without a fork.
#[derive(Debug)]
pub struct Branch {
    /// The blocks in order; at least one.
    pub blocks: Vec<StoredBlock>,
    /// The branches that continue this one, most recent first.
    pub children: Vec<Branch>,
}

impl Branch {
    /// Returns the last block, whose key is the branch's id.
    pub(crate) fn last(&self) -> &StoredBlock {
        self.blocks.last().expect("a branch has a block")
    }

    pub fn num_tokens(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.num_tokens)).sum()
    }

    /// Returns when the newest block of this branch or its descendants was written.
    pub fn written_at(&self) -> u64 {
        let own = self.blocks.iter().map(|block| block.written_at).max().unwrap_or(0);
        self.children.iter().map(Self::written_at).max().unwrap_or(0).max(own)
    }
}

/// All paths of a store by the key of their last block.
#[derive(Debug)]
pub struct Forest {
    by_key: BTreeMap<BlockKey, StoredBlock>,
    children: BTreeMap<BlockKey, Vec<BlockKey>>,
    firsts: Vec<BlockKey>,
}

impl Forest {
    /// Arranges `blocks`. Of two records with the same key, the newer one counts. A block without its parent belongs to
    /// no path.
    pub fn new(blocks: &[StoredBlock]) -> Self {
        let mut by_key: BTreeMap<BlockKey, StoredBlock> = BTreeMap::new();
        for block in blocks {
            let known = by_key.entry(block.key).or_insert_with(|| block.clone());
            if known.sequence < block.sequence {
                *known = block.clone();
            }
        }
        let mut forest = Self { by_key, children: BTreeMap::new(), firsts: Vec::new() };
        for (key, block) in &forest.by_key {
            if block.depth == 0 {
                forest.firsts.push(*key);
            } else if let Some(parent) = forest.parent(block).map(|parent| parent.key) {
                forest.children.entry(parent).or_default().push(*key);
            }
        }
        forest
    }

    /// Returns the number of blocks that are reachable from the start of a path.
    pub fn num_reachable(&self) -> usize {
        self.reachable().len()
    }

    fn reachable(&self) -> BTreeSet<BlockKey> {
        self.with_descendants(self.firsts.clone())
    }

    fn with_descendants(&self, mut open: Vec<BlockKey>) -> BTreeSet<BlockKey> {
        let mut found = BTreeSet::new();
        while let Some(key) = open.pop() {
            if found.insert(key) {
                open.extend(self.children.get(&key).into_iter().flatten());
            }
        }
        found
    }

    /// Returns the blocks of the namespace of `last` that are not reachable, because a block before them is lost.
    pub fn unreachable(&self, last: BlockKey) -> Vec<StoredBlock> {
        let (reachable, root) = (self.reachable(), self.by_key[&last].root);
        let blocks = self.by_key.values();
        blocks.filter(|block| block.root == root && !reachable.contains(&block.key)).cloned().collect()
    }

    /// If an ancestor of `last` is lost, returns the ends of paths that may be the beginning of its path; otherwise
    /// none.
    pub fn possible_beginnings(&self, last: BlockKey) -> Vec<BlockKey> {
        let mut top = &self.by_key[&last];
        while let Some(parent) = self.parent(top) {
            top = parent;
        }
        let is_possible = |key: &BlockKey| {
            let block = &self.by_key[key];
            // At least the block before `top` is lost.
            let is_before = block.depth < top.depth.saturating_sub(1);
            block.root == top.root && is_before && !self.children.contains_key(key)
        };
        self.reachable().into_iter().filter(is_possible).collect()
    }

    fn parent(&self, block: &StoredBlock) -> Option<&StoredBlock> {
        // Depths grow along a path, so no damage makes a circle.
        self.by_key.get(&block.parent).filter(|parent| parent.depth.checked_add(1) == Some(block.depth))
    }

    /// Returns the paths, most recent first.
    pub fn branches(&self) -> Vec<Branch> {
        self.branches_from(&self.firsts)
    }

    fn branches_from(&self, keys: &[BlockKey]) -> Vec<Branch> {
        let mut branches: Vec<Branch> = keys.iter().map(|key| self.branch(*key)).collect();
        branches.sort_by_key(|branch| std::cmp::Reverse((branch.written_at(), branch.last().key)));
        branches
    }

    fn branch(&self, first: BlockKey) -> Branch {
        let mut blocks = vec![self.by_key[&first].clone()];
        let mut key = first;
        loop {
            match self.children.get(&key).map_or(&[][..], Vec::as_slice) {
                [only] => {
                    key = *only;
                    blocks.push(self.by_key[&key].clone());
                }
                forks => return Branch { blocks, children: self.branches_from(forks) },
            }
        }
    }

    /// Returns the keys that start with these hexadecimal digits.
    pub fn matching(&self, digits: &str) -> Vec<BlockKey> {
        let digits = digits.to_ascii_lowercase();
        self.by_key.keys().filter(|key| key.to_string().starts_with(&digits)).copied().collect()
    }

    /// Returns the blocks of a path up to `last`, in order; `None` if an ancestor is missing.
    pub fn path(&self, last: BlockKey) -> Option<Vec<StoredBlock>> {
        let mut path = vec![self.by_key.get(&last)?.clone()];
        while let Some(block) = path.last()
            && block.depth > 0
        {
            path.push(self.parent(block)?.clone());
        }
        path.reverse();
        Some(path)
    }

    /// Returns the blocks to remove with a path: `last`, everything that continues it, and the blocks before it that no
    /// other path shares.
    pub fn own_blocks(&self, last: BlockKey) -> Vec<StoredBlock> {
        let mut gone = self.with_descendants(vec![last]);
        for block in self.path(last).unwrap_or_default().iter().rev().skip(1) {
            let is_shared = self.children[&block.key].iter().any(|child| !gone.contains(child));
            if is_shared {
                break;
            }
            gone.insert(block.key);
        }
        gone.iter().map(|key| self.by_key[key].clone()).collect()
    }
}
