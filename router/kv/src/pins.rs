//! Prefixes that their users asked to keep for a while.
//!
//! A pin holds the blocks of its prefix, as a sequence does: they are not evicted while it lasts, and nobody else can
//! have them. So there is a limit for all, each tenant's share for each, and whoever could not run at all for want
//! of blocks takes the pin that would end first.

use std::collections::BTreeMap;

use crate::block::{BlockHold, BlockId};
use crate::cache::KvCache;
use crate::key::BlockKey;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes a prompt of blocks of one token; returns how many of them hit.
    fn request(kv: &mut KvCache, salt: &Salt, prompt: &[u32]) -> usize {
        let tokens = [prompt, &[u32::MAX]].concat();
        let hit = kv.lookup(salt, &tokens);
        let mut table = kv.open(salt, &hit);
        kv.touch(&hit);
        let first = hit.num_blocks() as u32;
        let num_new = prompt.len() as u32 - first;
        assert!(kv.grow(&mut table, num_new));
        kv.begin_fill(&table, first, num_new);
        kv.close(table, prompt);
        kv.check_invariants();
        hit.num_blocks()
    }

    fn granted(num_blocks: u32, num_new_blocks: u32) -> PinOutcome {
        PinOutcome::Granted { num_blocks, num_new_blocks }
    }

    fn flood(kv: &mut KvCache, salt: &Salt) {
        for round in 0..20 {
            request(kv, salt, &[1_000 + round, 2_000 + round]);
        }
    }

    #[test]
    fn a_pinned_prefix_stays_until_its_time_is_over() {
        let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
        kv.set_max_pinned_blocks(4);
        request(&mut kv, &salt, &[1, 2, 3]);
        assert_eq!(kv.pin(&salt, &[1, 2, 3], 100), granted(3, 3));
        assert_eq!((kv.available(), kv.counts().held), (7, 3));
        flood(&mut kv, &salt);
        assert_eq!(request(&mut kv, &salt, &[1, 2, 3]), 3);
        kv.set_now(99);
        kv.expire_pins();
        assert_eq!(kv.pin_counts().num_blocks, 3);
        kv.set_now(100);
        kv.expire_pins();
        assert_eq!((kv.pin_counts().num_blocks, kv.available()), (0, 10));
        flood(&mut kv, &salt);
        assert_eq!(request(&mut kv, &salt, &[1, 2, 3]), 0);
    }

    #[test]
    fn a_pin_is_renewed_never_cut_short_and_shared_blocks_count_once() {
        let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
        kv.set_max_pinned_blocks(4);
        request(&mut kv, &salt, &[1, 2, 3]);
        request(&mut kv, &salt, &[1, 2, 4]);
        kv.pin(&salt, &[1, 2, 3], 100);
        assert_eq!(kv.pin(&salt, &[1, 2, 4], 50), granted(3, 1));
        assert_eq!(kv.pin(&salt, &[1, 2, 3], 10), granted(3, 0));
        assert_eq!(kv.pin_counts().num_blocks, 4);
        kv.set_now(60);
        kv.expire_pins();
        assert_eq!(kv.pin_counts().num_blocks, 3, "the longer one is still there");
        assert!(kv.drop_pin() && !kv.drop_pin());
        assert_eq!(kv.pin_counts(), PinCounts { num_blocks: 0, granted: 3, refused: 0, dropped: 1 });
        kv.check_invariants();
    }

    #[test]
    fn what_is_beyond_the_limit_of_all_or_the_share_of_one_is_refused() {
        let mut kv = KvCache::new(1, 10);
        let [a, b] = ["a", "b"].map(|tenant| Salt::of_tenant(tenant, &[]));
        let share = |tenant: &str, weight| crate::TenantShare { tenant: tenant.into(), weight };
        kv.set_shares(&[share("a", 4), share("b", 1)]);
        kv.set_max_pinned_blocks(5);
        request(&mut kv, &a, &[1, 2, 3, 4]);
        request(&mut kv, &b, &[1, 2, 3, 4]);
        assert_eq!(kv.pin(&b, &[1, 2, 3], 9), PinOutcome::Refused, "b's share is 2");
        assert_eq!(kv.pin(&b, &[1, 2], 9), granted(2, 2));
        assert_eq!(kv.pin(&a, &[1, 2, 3, 4], 9), PinOutcome::Refused, "5 for all");
        assert_eq!(kv.pin(&a, &[1, 2, 3], 9), granted(3, 3));
        let pinned: Vec<u32> = kv.tenants().map(|usage| usage.num_pinned).collect();
        assert_eq!(pinned, [3, 2]);
        assert_eq!(kv.pin_counts().refused, 2);
        assert_eq!(kv.pin(&a, &[7, 8], 9), granted(0, 0), "nothing is there to pin");
    }

    #[test]
    fn a_pin_is_renewed_by_its_tokens_while_it_is_there() {
        let (mut kv, salt) = (KvCache::new(2, 10), Salt::default());
        kv.set_max_pinned_blocks(4);
        request(&mut kv, &salt, &[1, 2, 3, 4]);
        assert_eq!(kv.pin(&salt, &[1, 2, 3, 4, 5], 10), granted(2, 2));
        kv.set_now(5);
        for ttl_ms in [20, 1] {
            assert!(kv.renew_pin(&salt, &[1, 2, 3, 4, 6], ttl_ms));
        }
        kv.set_now(24);
        kv.expire_pins();
        assert_eq!(kv.pin_counts().num_blocks, 2);
        kv.set_now(25);
        kv.expire_pins();
        assert!(!kv.renew_pin(&salt, &[1, 2, 3, 4], 9) && !kv.renew_pin(&salt, &[1], 9));
        assert_eq!(kv.pin_counts(), PinCounts { num_blocks: 0, granted: 1, refused: 0, dropped: 0 });
        kv.check_invariants();
    }

    #[test]
    fn a_tail_stands_for_the_whole_blocks_before_it() {
        let (mut kv, salt) = (KvCache::new(2, 10), Salt::default());
        kv.set_max_pinned_blocks(10);
        let hit = kv.lookup(&salt, &[1, 2, 3, 4]);
        let mut table = kv.open(&salt, &hit);
        assert!(kv.grow(&mut table, 2));
        kv.begin_fill(&table, 0, 3);
        kv.close(table, &[1, 2, 3]);
        let nodes = kv.walk(NodeId(0), 10).nodes;
        let tail = nodes.iter().find(|view| view.num_tokens == 1).unwrap();
        let tokens = kv.path_tokens(tail.id, tail.key).unwrap();
        assert_eq!(kv.pin(&salt, &tokens, 9), granted(1, 1));
        assert_eq!(kv.unpin_node(tail.id, tail.key), Some(1));
        kv.check_invariants();
    }

    #[test]
    fn pins_are_seen_and_ended_by_node() {
        let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
        kv.set_max_pinned_blocks(10);
        for prompt in [[1, 2, 3], [1, 2, 4], [5, 6, 7]] {
            request(&mut kv, &salt, &prompt);
            kv.pin(&salt, &prompt, u64::from(prompt[2]) * 10);
        }
        let nodes = kv.walk(NodeId(0), 10).nodes;
        let pins: Vec<_> = nodes.iter().map(|view| (view.num_pinned, view.pin_ends_at_ms)).collect();
        let [shared, ends] = [(2, None), (1, Some(30))];
        assert!(pins.contains(&shared) && pins.contains(&ends) && pins.contains(&(3, Some(70))), "{pins:?}");
        let fork = nodes.iter().find(|view| view.num_children == 2).unwrap();
        assert_eq!(kv.unpin_node(fork.id, nodes[0].key.extend(&[9])), None);
        assert_eq!(kv.unpin_node(fork.id, fork.key), Some(4), "and what continues it");
        assert_eq!(kv.unpin_node(fork.id, fork.key), Some(0));
        assert_eq!(kv.pin_counts().num_blocks, 3);
        kv.check_invariants();
    }
}
