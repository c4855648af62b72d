use std::collections::BTreeSet;

use trunkline_launcher::child::{ChildId, ShardId};

#[test]
fn every_child_has_a_name_of_its_own_and_a_single_shard_a_plain_one() {
    let mut names = BTreeSet::from([ChildId::Resolver.to_string(), ChildId::Router.to_string()]);
    for (model, lane, rank) in (0..27).map(|number| (number / 9, number / 3 % 3, number % 3)) {
        names.insert(ChildId::Shard(ShardId { model, lane, rank }).to_string());
    }
    assert_eq!(names.len(), 2 + 27);
    assert!(names.contains("shard") && names.contains("shard-l1-r2"), "{names:?}");
}
