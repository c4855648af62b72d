//! The KV index: a radix tree from token prefixes to blocks, one root per salt.
//!
//! ```text
//! root("m") ──┬─ [a b c d|e f g h]  blocks 7 3        a node: tokens in whole blocks, one block each (block_size 4)
//!             │     ├─ [i j k l]    block 5
//!             │     └─ [i j x]      block 9           a tail: one block, partly filled, always a leaf
//!             └─ [a b z z]          block 2
//! ```
//!
//! Children are ordered by the tokens of their first block, and no such key is the beginning of a sibling's. So the
//! exact child costs one search, and the child that agrees longest with some tokens is a neighbour of the place where
//! these would stand. Tokens themselves are compared, there is no hash to collide. Nodes live in an arena; nothing
//! recurses. The tree knows nothing of who holds a block; [`crate::KvCache`] keeps it, the pool and the policy
//! together.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey};

use crate::salt::Salt;

/// Most groups that a node remembers: more share its tokens than can be told.
pub const MAX_GROUPS: usize = 4;

/// A node of the tree. Ids of removed nodes are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A place in the tree: after the first `num_blocks` whole blocks of a path. Stays right as long as the blocks before
/// it stay, whatever happens to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The tree's block just before this place; none at the root of the salt.
    pub(crate) last_block: Option<BlockId>,
    /// Blocks before this place.
    pub(crate) num_blocks: u32,
}

impl Cursor {
    fn advance(&mut self, block: BlockId) {
        *self = Self { last_block: Some(block), num_blocks: self.num_blocks + 1 };
    }
}

/// What the tree has of some tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixMatch {
    /// Whole blocks, in order.
    pub(crate) blocks: Vec<BlockId>,
    /// A block whose first tokens agree with those that follow, and how many.
    pub(crate) partial: Option<(BlockId, u32)>,
    /// After the whole blocks.
    pub(crate) cursor: Cursor,
    /// The node that has the partly matching block.
    pub(crate) partial_node: Option<NodeId>,
}

/// What came of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The tree has these tokens already: in this block.
    Existing(BlockId),
    /// The block now stands in `node`.
    New {
        /// The node that has the block.
        node: NodeId,
        /// It was appended to or hung under this node.
        parent: NodeId,
        /// This upper half was cut off that node.
        split: Option<(NodeId, NodeId)>,
        /// A tail that the new tokens continue was removed, with its block.
        superseded: Option<(NodeId, BlockId)>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) parent: Option<NodeId>,
    /// Blocks before this node.
    pub(crate) first_block: u32,
    /// Whole blocks; in a tail fewer than `block_size`.
    pub(crate) tokens: Vec<u32>,
    pub(crate) blocks: Vec<BlockId>,
    /// Of each block.
    pub(crate) keys: Vec<BlockKey>,
    /// By the tokens of the child's first block.
    pub(crate) children: BTreeMap<Box<[u32]>, NodeId>,
    /// Requests that found it.
    pub(crate) num_hits: u32,
    /// When one used it last.
    pub(crate) used_at_ms: u64,
    /// What those that used it called themselves, the latest last; at most [`MAX_GROUPS`].
    pub(crate) groups: Vec<Arc<str>>,
    /// Of roots only.
    pub(crate) salt: Option<Salt>,
}

impl Node {
    /// One of this group uses it.
    pub(crate) fn note_group(&mut self, group: &Arc<str>) {
        if self.groups.last() == Some(group) {
            return;
        }
        // What is there already is kept rather than another copy of the same text.
        let known = self.groups.iter().position(|known| known == group);
        let group = known.map_or_else(|| group.clone(), |index| self.groups.remove(index));
        if self.groups.len() == MAX_GROUPS {
            self.groups.remove(0);
        }
        self.groups.push(group);
    }
}

/// The tree. Bounded by the pool: every node but the roots has a block, and a root has a child.
#[derive(Debug)]
pub(crate) struct RadixTree {
    block_size: usize,
    pub(crate) nodes: Vec<Node>,
    free_nodes: Vec<NodeId>,
    roots: BTreeMap<Salt, NodeId>,
    /// Which node has a block; meaningless for blocks that none has.
    node_of_block: Vec<NodeId>,
}

/// Number of leading tokens that agree.
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

    /// The longest part of `tokens` that the tree has. Cost: O(tokens), not of the tree.
    pub(crate) fn find(&self, salt: &Salt, tokens: &[u32]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        let Some(&root) = self.roots.get(salt) else { return found };
        let (mut node, mut rest) = (root, tokens);
        loop {
            let Some(child) = rest.get(..self.block_size).and_then(|key| self.node(node).children.get(key))
            else {
                self.find_partial_child(node, rest, &mut found);
                return found;
            };
            let agreeing = common_prefix(&self.node(*child).tokens, rest);
            let num_blocks = agreeing / self.block_size;
            node = *child;
            let Node { blocks, .. } = self.node(node);
            found.blocks.extend_from_slice(&blocks[..num_blocks]);
            found.cursor =
                Cursor { last_block: found.blocks.last().copied(), num_blocks: found.blocks.len() as u32 };
            if num_blocks < blocks.len() {
                let within = agreeing % self.block_size;
                if within > 0 {
                    found.partial = Some((blocks[num_blocks], within as u32));
                    found.partial_node = Some(node);
                }
                return found;
            }
            rest = &rest[agreeing..];
        }
    }

    fn find_partial_child(&self, node: NodeId, rest: &[u32], found: &mut PrefixMatch) {
        let children = &self.node(node).children;
        let before = children.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(rest))).next_back();
        let after = children.range::<[u32], _>((Bound::Included(rest), Bound::Unbounded)).next();
        let longest = before
            .into_iter()
            .chain(after)
            .map(|(key, &child)| (common_prefix(key, rest), child))
            .max_by_key(|&(agreeing, _)| agreeing);
        if let Some((agreeing, child)) = longest
            && agreeing > 0
        {
            found.partial = Some((self.node(child).blocks[0], agreeing as u32));
            found.partial_node = Some(child);
        }
    }

    /// Hangs `block` with `tokens` (at most a block of them; fewer make a tail) after `cursor`, which moves past whole
    /// blocks. Cost: O(block_size · log children), plus that of a split.
    pub(crate) fn insert(
        &mut self,
        salt: &Salt,
        cursor: &mut Cursor,
        tokens: &[u32],
        block: BlockId,
    ) -> Inserted {
        assert!((1..=self.block_size).contains(&tokens.len()), "one block of tokens, not {}", tokens.len());
        let (at, offset) = self.place(salt, cursor);
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
        let node = if is_whole && self.node(parent).salt.is_none() && self.node(parent).children.is_empty() {
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

    /// Puts another block with the same contents in `old`'s place.
    pub(crate) fn replace(&mut self, old: BlockId, new: BlockId) {
        let node = self.node_of_block[old.index()];
        let slot = self.node_mut(node).blocks.iter_mut().find(|block| **block == old);
        *slot.expect("the node of a block has it") = new;
        self.node_of_block[new.index()] = node;
    }

    /// Drops the last block of a leaf, and the leaf when it was the only one. Returns the block and the node that may
    /// be a leaf now: itself, or its parent (none if that is a root).
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

    /// The node that has an indexed block.
    pub(crate) fn node_of(&self, block: BlockId) -> NodeId {
        self.node_of_block[block.index()]
    }

    /// The last block of a leaf; none for inner nodes and roots.
    pub(crate) fn leaf_block(&self, node: NodeId) -> Option<BlockId> {
        let node = self.node(node);
        if node.children.is_empty() { node.blocks.last().copied() } else { None }
    }

    /// The last block of a node; none for roots.
    pub(crate) fn last_block(&self, node: NodeId) -> Option<BlockId> {
        self.node(node).blocks.last().copied()
    }

    /// The node and its ancestors, without the root.
    pub(crate) fn path_up(&self, from: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(from), |&node| self.node(node).parent)
            .take_while(|&node| self.node(node).salt.is_none())
    }

    /// The node just before a cursor, and how many of its blocks are before it.
    fn place(&mut self, salt: &Salt, cursor: &Cursor) -> (NodeId, usize) {
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
        let root = self.new_node(Node { salt: Some(salt.clone()), ..Node::default() });
        self.roots.insert(salt.clone(), root);
        root
    }

    /// Cuts the node in two if a cursor stands in the middle of it. Returns the new upper part and the node.
    pub(crate) fn split_at(&mut self, cursor: &Cursor) -> Option<(NodeId, NodeId)> {
        let node = self.node_of(cursor.last_block?);
        let num_blocks = (cursor.num_blocks - self.node(node).first_block) as usize;
        (num_blocks < self.node(node).blocks.len()).then(|| (self.split(node, num_blocks), node))
    }

    /// The key of `block`, the `block_idx`th of its path.
    pub(crate) fn block_key(&self, block: BlockId, block_idx: usize) -> BlockKey {
        let node = self.node(self.node_of(block));
        node.keys[block_idx - node.first_block as usize]
    }

    /// The key of the last block of a node that is not a root.
    pub(crate) fn last_key(&self, node: NodeId) -> BlockKey {
        *self.node(node).keys.last().expect("a node has a block")
    }

    /// Cuts the first `num_blocks` blocks off a node. They become its new parent; it keeps its id.
    fn split(&mut self, lower: NodeId, num_blocks: usize) -> NodeId {
        let num_tokens = num_blocks * self.block_size;
        let node = self.node_mut(lower);
        let lower_tokens = node.tokens.split_off(num_tokens);
        let lower_blocks = node.blocks.split_off(num_blocks);
        let lower_keys = node.keys.split_off(num_blocks);
        let tokens = std::mem::replace(&mut node.tokens, lower_tokens);
        let blocks = std::mem::replace(&mut node.blocks, lower_blocks);
        let keys = std::mem::replace(&mut node.keys, lower_keys);
        let parent = node.parent.expect("a node with blocks has a parent");
        let (first_block, num_hits, used_at_ms) = (node.first_block, node.num_hits, node.used_at_ms);
        let groups = node.groups.clone();
        node.first_block += num_blocks as u32;
        let upper_key: Box<[u32]> = tokens[..self.block_size].into();
        let lower_key = self.first_tokens(lower);
        let children = BTreeMap::from([(lower_key, lower)]);
        let moved = blocks.clone();
        let upper = self.new_node(Node {
            parent: Some(parent),
            first_block,
            tokens,
            blocks,
            keys,
            children,
            num_hits,
            used_at_ms,
            groups,
            salt: None,
        });
        for block in moved {
            self.node_of_block[block.index()] = upper;
        }
        self.node_mut(lower).parent = Some(upper);
        self.node_mut(parent).children.insert(upper_key, upper);
        upper
    }

    /// Removes the child of `parent` that is a tail which `tokens` continue.
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
        let Some(salt) = self.node(parent).salt.clone() else {
            return (block, Some(parent));
        };
        if self.node(parent).children.is_empty() {
            self.roots.remove(&salt);
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

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
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

    /// Recounts everything, O(tree). Panics where a link, a key or the shape is wrong. Calls `on_node` with each node
    /// but the roots, parents first: its parent (none: a root), its blocks.
    pub(crate) fn check_invariants(&self, mut on_node: impl FnMut(Option<NodeId>, &[BlockId])) {
        let mut num_nodes = 0;
        let mut open: Vec<NodeId> = self.roots.values().copied().collect();
        for (salt, &root) in &self.roots {
            assert_eq!(self.node(root).salt.as_ref(), Some(salt), "a root knows its salt");
            assert!(!self.node(root).children.is_empty(), "a root without children goes");
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
                assert!(!previous.is_some_and(|previous| key.starts_with(previous)), "no key begins another");
                previous = Some(key);
                open.push(child);
            }
            if node.salt.is_none() {
                assert!(!node.blocks.is_empty(), "a node has a block");
                for block in &node.blocks {
                    assert_eq!(self.node_of(*block), id, "a block knows its node");
                }
                on_node(node.parent.filter(|&parent| self.node(parent).salt.is_none()), &node.blocks);
            }
        }
        assert_eq!(num_nodes + self.free_nodes.len(), self.nodes.len(), "every node is reachable or free");
    }
}
