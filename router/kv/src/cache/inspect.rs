//! The contents of the index for people: pages over the tree, and removal of a part of it.

use std::sync::Arc;

use trunkline_contract::BlockKey;

use super::KvCache;
use crate::device::WindowParts;
use crate::index::NodeId;
use crate::salt::Salt;

/// One node of the tree: a run of tokens that all its conversations share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The id, which another node can get once this one is removed.
    pub id: NodeId,
    /// The key of the last block. Together with the id it names this very node.
    pub key: BlockKey,
    /// The node before it; absent if that is the root of a salt.
    pub parent: Option<NodeId>,
    pub salt: Salt,
    /// The number of tokens before it.
    pub first_token: u32,
    pub num_tokens: u32,
    pub num_blocks: u32,
    /// The blocks that have their window part. It is 0 if the model has no windows.
    pub num_windowed: u32,
    /// The blocks that a sequence or a pin holds.
    pub num_held: u32,
    /// The blocks that the store has too.
    pub num_stored: u32,
    /// The blocks that a pin holds on the device.
    pub num_pinned: u32,
    /// The blocks that a pin keeps in the store.
    pub num_stored_pinned: u32,
    /// The time when the last of the pins ends whose prefix ends in this node.
    pub pin_ends_at_ms: Option<u64>,
    /// The groups of the requests that computed or continued it, the latest last.
    pub groups: Vec<Arc<str>>,
    pub num_children: u32,
    /// The number of requests that found at least its beginning.
    pub num_hits: u32,
    /// The time of its last use, by the clock of [`KvCache::set_now`].
    pub used_at_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePage {
    /// The nodes, by id. A node that changes between two pages can appear twice or not at all.
    pub nodes: Vec<NodeView>,
    /// The node to go on from, which may be one that is not shown; absent on the last page.
    pub next: Option<NodeId>,
}

/// A page ends once its nodes have this many blocks, where a node that is not shown counts as one block. Looking at a
/// block takes about 0.1 us.
const MAX_PAGE_BLOCKS: u32 = 4_096;

impl KvCache {
    /// Returns at most `limit` nodes from `first` on of the salts that `is_shown` accepts, and fewer if they have many
    /// blocks or many others are between them. The cost is O(limit · depth).
    pub fn walk(&self, first: NodeId, limit: usize, is_shown: impl Fn(&Salt) -> bool) -> TreePage {
        let mut page = TreePage::default();
        let mut num_blocks = 0;
        for id in self.device.tree().nodes_from(first) {
            if page.nodes.len() >= limit || num_blocks >= MAX_PAGE_BLOCKS {
                page.next = Some(id);
                break;
            }
            let view = if is_shown(self.device.tree().salt_of(id)) { self.view(id) } else { None };
            num_blocks += view.as_ref().map_or(1, |view| view.num_blocks);
            page.nodes.extend(view);
        }
        page
    }

    pub fn view(&self, id: NodeId) -> Option<NodeView> {
        let Self { device, store, pins, .. } = self;
        let tree = device.tree();
        let node = tree.get(id)?;
        let num_blocks = |is_counted: &dyn Fn(usize) -> bool| {
            (0..node.blocks.len()).filter(|&index| is_counted(index)).count() as u32
        };
        let (block, key) = (|index: usize| node.blocks[index], |index: usize| node.keys[index]);
        let store_pins = store.as_ref().map(|store| store.pins());
        let ends =
            |&key: &BlockKey| [pins.end_of(key), store_pins.and_then(|pins| pins.end_of(key))].into_iter();
        Some(NodeView {
            id,
            key: tree.last_key(id),
            parent: tree.parent(id),
            salt: tree.salt_of(id).clone(),
            first_token: node.first_block * device.block_size(),
            num_tokens: node.tokens.len() as u32,
            num_blocks: node.blocks.len() as u32,
            num_windowed: num_blocks(&|index| {
                device.windows().is_some_and(|parts: &WindowParts| parts.is_there(block(index)))
            }),
            num_held: num_blocks(&|index| device.is_held(block(index))),
            num_stored: num_blocks(&|index| store.as_ref().is_some_and(|store| store.has(key(index)))),
            num_pinned: num_blocks(&|index| pins.is_pinned(block(index))),
            num_stored_pinned: num_blocks(&|index| store_pins.is_some_and(|pins| pins.has(key(index)))),
            pin_ends_at_ms: node.keys.iter().flat_map(ends).flatten().max(),
            groups: node.groups.clone(),
            num_children: node.children.len() as u32,
            num_hits: node.num_hits,
            used_at_ms: node.used_at_ms,
        })
    }

    /// Returns the tokens from the root of the salt to the end of a node, or none if `key` is not that of the node.
    pub fn path_tokens(&self, id: NodeId, key: BlockKey) -> Option<Vec<u32>> {
        self.has_node(id, key).then(|| self.device.tree().path_tokens(id))
    }

    /// Returns the keys of all blocks of a node and its descendants, or none if `key` is not that of the node.
    pub fn subtree_keys(&self, id: NodeId, key: BlockKey) -> Option<Vec<BlockKey>> {
        let tree = self.device.tree();
        let keys_of = |node: NodeId| tree.get(node).map_or(&[][..], |node| &node.keys[..]);
        self.has_node(id, key).then(|| tree.subtree(id).into_iter().flat_map(keys_of).copied().collect())
    }

    /// Removes a node and its descendants from the device and the store, except blocks that are held.
    ///
    /// Returns how many blocks of the device were removed, or none if `key` is not that of the node. The cost is
    /// O(removed blocks).
    pub fn remove(&mut self, id: NodeId, key: BlockKey) -> Option<u32> {
        self.device.settle();
        if !self.has_node(id, key) {
            return None;
        }
        let Self { device, store, .. } = self;
        Some(device.remove_subtree(id, |key| {
            if let Some(store) = store {
                store.remove(key);
            }
        }))
    }

    /// Returns true if the tree has a node with this id whose last block has this key.
    pub(super) fn has_node(&self, id: NodeId, key: BlockKey) -> bool {
        self.device.tree().get(id).is_some_and(|node| node.keys.last() == Some(&key))
    }
}
