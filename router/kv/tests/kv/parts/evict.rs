//! The order of least recent use.

use trunkline_kv::{EvictionPolicy, LeafLru, NodeId};

#[test]
fn the_least_recently_used_of_those_offered_goes_first() {
    let mut lru = LeafLru::default();
    let [a, b, c] = [NodeId(0), NodeId(1), NodeId(2)];
    for node in [a, b, c] {
        lru.used(node);
        lru.offer(node);
    }
    lru.withdraw(a);
    assert_eq!(lru.victim(), Some(b));
    lru.used(b);
    assert_eq!(lru.victim(), Some(c));
    lru.offer(a);
    lru.offer(a);
    assert_eq!(lru.victim(), Some(a));
    let d = NodeId(3);
    lru.inherit(d, b);
    lru.offer(d);
    for node in [a, c, b] {
        lru.withdraw(node);
    }
    assert_eq!(lru.victim(), Some(d));
}
