//! Eviction by least recent use.

use trunkline_kv::{EvictionPolicy, LeafLru, NodeId};

#[test]
fn the_least_recently_used_candidate_is_the_victim() {
    let mut lru = LeafLru::default();
    let [a, b, c] = [NodeId(0), NodeId(1), NodeId(2)];
    for node in [a, b, c] {
        lru.touch(node);
        lru.add_candidate(node);
    }
    lru.remove_candidate(a);
    assert_eq!(lru.victim(), Some(b));
    lru.touch(b);
    assert_eq!(lru.victim(), Some(c));
    lru.add_candidate(a);
    lru.add_candidate(a);
    assert_eq!(lru.victim(), Some(a));
    let d = NodeId(3);
    lru.split(d, b);
    lru.add_candidate(d);
    for node in [a, c, b] {
        lru.remove_candidate(node);
    }
    assert_eq!(lru.victim(), Some(d));
}
