//! Blocks that go before all others: what sequences of [`Worth::Low`] computed and nobody else asked for since.
//!
//! The policy knows these leaves too, as any others: it is not asked while there is one of them. So a policy need not
//! know of them, and a block that is worth more from now on needs no new place.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::BlockId;
use crate::radix::NodeId;
use crate::table::Worth;

/// Which blocks of the index are worth nothing. One byte a block.
#[derive(Debug)]
pub(crate) struct LowBlocks {
    is_low: Vec<bool>,
}

impl LowBlocks {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { is_low: vec![false; num_blocks as usize] }
    }

    pub(crate) fn is_low(&self, block: BlockId) -> bool {
        self.is_low[block.index()]
    }

    pub(crate) fn set(&mut self, block: BlockId, is_low: bool) {
        self.is_low[block.index()] = is_low;
    }

    /// A sequence computed what stands in this block of the index: it `is_new` there, or was there before.
    pub(crate) fn entered(&mut self, block: BlockId, worth: Worth, is_new: bool) {
        let is_low = worth == Worth::Low && (is_new || self.is_low(block));
        self.set(block, is_low);
    }
}

/// Leaves of one tenant whose last block is worth nothing, in the order in which they could go. O(log leaves) a call.
#[derive(Debug, Default)]
pub(crate) struct LowLeaves {
    clock: u64,
    places: BTreeMap<NodeId, u64>,
    order: BTreeSet<(u64, NodeId)>,
}

impl LowLeaves {
    /// The leaf is, or is not, among them from now on.
    pub(crate) fn set(&mut self, node: NodeId, is_low: bool) {
        if !is_low {
            if let Some(place) = self.places.remove(&node) {
                self.order.remove(&(place, node));
            }
            return;
        }
        let (clock, order) = (&mut self.clock, &mut self.order);
        self.places.entry(node).or_insert_with(|| {
            *clock += 1;
            order.insert((*clock, node));
            *clock
        });
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.places.contains_key(&node)
    }

    /// What goes next.
    pub(crate) fn first(&self) -> Option<NodeId> {
        self.order.first().map(|&(_, node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::KvCache;
    use crate::salt::Salt;

    fn request(kv: &mut KvCache, prompt: &[u32], worth: Worth) -> usize {
        let salt = Salt::default();
        let tokens = [prompt, &[u32::MAX]].concat();
        let hit = kv.lookup(&salt, &tokens);
        let mut table = kv.open_worth(&salt, &hit, worth);
        kv.touch(&hit);
        let first = hit.num_blocks() as u32;
        let num_new = prompt.len() as u32 - first;
        assert!(kv.grow(&mut table, num_new));
        kv.begin_fill(&table, first, num_new);
        kv.close(table, prompt);
        kv.check_invariants();
        hit.num_blocks()
    }

    fn num_found(kv: &KvCache, prompt: &[u32]) -> usize {
        kv.lookup(&Salt::default(), &[prompt, &[u32::MAX]].concat()).num_blocks()
    }

    #[test]
    fn what_is_worth_nothing_goes_before_what_is_older() {
        let mut kv = KvCache::new(1, 9);
        request(&mut kv, &[1, 2, 3], Worth::Normal);
        request(&mut kv, &[4, 5], Worth::Low);
        request(&mut kv, &[1, 2, 3, 6], Worth::Low);
        request(&mut kv, &[7, 8, 9], Worth::Normal);
        assert_eq!(kv.counts().free, 0);
        request(&mut kv, &[10], Worth::Normal);
        assert_eq!(num_found(&kv, &[4, 5]), 1, "the end of the older of the two");
        request(&mut kv, &[11, 12], Worth::Normal);
        assert_eq!((num_found(&kv, &[4, 5]), num_found(&kv, &[1, 2, 3, 6])), (0, 3));
        request(&mut kv, &[13], Worth::Normal);
        assert_eq!(num_found(&kv, &[1, 2, 3]), 2, "now the least recently used");
    }

    #[test]
    fn who_asks_for_it_makes_it_worth_keeping() {
        let mut kv = KvCache::new(1, 6);
        request(&mut kv, &[1, 2, 3], Worth::Low);
        assert_eq!(request(&mut kv, &[1, 2], Worth::Normal), 2);
        request(&mut kv, &[4, 5], Worth::Normal);
        request(&mut kv, &[6, 7], Worth::Low);
        assert_eq!((num_found(&kv, &[1, 2, 3]), num_found(&kv, &[4, 5])), (2, 2), "the third was low still");
        request(&mut kv, &[8, 9], Worth::Normal);
        assert_eq!((num_found(&kv, &[6, 7]), num_found(&kv, &[1, 2])), (0, 2));
        request(&mut kv, &[10], Worth::Low);
        assert_eq!(num_found(&kv, &[1, 2]), 1, "nothing else is left to go");
    }

    #[test]
    fn leaves_go_in_their_order_and_are_there_once() {
        let mut leaves = LowLeaves::default();
        for node in [3, 1, 3, 2] {
            leaves.set(NodeId(node), true);
        }
        assert_eq!(leaves.first(), Some(NodeId(3)));
        leaves.set(NodeId(3), false);
        leaves.set(NodeId(3), false);
        assert_eq!(leaves.first(), Some(NodeId(1)));
        leaves.set(NodeId(3), true);
        leaves.set(NodeId(1), false);
        leaves.set(NodeId(2), false);
        assert_eq!(leaves.first(), Some(NodeId(3)));
    }
}
