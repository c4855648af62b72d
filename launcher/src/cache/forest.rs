//! The blocks of a store as paths: runs of blocks that all that continues them share.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_store::{BlockKey, StoredBlock};

/// A run of blocks without a fork.
#[derive(Debug)]
pub struct Branch {
    /// In order; at least one.
    pub blocks: Vec<StoredBlock>,
    /// What continues it, most recent first.
    pub children: Vec<Branch>,
}

impl Branch {
    /// Its last block: what it is called by.
    pub fn last(&self) -> &StoredBlock {
        self.blocks.last().expect("a branch has a block")
    }

    /// Tokens in it.
    pub fn num_tokens(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.num_tokens)).sum()
    }

    /// When the newest block of it and of all that continues it was written.
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
    /// Of two records with one key the newer is taken. A block whose parent is not there belongs to no path.
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
            } else {
                forest.children.entry(block.parent).or_default().push(*key);
            }
        }
        forest
    }

    /// Blocks on paths that begin at their beginning.
    pub fn num_reachable(&self) -> usize {
        let mut open = self.firsts.clone();
        let mut count = 0;
        while let Some(key) = open.pop() {
            count += 1;
            open.extend(self.children.get(&key).into_iter().flatten());
        }
        count
    }

    /// The paths, most recent first.
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

    /// Keys that begin with these hexadecimal digits.
    pub fn matching(&self, digits: &str) -> Vec<BlockKey> {
        let digits = digits.to_ascii_lowercase();
        self.by_key.keys().filter(|key| key.to_string().starts_with(&digits)).copied().collect()
    }

    /// The blocks of a path up to `last`, in order; none if its beginning is not there.
    pub fn path(&self, last: BlockKey) -> Option<Vec<StoredBlock>> {
        let mut path = vec![self.by_key.get(&last)?.clone()];
        while let Some(block) = path.last()
            && block.depth > 0
        {
            path.push(self.by_key.get(&block.parent)?.clone());
        }
        path.reverse();
        Some(path)
    }

    /// What goes with a path: everything that continues `last`, `last` itself, and what is before it up to a block that
    /// something else continues.
    pub fn own_blocks(&self, last: BlockKey) -> Vec<StoredBlock> {
        let mut gone = BTreeSet::new();
        let mut open = vec![last];
        while let Some(key) = open.pop() {
            gone.insert(key);
            open.extend(self.children.get(&key).into_iter().flatten());
        }
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
