//! The order of candidates by age and class.

use trunkline_kv::evict::worth_buckets::WorthBuckets;
use trunkline_kv::{EvictionPolicy, NodeId};

#[test]
fn before_worth_is_known_the_older_age_is_evicted_first_in_any_class() {
    let mut buckets = WorthBuckets::new(2);
    let [a, b, c] = [NodeId(0), NodeId(1), NodeId(2)];
    for (node, class) in [(a, 1), (b, 0), (c, 1)] {
        (0..4).for_each(|_| buckets.tick());
        buckets.touch(node);
        buckets.set_class(node, class);
        buckets.add_candidate(node);
    }
    for _ in 0..2 {
        buckets.tick();
    }
    buckets.advance();
    assert_eq!(buckets.victim(), Some(a));
    buckets.touch(a);
    assert_eq!(buckets.victim(), Some(b));
    buckets.remove_candidate(b);
    buckets.remove_candidate(b);
    assert_eq!(buckets.victim(), Some(c));
}
