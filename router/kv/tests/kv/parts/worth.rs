//! The groups of blocks by their history, and the choice of a victim.

use std::collections::BTreeSet;

use trunkline_kv::evict::worth::{BRANCH_GROUP, CLASSES_A_GROUP, HOT_AGE, HOT_GROUP, NUM_COMPARED};
use trunkline_kv::{EvictionPolicy, NodeId, PathHash, WorthPolicy};

/// Runs a prompt of these paths. Returns the group of each.
fn request(policy: &mut WorthPolicy, paths: impl IntoIterator<Item = PathHash>) -> Vec<u8> {
    let paths: Vec<_> = paths.into_iter().collect();
    let mut trail = policy.begin(paths.len() as u32);
    let learn = |path: &PathHash| policy.learn(NodeId(*path as u32), *path, &mut trail) / CLASSES_A_GROUP;
    paths.iter().map(learn).collect()
}

fn pass(policy: &mut WorthPolicy, num_requests: u64) {
    for _ in 0..num_requests {
        policy.begin(0);
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

/// Makes a policy with this many candidates, of which each is used in one request. The first is the oldest.
fn with_candidates(num: u32) -> WorthPolicy {
    let mut policy = WorthPolicy::new(num);
    for node in (0..num).map(NodeId) {
        policy.begin(0);
        policy.touch(node);
        policy.add_candidate(node);
        policy.add_candidate(node);
    }
    policy
}

#[test]
fn before_anything_is_learned_the_oldest_of_few_candidates_is_the_victim() {
    let mut policy = with_candidates(NUM_COMPARED as u32);
    assert_eq!(policy.victim(), Some(NodeId(0)));
    policy.remove_candidate(NodeId(0));
    policy.remove_candidate(NodeId(0));
    assert_eq!(policy.victim(), Some(NodeId(1)));
    policy.touch(NodeId(1));
    assert_eq!(policy.victim(), Some(NodeId(2)));
    policy.split(NodeId(1_000), NodeId(2));
    policy.remove_candidate(NodeId(2));
    policy.add_candidate(NodeId(1_000));
    assert_eq!(policy.victim(), Some(NodeId(1_000)), "the upper part is as old as the lower one");
}

#[test]
fn of_many_candidates_an_old_one_is_the_victim_and_each_is_evicted_once() {
    let num = 4_000;
    let (mut policy, mut left) = (with_candidates(num), (0..num).collect::<BTreeSet<_>>());
    let mut num_old = 0;
    while let Some(victim) = policy.victim() {
        assert_eq!(policy.victim(), Some(victim), "asking changes nothing");
        // In the mean, one in 64 is older than the oldest of 64.
        num_old += u32::from(left.range(..victim.0).count() <= left.len() / 16);
        assert!(left.remove(&victim.0), "{victim:?} was evicted before");
        policy.remove_candidate(victim);
    }
    assert!(left.is_empty());
    assert!(num_old > num * 9 / 10, "{num_old} of {num} victims were among the oldest sixteenth");
}
