use std::collections::BTreeMap;
use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey};

use crate::salt::Salt;

pub const MAX_GROUPS: usize = 4;

/// A node of the tree. Ids of removed nodes are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A run of blocks that every path through it shares. Roots have no blocks; they stand for a salt.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(super) parent: Option<NodeId>,
    /// The number of blocks on the path before this node.
    pub(crate) first_block: u32,
    /// Whole blocks; fewer than `block_size` tokens in a tail.
    pub(crate) tokens: Vec<u32>,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) keys: Vec<BlockKey>,
    /// The children, by the tokens of their first block.
    pub(crate) children: BTreeMap<Box<[u32]>, NodeId>,
    pub(crate) num_hits: u32,
    pub(crate) used_at_ms: u64,
    /// The groups of the requests that used the node, the latest last.
    pub(crate) groups: Vec<Arc<str>>,
    /// Set only in roots.
    pub(super) salt: Option<Box<Salt>>,
}

impl Node {
    pub(super) fn is_root(&self) -> bool {
        self.salt.is_some()
    }

    pub(super) fn record_use(&mut self, num_hits: u32, now_ms: u64) {
        self.num_hits = self.num_hits.saturating_add(num_hits);
        self.used_at_ms = now_ms;
    }

    pub(super) fn record_group(&mut self, group: &Arc<str>) {
        if self.groups.last() == Some(group) {
            return;
        }
        // A known group keeps its text, so that equal texts are stored once.
        let known = self.groups.iter().position(|known| known == group);
        let group = known.map_or_else(|| group.clone(), |index| self.groups.remove(index));
        if self.groups.len() == MAX_GROUPS {
            self.groups.remove(0);
        }
        self.groups.push(group);
    }

    /// Cuts off the first `num_blocks` blocks and returns them as a node of their own, without children.
    pub(super) fn split_off_front(&mut self, num_blocks: usize, num_tokens: usize) -> Self {
        fn front<T>(values: &mut Vec<T>, count: usize) -> Vec<T> {
            let rest = values.split_off(count);
            std::mem::replace(values, rest)
        }
        let upper = Self {
            parent: self.parent,
            first_block: self.first_block,
            tokens: front(&mut self.tokens, num_tokens),
            blocks: front(&mut self.blocks, num_blocks),
            keys: front(&mut self.keys, num_blocks),
            children: BTreeMap::new(),
            num_hits: self.num_hits,
            used_at_ms: self.used_at_ms,
            groups: self.groups.clone(),
            salt: None,
        };
        self.first_block += num_blocks as u32;
        upper
    }
}
