//! Prefixes that their users asked to keep for a while.
//!
//! A pin holds the blocks of its prefix, as a sequence does: they are not evicted while it lasts, and nobody else can
//! have them. So there is a limit for all, each tenant's share for each, and whoever could not run at all for want
//! of blocks takes the pin that would end first.

use std::collections::BTreeMap;

use trunkline_contract::{BlockId, BlockKey};

use crate::block::BlockHold;
use crate::cache::KvCache;
use crate::quota::TenantIdx;
use crate::radix::NodeId;
use crate::salt::Salt;

/// What became of a wish to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// What the index has of the prefix stays.
    Granted {
        /// Its whole blocks.
        num_blocks: u32,
        /// Those that were not pinned before.
        num_new_blocks: u32,
    },
    /// The limit for all, or the tenant's share, has no room for it.
    Refused,
}

/// What is pinned, and what became of wishes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinCounts {
    /// Pinned now, each counted once.
    pub num_blocks: u32,
    /// Granted.
    pub granted: u64,
    /// Refused.
    pub refused: u64,
    /// Ended early, as a sequence could not have run else.
    pub dropped: u64,
}

#[derive(Debug)]
struct Pin {
    holds: Vec<BlockHold>,
    tenant: TenantIdx,
}

/// All pins. A prefix is named by the key of its last block.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    max_blocks: u32,
    by_end: BTreeMap<(u64, BlockKey), Pin>,
    ends: BTreeMap<BlockKey, u64>,
    /// Pins of each pinned block.
    num_pins: BTreeMap<BlockId, u32>,
    counts: PinCounts,
}

impl Pins {
    pub(crate) fn is_pinned(&self, block: BlockId) -> bool {
        self.num_pins.contains_key(&block)
    }

    /// When the pin of the prefix that ends with this block ends.
    pub(crate) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.ends.get(&last).copied()
    }
}

impl KvCache {
    /// Most blocks that may be pinned; 0, as at first: none.
    pub fn set_max_pinned_blocks(&mut self, max_blocks: u32) {
        self.pins.max_blocks = max_blocks;
    }

    /// What is pinned.
    pub fn pin_counts(&self) -> PinCounts {
        PinCounts { num_blocks: self.pins.num_pins.len() as u32, ..self.pins.counts }
    }

    /// Keeps what the index has of the whole blocks of `tokens` for `ttl_ms` from now on, or longer if it is pinned for
    /// longer already. Cost: O(blocks · log blocks).
    pub fn pin(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> PinOutcome {
        self.settle();
        let blocks = self.tree.find(salt, tokens).blocks;
        let Some(&last) = blocks.last() else {
            return PinOutcome::Granted { num_blocks: 0, num_new_blocks: 0 };
        };
        let key = self.tree.block_key(last, blocks.len() - 1);
        let num_new_blocks = blocks.iter().filter(|&&block| !self.pins.is_pinned(block)).count() as u32;
        let tenant = self.policy.tenant(salt);
        let num_pinned = self.pins.num_pins.len() as u32;
        if num_pinned + num_new_blocks > self.pins.max_blocks || !self.policy.may_pin(tenant, num_new_blocks)
        {
            self.pins.counts.refused += 1;
            return PinOutcome::Refused;
        }
        // Whoever pins it says that it is worth keeping.
        blocks.iter().for_each(|&block| self.low.set(block, false));
        let holds: Vec<BlockHold> = blocks.iter().map(|&block| self.hold_indexed(block)).collect();
        for &block in &blocks {
            *self.pins.num_pins.entry(block).or_default() += 1;
        }
        self.policy.pinned(tenant, num_new_blocks.cast_signed());
        let mut end = self.now_ms.saturating_add(ttl_ms);
        if let Some(&before) = self.pins.ends.get(&key) {
            end = end.max(before);
            self.unpin(before, key);
        }
        self.pins.by_end.insert((end, key), Pin { holds, tenant });
        self.pins.ends.insert(key, end);
        self.pins.counts.granted += 1;
        PinOutcome::Granted { num_blocks: blocks.len() as u32, num_new_blocks }
    }

    /// A pin of the whole blocks of `tokens` that is there still ends in `ttl_ms` from now on, if that is later. False
    /// if there is none.
    pub fn renew_pin(&mut self, salt: &Salt, tokens: &[u32], ttl_ms: u64) -> bool {
        let Some(last) = last_key(salt, tokens, self.block_size) else { return false };
        let end = self.now_ms.saturating_add(ttl_ms);
        let Some(known) = self.pins.ends.get_mut(&last) else { return false };
        if *known < end {
            let before = std::mem::replace(known, end);
            let pin = self.pins.by_end.remove(&(before, last)).expect("a pin has an end");
            self.pins.by_end.insert((end, last), pin);
        }
        true
    }

    /// Ends the pins that end in a node or in what continues it, of the store too. Returns how many blocks of the
    /// device are not pinned any more; none if `key` is not that of the node. Cost: O(blocks · log pins).
    pub fn unpin_node(&mut self, id: NodeId, key: BlockKey) -> Option<u32> {
        self.view(id).filter(|view| view.key == key)?;
        let num_before = self.pins.num_pins.len() as u32;
        let nodes = self.subtree(id).into_iter();
        let mut keys: Vec<BlockKey> = nodes.flat_map(|node| self.tree.node(node).keys.clone()).collect();
        let node = self.tree.node(id);
        if !node.tokens.len().is_multiple_of(self.block_size as usize) {
            // Who pins a tail pins the whole blocks before it.
            keys.extend(node.parent.and_then(|before| self.tree.node(before).keys.last()));
        }
        for key in keys {
            if let Some(end) = self.pins.end_of(key) {
                self.unpin(end, key);
            }
            if let Some(store) = &mut self.store {
                store.unpin(key);
            }
        }
        Some(num_before - self.pins.num_pins.len() as u32)
    }

    /// Ends the pins whose time is over, by the clock of [`KvCache::set_now`].
    pub fn expire_pins(&mut self) {
        while let Some((&(end, key), _)) = self.pins.by_end.first_key_value()
            && end <= self.now_ms
        {
            self.unpin(end, key);
        }
        if let Some(store) = &mut self.store {
            store.expire_pins(self.now_ms);
        }
    }

    /// Ends the pin that would end first, on the device: the store keeps its blocks. False if there is none.
    pub fn drop_pin(&mut self) -> bool {
        let Some((&(end, key), _)) = self.pins.by_end.first_key_value() else { return false };
        self.unpin(end, key);
        self.pins.counts.dropped += 1;
        true
    }

    fn unpin(&mut self, end: u64, key: BlockKey) {
        let Some(Pin { holds, tenant }) = self.pins.by_end.remove(&(end, key)) else { return };
        self.pins.ends.remove(&key);
        let mut num_left = 0;
        for hold in &holds {
            let count = self.pins.num_pins.get_mut(&hold.id()).expect("a pinned block is counted");
            *count -= 1;
            if *count == 0 {
                self.pins.num_pins.remove(&hold.id());
                num_left += 1;
            }
        }
        self.policy.pinned(tenant, -num_left);
        drop(holds);
        self.settle();
    }
}

/// The key of the last whole block of `tokens`.
fn last_key(salt: &Salt, tokens: &[u32], block_size: u32) -> Option<BlockKey> {
    let blocks = tokens.chunks_exact(block_size as usize);
    blocks.fold(None, |before: Option<BlockKey>, block| {
        Some(before.unwrap_or_else(|| salt.root_key()).extend(block))
    })
}
