//! ```text
//! root("m") ──┬─ [a b c d|e f g h]  blocks 7 3        a node: tokens in whole blocks, one block each (block_size 4)
//!             │     ├─ [i j k l]    block 5
//!             │     └─ [i j x]      block 9           a tail: one block, partly filled, always a leaf
//!             └─ [a b z z]          block 2
//! ```
//!
//! Each salt has a root. Children are ordered by the tokens of their first block, and no such key is a prefix of a
//! sibling's key. One search therefore finds the exact child, and the child that shares the longest prefix with some
//! tokens is a neighbour of the position where these would be inserted. The tree compares tokens, not hashes, so there
//! are no collisions. Nodes live in an arena, and no function recurses. The tree does not know who holds a block.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey};

use super::node::{Node, NodeId};
use crate::salt::Salt;

/// A position in the tree: after the first `num_blocks` whole blocks of a path.
///
/// It stays valid as long as the blocks before it stay in the tree, even if their nodes are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The tree's block just before this position; absent at the root of a salt.
    pub(crate) last_block: Option<BlockId>,
    pub(crate) num_blocks: u32,
}

impl Cursor {
    /// Returns the position after `blocks`, which begin at a root.
    pub(crate) fn after(blocks: &[BlockId]) -> Self {
        Self { last_block: blocks.last().copied(), num_blocks: blocks.len() as u32 }
    }

    fn advance(&mut self, block: BlockId) {
        *self = Self { last_block: Some(block), num_blocks: self.num_blocks + 1 };
    }
}

/// The part of some tokens that the tree has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixMatch {
    pub(crate) blocks: Vec<BlockId>,
    /// The block whose leading tokens agree with those that follow the whole blocks.
    pub(crate) partial: Option<PartialMatch>,
    /// The number of whole blocks of the index that agree, whether or not a sequence can begin behind them.
    pub(crate) num_known_blocks: usize,
}

/// A block of which only the leading tokens agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialMatch {
    pub(crate) block: BlockId,
    pub(crate) num_tokens: u32,
    pub(crate) node: NodeId,
}

impl PrefixMatch {
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor::after(&self.blocks)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    Existing(BlockId),
    New {
        /// The node that has the block now.
        node: NodeId,
        /// The node that the block was appended to or inserted under.
        parent: NodeId,
        /// The new upper half and the node that it was split off.
        split: Option<(NodeId, NodeId)>,
        /// A tail that the new tokens continue, which was removed, and its block.
        superseded: Option<(NodeId, BlockId)>,
    },
}

/// A radix tree over the tokens of all salts.
///
/// The pool bounds its size: every node except the roots has a block, and every root has a child.
#[derive(Debug)]
pub(crate) struct RadixTree {
    block_size: usize,
    nodes: Vec<Node>,
    free_nodes: Vec<NodeId>,
    roots: BTreeMap<Salt, NodeId>,
    /// The node of each block. The entries of blocks that are not in the tree are meaningless.
    node_of_block: Vec<NodeId>,
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    const STRIDE: usize = 32;
    let length = left.len().min(right.len());
    let (left, right) = (&left[..length], &right[..length]);
    let whole = left.chunks_exact(STRIDE).zip(right.chunks_exact(STRIDE)).take_while(|(a, b)| a == b).count()
        * STRIDE;
    whole + left[whole..].iter().zip(&right[whole..]).take_while(|(a, b)| a == b).count()
}

impl RadixTree {
    pub(crate) fn new(block_size: u32, num_blocks: u32) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        Self {
            block_size: block_size as usize,
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            roots: BTreeMap::new(),
            node_of_block: vec![NodeId(0); num_blocks as usize],
        }
    }

    /// Returns the longest prefix of `tokens` in the tree. The cost is O(tokens), whatever the size of the tree.
    pub(crate) fn find(&self, salt: &Salt, tokens: &[u32]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        let Some(&root) = self.roots.get(salt) else { return found };
        let (mut node, mut rest) = (root, tokens);
        loop {
            let Some(child) = rest.get(..self.block_size).and_then(|key| self.node(node).children.get(key))
            else {
                found.partial = self.find_partial_child(node, rest);
                return found;
            };
            let agreeing = common_prefix(&self.node(*child).tokens, rest);
            let num_blocks = agreeing / self.block_size;
            node = *child;
            let Node { blocks, .. } = self.node(node);
            found.blocks.extend_from_slice(&blocks[..num_blocks]);
            if num_blocks < blocks.len() {
                let within = agreeing % self.block_size;
                if within > 0 {
                    let block = blocks[num_blocks];
                    found.partial = Some(PartialMatch { block, num_tokens: within as u32, node });
                }
                return found;
            }
            rest = &rest[agreeing..];
        }
    }

    fn find_partial_child(&self, node: NodeId, rest: &[u32]) -> Option<PartialMatch> {
        let children = &self.node(node).children;
        let before = children.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(rest))).next_back();
        let after = children.range::<[u32], _>((Bound::Included(rest), Bound::Unbounded)).next();
        let (agreeing, child) = before
            .into_iter()
            .chain(after)
            .map(|(key, &child)| (common_prefix(key, rest), child))
            .max_by_key(|&(agreeing, _)| agreeing)?;
        let block = self.node(child).blocks[0];
        (agreeing > 0).then_some(PartialMatch { block, num_tokens: agreeing as u32, node: child })
    }

    /// Inserts `block`, which holds `tokens`, after `cursor`. Fewer tokens than `block_size` make a tail.
    ///
    /// Moves the cursor past whole blocks. The cost is O(block_size · log children) and that of a split.
    pub(crate) fn insert(
        &mut self,
        salt: &Salt,
        cursor: &mut Cursor,
        tokens: &[u32],
        block: BlockId,
    ) -> Inserted {
        assert!((1..=self.block_size).contains(&tokens.len()), "one block of tokens, not {}", tokens.len());
        let (at, offset) = self.locate(salt, cursor);
        let is_whole = tokens.len() == self.block_size;
        let (mut parent, mut split) = (at, None);
        if offset < self.node(at).blocks.len() {
            let begin = offset * self.block_size;
            if self.node(at).tokens[begin..].starts_with(tokens) {
                let existing = self.node(at).blocks[offset];
                if is_whole {
                    cursor.advance(existing);
                }
                return Inserted::Existing(existing);
            }
            parent = self.split(at, offset);
            split = Some((parent, at));
        } else {
            let after =
                self.node(at).children.range::<[u32], _>((Bound::Included(tokens), Bound::Unbounded)).next();
            if let Some((key, &child)) = after
                && key.starts_with(tokens)
            {
                let existing = self.node(child).blocks[0];
                if is_whole {
                    cursor.advance(existing);
                }
                return Inserted::Existing(existing);
            }
        }
        let before = self.node(parent).keys.last().copied();
        let key = before.unwrap_or_else(|| salt.root_key()).extend(tokens);
        let superseded = self.remove_tail_before(parent, tokens);
        let node = if is_whole && !self.node(parent).is_root() && self.node(parent).children.is_empty() {
            let node = self.node_mut(parent);
            node.tokens.extend_from_slice(tokens);
            node.blocks.push(block);
            node.keys.push(key);
            parent
        } else {
            self.add_child(parent, tokens, block, key)
        };
        self.node_of_block[block.index()] = node;
        if is_whole {
            cursor.advance(block);
        }
        Inserted::New { node, parent, split, superseded }
    }

    /// Replaces the block `old` by one with the same contents.
    pub(crate) fn replace(&mut self, old: BlockId, new: BlockId) {
        let node = self.node_of_block[old.index()];
        let entry = self.node_mut(node).blocks.iter_mut().find(|block| **block == old);
        *entry.expect("the node of a block has it") = new;
        self.node_of_block[new.index()] = node;
    }

    /// Removes the last block of a leaf, and the leaf if it was its only block.
    ///
    /// Returns the block and the node that may be a leaf now: the same node, its parent, or none if that is a root.
    pub(crate) fn remove_last_block(&mut self, leaf: NodeId) -> (BlockId, Option<NodeId>) {
        assert!(self.node(leaf).children.is_empty(), "only leaves are evicted");
        let num_tokens = (self.node(leaf).blocks.len() - 1) * self.block_size;
        if num_tokens == 0 {
            return self.remove_leaf(leaf);
        }
        let node = self.node_mut(leaf);
        node.tokens.truncate(num_tokens);
        node.keys.pop();
        let block = node.blocks.pop().expect("a node has a block");
        (block, Some(leaf))
    }

    pub(crate) fn node_of(&self, block: BlockId) -> NodeId {
        self.node_of_block[block.index()]
    }

    /// Returns a node, unless the id is free or that of a root.
    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index()).filter(|node| !node.blocks.is_empty())
    }

    /// Returns the nodes from `first` on, by id, without the roots.
    pub(crate) fn nodes_from(&self, first: NodeId) -> impl Iterator<Item = NodeId> {
        (first.0..self.nodes.len() as u32).map(NodeId).filter(|&id| self.get(id).is_some())
    }

    /// Returns the parent of a node, unless that is a root.
    pub(crate) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent.filter(|&parent| !self.node(parent).is_root())
    }

    /// Returns true if the node is a tail: a partly filled block.
    pub(crate) fn is_tail(&self, node: NodeId) -> bool {
        !self.node(node).tokens.len().is_multiple_of(self.block_size)
    }

    /// Returns the last block of a leaf, and none for inner nodes and roots.
    pub(crate) fn leaf_block(&self, node: NodeId) -> Option<BlockId> {
        let node = self.node(node);
        if node.children.is_empty() { node.blocks.last().copied() } else { None }
    }

    /// Returns the salt of a node that is in the tree. The cost is O(depth).
    pub(crate) fn salt_of(&self, node: NodeId) -> &Salt {
        let mut at = node;
        loop {
            let node = self.node(at);
            match &node.salt {
                Some(salt) => return salt,
                None => at = node.parent.expect("a path begins with a root"),
            }
        }
    }

    /// Returns the tokens from the root of the salt to the end of a node.
    pub(crate) fn path_tokens(&self, node: NodeId) -> Vec<u32> {
        let path = std::iter::successors(Some(node), |&node| self.parent(node));
        let mut path: Vec<NodeId> = path.collect();
        path.reverse();
        path.iter().flat_map(|&node| self.node(node).tokens.iter().copied()).collect()
    }

    /// Returns a node and all its descendants, parents first.
    pub(crate) fn subtree(&self, id: NodeId) -> Vec<NodeId> {
        let (mut open, mut order) = (vec![id], Vec::new());
        while let Some(node) = open.pop() {
            order.push(node);
            open.extend(self.node(node).children.values().copied());
        }
        order
    }

    /// Counts `num_hits` more requests that found a node, and sets its time of last use.
    pub(crate) fn record_use(&mut self, node: NodeId, num_hits: u32, now_ms: u64) {
        self.node_mut(node).record_use(num_hits, now_ms);
    }

    /// Adds a group to those of a node. Only the latest [`super::MAX_GROUPS`] are kept.
    pub(crate) fn record_group(&mut self, node: NodeId, group: &Arc<str>) {
        self.node_mut(node).record_group(group);
    }

    /// Returns the node that the cursor's last block is in, and how many of its blocks precede the cursor.
    fn locate(&mut self, salt: &Salt, cursor: &Cursor) -> (NodeId, usize) {
        let Some(last_block) = cursor.last_block else {
            return (self.root(salt), 0);
        };
        let node = self.node_of(last_block);
        let offset = (cursor.num_blocks - self.node(node).first_block) as usize;
        assert_eq!(
            self.node(node).blocks.get(offset - 1),
            Some(&last_block),
            "the blocks before a cursor are held"
        );
        (node, offset)
    }

    fn root(&mut self, salt: &Salt) -> NodeId {
        if let Some(&root) = self.roots.get(salt) {
            return root;
        }
        let root = self.new_node(Node { salt: Some(Box::new(salt.clone())), ..Node::default() });
        self.roots.insert(salt.clone(), root);
        root
    }

    /// Splits the node that the cursor is in, if it is in the middle of one. Returns the new upper half and the node.
    pub(crate) fn split_at(&mut self, cursor: &Cursor) -> Option<(NodeId, NodeId)> {
        let node = self.node_of(cursor.last_block?);
        let num_blocks = (cursor.num_blocks - self.node(node).first_block) as usize;
        (num_blocks < self.node(node).blocks.len()).then(|| (self.split(node, num_blocks), node))
    }

    /// Returns the key of `block`, which has the index `block_idx` in its path.
    pub(crate) fn block_key(&self, block: BlockId, block_idx: usize) -> BlockKey {
        let node = self.node(self.node_of(block));
        node.keys[block_idx - node.first_block as usize]
    }

    /// Returns the key of the last block of a node that is not a root.
    pub(crate) fn last_key(&self, node: NodeId) -> BlockKey {
        *self.node(node).keys.last().expect("a node has a block")
    }

    /// Splits off the first `num_blocks` blocks of a node as its new parent. The node keeps its id.
    fn split(&mut self, lower: NodeId, num_blocks: usize) -> NodeId {
        let num_tokens = num_blocks * self.block_size;
        let mut upper_node = self.node_mut(lower).split_off_front(num_blocks, num_tokens);
        let parent = upper_node.parent.expect("a node with blocks has a parent");
        let upper_key: Box<[u32]> = upper_node.tokens[..self.block_size].into();
        upper_node.children.insert(self.first_tokens(lower), lower);
        let moved = upper_node.blocks.clone();
        let upper = self.new_node(upper_node);
        for block in moved {
            self.node_of_block[block.index()] = upper;
        }
        self.node_mut(lower).parent = Some(upper);
        self.node_mut(parent).children.insert(upper_key, upper);
        upper
    }

    /// Removes the tail under `parent` that `tokens` continue.
    fn remove_tail_before(&mut self, parent: NodeId, tokens: &[u32]) -> Option<(NodeId, BlockId)> {
        let children = &self.node(parent).children;
        let (key, &tail) =
            children.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(tokens))).next_back()?;
        if !tokens.starts_with(key) {
            return None;
        }
        let key = key.clone();
        self.node_mut(parent).children.remove(&key);
        let block = self.node(tail).blocks[0];
        self.free_node(tail);
        Some((tail, block))
    }

    fn remove_leaf(&mut self, leaf: NodeId) -> (BlockId, Option<NodeId>) {
        let key = self.first_tokens(leaf);
        let parent = self.node(leaf).parent.expect("a leaf has a parent");
        let block = self.node(leaf).blocks[0];
        self.node_mut(parent).children.remove(&key);
        self.free_node(leaf);
        if !self.node(parent).is_root() {
            return (block, Some(parent));
        }
        if self.node(parent).children.is_empty()
            && let Some(salt) = self.node_mut(parent).salt.take()
        {
            self.roots.remove(&*salt);
            self.free_node(parent);
        }
        (block, None)
    }

    fn add_child(&mut self, parent: NodeId, tokens: &[u32], block: BlockId, key: BlockKey) -> NodeId {
        let first_block = self.node(parent).first_block + self.node(parent).blocks.len() as u32;
        let child = self.new_node(Node {
            parent: Some(parent),
            first_block,
            tokens: tokens.to_vec(),
            blocks: vec![block],
            keys: vec![key],
            ..Node::default()
        });
        self.node_mut(parent).children.insert(tokens.into(), child);
        child
    }

    fn first_tokens(&self, node: NodeId) -> Box<[u32]> {
        let tokens = &self.node(node).tokens;
        tokens[..self.block_size.min(tokens.len())].into()
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    fn new_node(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free_nodes.pop() {
            self.nodes[id.index()] = node;
            return id;
        }
        self.nodes.push(node);
        NodeId((self.nodes.len() - 1) as u32)
    }

    fn free_node(&mut self, id: NodeId) {
        self.nodes[id.index()] = Node::default();
        self.free_nodes.push(id);
    }

    /// Recounts everything in O(tree). Panics if a link, a key or the shape is wrong.
    ///
    /// Calls `on_node` with each node except the roots, parents first: its parent unless that is a root, and its
    /// blocks.
    pub(crate) fn check_invariants(&self, mut on_node: impl FnMut(Option<NodeId>, &[BlockId])) {
        let mut num_nodes = 0;
        let mut open: Vec<NodeId> = self.roots.values().copied().collect();
        for (salt, &root) in &self.roots {
            assert_eq!(self.node(root).salt.as_deref(), Some(salt), "a root knows its salt");
            assert!(!self.node(root).children.is_empty(), "a root without children is removed");
        }
        while let Some(id) = open.pop() {
            num_nodes += 1;
            let node = self.node(id);
            let end = node.first_block + node.blocks.len() as u32;
            let is_tail = !node.tokens.len().is_multiple_of(self.block_size);
            assert_eq!(
                node.tokens.len().div_ceil(self.block_size),
                node.blocks.len(),
                "a block for its tokens"
            );
            assert_eq!(node.keys.len(), node.blocks.len(), "a block has a key");
            if is_tail {
                assert!(node.blocks.len() == 1 && node.children.is_empty(), "a tail is a leaf of one block");
            }
            let mut previous: Option<&[u32]> = None;
            for (key, &child) in &node.children {
                assert_eq!(self.node(child).parent, Some(id), "a child knows its parent");
                assert_eq!(self.node(child).first_block, end, "a child begins where its parent ends");
                assert_eq!(**key, *self.first_tokens(child), "a child stands under its first block");
                assert!(
                    !previous.is_some_and(|previous| key.starts_with(previous)),
                    "no key is a prefix of another"
                );
                previous = Some(key);
                open.push(child);
            }
            if !node.is_root() {
                assert!(!node.blocks.is_empty(), "a node has a block");
                for block in &node.blocks {
                    assert_eq!(self.node_of(*block), id, "a block knows its node");
                }
                on_node(self.parent(id), &node.blocks);
            }
        }
        assert_eq!(num_nodes + self.free_nodes.len(), self.nodes.len(), "every node is reachable or free");
    }
}
