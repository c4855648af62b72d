//! The groups of blocks by their history.

use trunkline_kv::NodeId;
use trunkline_kv::evict::history::PathHash;
use trunkline_kv::evict::worth::{BRANCH_GROUP, CLASSES_A_GROUP, HOT_AGE, HOT_GROUP, WorthPolicy};

/// Runs a prompt of these paths. Returns the group of each.
fn request(policy: &mut WorthPolicy, paths: impl IntoIterator<Item = PathHash>) -> Vec<u8> {
    let paths: Vec<_> = paths.into_iter().collect();
    let (mut trail, _) = policy.begin_request(paths.len() as u32);
    let learn =
        |path: &PathHash| policy.learn(NodeId(*path as u32), *path, &mut trail) / CLASSES_A_GROUP as u8;
    paths.iter().map(learn).collect()
}

fn pass(policy: &mut WorthPolicy, num_requests: u64) {
    for _ in 0..num_requests {
        policy.begin_request(0);
    }
}

#[test]
fn blocks_are_grouped_by_count_branch_and_quick_reuse() {
    let mut policy = WorthPolicy::new(100);
    assert_eq!(request(&mut policy, 1..21), [0; 20]);
    pass(&mut policy, HOT_AGE);
    let going_on = [[1; 20].as_slice(), &[0; 5]].concat();
    assert_eq!(request(&mut policy, 1..26), going_on, "what continues a prompt is new as any other");
    pass(&mut policy, HOT_AGE);
    let aside = [[2; 10].as_slice(), &[BRANCH_GROUP; 5]].concat();
    assert_eq!(request(&mut policy, (1..11).chain(101..106)), aside, "it left the path before its end");
    let at_once = [[HOT_GROUP; 10].as_slice(), &[0; 5]].concat();
    assert_eq!(request(&mut policy, (1..11).chain(201..206)), at_once, "what all begin with has no branches");
}
