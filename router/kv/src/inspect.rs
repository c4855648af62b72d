//! What the KV index holds, for people: a walk over the tree in pages, and removal of a part of it.

use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey, SlotId};

use crate::cache::KvCache;
use crate::radix::{NodeId, RadixTree};
use crate::salt::Salt;
use crate::table::BlockTable;

/// One node of the tree: a run of tokens that all its conversations share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its id, until it goes.
    pub id: NodeId,
    /// Key of its last block: with the id it names this very node.
    pub key: BlockKey,
    /// The node before it; none at the root of a salt.
    pub parent: Option<NodeId>,
    /// The namespace.
    pub salt: Salt,
    /// Tokens before it.
    pub first_token: u32,
    /// Tokens in it.
    pub num_tokens: u32,
    /// Blocks in it.
    pub num_blocks: u32,
    /// Those that have their window part; none where blocks are in one piece.
    pub num_windowed: u32,
    /// Those that a sequence holds now.
    pub num_held: u32,
    /// Those that the store has too.
    pub num_stored: u32,
    /// Those that a pin holds.
    pub num_pinned: u32,
    /// Those that a pin keeps in the store.
    pub num_stored_pinned: u32,
    /// When the last of the pins ends whose prefix ends in this node.
    pub pin_ends_at_ms: Option<u64>,
    /// What the requests that computed or continued it called themselves: the latest last.
    pub groups: Vec<Arc<str>>,
    /// Nodes that continue it.
    pub num_children: u32,
    /// Requests that found all of it or a beginning of it.
    pub num_hits: u32,
    /// When it was used last, by the clock of [`KvCache::set_now`].
    pub used_at_ms: u64,
}

/// Some nodes of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePage {
    /// By id. What changes between two pages may be seen twice or not at all.
    pub nodes: Vec<NodeView>,
    /// Where the next page begins; none after the last.
    pub next: Option<NodeId>,
}

impl RadixTree {
    /// The namespace that a node is of.
    pub(crate) fn salt_of(&self, node: NodeId) -> Option<&Salt> {
        let mut at = node;
        loop {
            let node = self.nodes.get(at.index())?;
            match (&node.salt, node.parent) {
                (Some(salt), _) => return Some(salt),
                (None, Some(parent)) => at = parent,
                (None, None) => return None,
            }
        }
    }

    /// The tokens from the root of the salt to the end of a node.
    fn path_tokens(&self, node: NodeId) -> Vec<u32> {
        let mut path: Vec<NodeId> = self.path_up(node).collect();
        path.reverse();
        path.iter().flat_map(|&node| self.node(node).tokens.iter().copied()).collect()
    }
}

impl KvCache {
    /// What time it is now, in milliseconds since any fixed moment: for [`NodeView::used_at_ms`].
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Says what a sequence's requests are called together: noted at what it shares, and at what it computes. After
    /// [`KvCache::touch`].
    pub fn set_group(&mut self, table: &mut BlockTable, group: Option<Arc<str>>) {
        if let (Some(group), Some(last)) = (&group, table.cursor.last_block) {
            let path: Vec<NodeId> = self.tree.path_up(self.tree.node_of(last)).collect();
            path.into_iter().for_each(|node| self.tree.node_mut(node).note_group(group));
        }
        table.group = group;
    }

    /// At most `limit` nodes from `first` on. Cost: O(limit · depth).
    pub fn walk(&self, first: NodeId, limit: usize) -> TreePage {
        let mut page = TreePage::default();
        for id in (first.0..self.tree.nodes.len() as u32).map(NodeId) {
            let Some(view) = self.view(id) else { continue };
            if page.nodes.len() == limit {
                page.next = Some(id);
                break;
            }
            page.nodes.push(view);
        }
        page
    }

    /// One node. None if the tree has none of this id, or it is a root.
    pub fn view(&self, id: NodeId) -> Option<NodeView> {
        let node = self.tree.nodes.get(id.index())?;
        let key = *node.keys.last()?;
        let has_parent_node = |parent: &NodeId| self.tree.node(*parent).salt.is_none();
        let num_held = node.blocks.iter().filter(|&&block| self.pool.is_held(block)).count();
        let has_part = |&&block: &&BlockId| self.windows.as_ref().is_some_and(|parts| parts.is_there(block));
        let is_stored = |key: &&BlockKey| self.store.as_ref().is_some_and(|store| store.has(**key));
        let store_pins = self.store.as_ref().map(|store| &store.pins);
        let ends = |&key: &BlockKey| {
            [self.pins.end_of(key), store_pins.and_then(|pins| pins.end_of(key))].into_iter().flatten()
        };
        Some(NodeView {
            id,
            key,
            parent: node.parent.filter(has_parent_node),
            salt: self.tree.salt_of(id)?.clone(),
            first_token: node.first_block * self.block_size,
            num_tokens: node.tokens.len() as u32,
            num_blocks: node.blocks.len() as u32,
            num_windowed: node.blocks.iter().filter(has_part).count() as u32,
            num_held: num_held as u32,
            num_stored: node.keys.iter().filter(is_stored).count() as u32,
            num_pinned: node.blocks.iter().filter(|&&block| self.pins.is_pinned(block)).count() as u32,
            num_stored_pinned: store_pins
                .map_or(0, |pins| node.keys.iter().filter(|&&key| pins.has(key)).count())
                as u32,
            pin_ends_at_ms: node.keys.iter().flat_map(ends).max(),
            groups: node.groups.clone(),
            num_children: node.children.len() as u32,
            num_hits: node.num_hits,
            used_at_ms: node.used_at_ms,
        })
    }

    /// The tokens from the root of its salt to the end of a node; none if `key` is not that of the node.
    pub fn path_tokens(&self, id: NodeId, key: BlockKey) -> Option<Vec<u32>> {
        self.view(id).filter(|view| view.key == key).map(|_| self.tree.path_tokens(id))
    }

    /// Removes a node and all that continues it, as far as nobody holds it, from the device and from the store. Returns
    /// how many blocks of the device went; none if `key` is not that of the node. Cost: O(blocks removed).
    pub fn remove(&mut self, id: NodeId, key: BlockKey) -> Option<u32> {
        self.settle();
        self.view(id).filter(|view| view.key == key)?;
        let order = self.subtree(id);
        let mut num_removed = 0;
        for node in order.into_iter().rev() {
            // Its blocks from the last one on; one that is held holds those before it.
            for _ in 0..self.tree.node(node).blocks.len() {
                let Some(block) = self.tree.leaf_block(node).filter(|&block| !self.pool.is_held(block))
                else {
                    break;
                };
                if let Some(store) = &mut self.store {
                    let block_idx =
                        self.tree.node(node).first_block as usize + self.tree.node(node).blocks.len() - 1;
                    self.discards.extend(store.remove(self.tree.block_key(block, block_idx)));
                }
                self.drop_last_block(node);
                num_removed += 1;
            }
        }
        Some(num_removed)
    }

    /// A node and all that continues it, each after what it continues.
    pub(crate) fn subtree(&self, id: NodeId) -> Vec<NodeId> {
        let (mut open, mut order) = (vec![id], Vec::new());
        while let Some(node) = open.pop() {
            order.push(node);
            open.extend(self.tree.node(node).children.values().copied());
        }
        order
    }

    /// Slots of the store that are to be emptied: what was removed since the last call.
    pub fn take_discards(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.discards)
    }
}
