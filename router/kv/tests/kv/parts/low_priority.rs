//! Low-priority blocks are evicted first.

use trunkline_kv::evict::LowPriorityLeaves;
use trunkline_kv::{CachePriority, KvCache, NodeId, Salt};

use crate::support::compute;

fn request(kv: &mut KvCache, prompt: &[u32], priority: CachePriority) -> usize {
    let num_hits = compute(kv, &Salt::default(), prompt, priority);
    kv.check_invariants();
    num_hits
}

fn num_found(kv: &KvCache, prompt: &[u32]) -> usize {
    kv.lookup(&Salt::default(), &[prompt, &[u32::MAX]].concat()).num_blocks()
}

#[test]
fn low_priority_blocks_are_evicted_before_older_ones() {
    let mut kv = KvCache::new(1, 9);
    request(&mut kv, &[1, 2, 3], CachePriority::Normal);
    request(&mut kv, &[4, 5], CachePriority::Low);
    request(&mut kv, &[1, 2, 3, 6], CachePriority::Low);
    request(&mut kv, &[7, 8, 9], CachePriority::Normal);
    assert_eq!(kv.device().counts().free, 0);
    request(&mut kv, &[10], CachePriority::Normal);
    assert_eq!(num_found(&kv, &[4, 5]), 1, "the end of the older of the two");
    request(&mut kv, &[11, 12], CachePriority::Normal);
    assert_eq!((num_found(&kv, &[4, 5]), num_found(&kv, &[1, 2, 3, 6])), (0, 3));
    request(&mut kv, &[13], CachePriority::Normal);
    assert_eq!(num_found(&kv, &[1, 2, 3]), 2, "now the least recently used");
}

#[test]
fn a_request_of_normal_priority_raises_the_priority_of_its_blocks() {
    let mut kv = KvCache::new(1, 6);
    request(&mut kv, &[1, 2, 3], CachePriority::Low);
    assert_eq!(request(&mut kv, &[1, 2], CachePriority::Normal), 2);
    request(&mut kv, &[4, 5], CachePriority::Normal);
    request(&mut kv, &[6, 7], CachePriority::Low);
    assert_eq!((num_found(&kv, &[1, 2, 3]), num_found(&kv, &[4, 5])), (2, 2), "the third was low still");
    request(&mut kv, &[8, 9], CachePriority::Normal);
    assert_eq!((num_found(&kv, &[6, 7]), num_found(&kv, &[1, 2])), (0, 2));
    request(&mut kv, &[10], CachePriority::Low);
    assert_eq!(num_found(&kv, &[1, 2]), 1, "nothing else is left to go");
}

#[test]
fn leaves_keep_their_order_and_are_in_the_set_once() {
    let mut leaves = LowPriorityLeaves::default();
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
