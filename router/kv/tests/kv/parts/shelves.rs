//! The order of nodes by age and class.

use trunkline_kv::shelves::Shelves;
use trunkline_kv::{EvictionPolicy, NodeId};

#[test]
fn before_worth_is_known_the_older_age_goes_first_whatever_its_class() {
    let mut shelves = Shelves::new(2);
    let [a, b, c] = [NodeId(0), NodeId(1), NodeId(2)];
    for (node, class) in [(a, 1), (b, 0), (c, 1)] {
        (0..4).for_each(|_| shelves.tick());
        shelves.used(node);
        shelves.classify(node, class);
        shelves.offer(node);
    }
    for _ in 0..2 {
        shelves.tick();
    }
    shelves.advance();
    assert_eq!(shelves.victim(), Some(a));
    shelves.used(a);
    assert_eq!(shelves.victim(), Some(b));
    shelves.withdraw(b);
    shelves.withdraw(b);
    assert_eq!(shelves.victim(), Some(c));
}
