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
use crate::salt::Salt;

/// What became of a wish to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// The prefix stays; so many of its blocks were not pinned before.
    Granted {
        /// Blocks.
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
    fn is_pinned(&self, block: BlockId) -> bool {
        self.num_pins.contains_key(&block)
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
        let Some(&last) = blocks.last() else { return PinOutcome::Granted { num_new_blocks: 0 } };
        let key = self.tree.block_key(last, blocks.len() - 1);
        let num_new_blocks = blocks.iter().filter(|&&block| !self.pins.is_pinned(block)).count() as u32;
        let tenant = self.policy.tenant(salt);
        let num_pinned = self.pins.num_pins.len() as u32;
        if num_pinned + num_new_blocks > self.pins.max_blocks || !self.policy.may_pin(tenant, num_new_blocks)
        {
            self.pins.counts.refused += 1;
            return PinOutcome::Refused;
        }
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
        PinOutcome::Granted { num_new_blocks }
    }

    /// Ends the pins whose time is over, by the clock of [`KvCache::set_now`].
    pub fn expire_pins(&mut self) {
        while let Some((&(end, key), _)) = self.pins.by_end.first_key_value()
            && end <= self.now_ms
        {
            self.unpin(end, key);
        }
    }

    /// Ends the pin that would end first. False if there is none.
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
        assert_eq!(kv.pin(&salt, &[1, 2, 3], 100), PinOutcome::Granted { num_new_blocks: 3 });
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
        assert_eq!(kv.pin(&salt, &[1, 2, 4], 50), PinOutcome::Granted { num_new_blocks: 1 });
        assert_eq!(kv.pin(&salt, &[1, 2, 3], 10), PinOutcome::Granted { num_new_blocks: 0 });
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
        assert_eq!(kv.pin(&b, &[1, 2], 9), PinOutcome::Granted { num_new_blocks: 2 });
        assert_eq!(kv.pin(&a, &[1, 2, 3, 4], 9), PinOutcome::Refused, "5 for all");
        assert_eq!(kv.pin(&a, &[1, 2, 3], 9), PinOutcome::Granted { num_new_blocks: 3 });
        let pinned: Vec<u32> = kv.tenants().map(|usage| usage.num_pinned).collect();
        assert_eq!(pinned, [3, 2]);
        assert_eq!(kv.pin_counts().refused, 2);
        assert_eq!(
            kv.pin(&a, &[7, 8], 9),
            PinOutcome::Granted { num_new_blocks: 0 },
            "nothing is there to pin"
        );
    }
}
