//! Tests of the queue's order by class, tenant and age.

use trunkline_scheduler::fairness::{Fairness, TenantKey};
use trunkline_scheduler::queue::Queue;
use trunkline_scheduler::sequence::{Place, Rank, Sequence, SequenceKey};
use trunkline_scheduler::sequence_map::SequenceMap;
use trunkline_scheduler::{Millis, Priority};

use crate::sim::scenario::request;

fn keys(count: u64) -> Vec<SequenceKey> {
    let mut map = SequenceMap::default();
    let tenant = Fairness::new(&[], 0).enter(None);
    (0..count)
        .map(|id| map.insert(Sequence::new(request(id, vec![1], 1), [tenant; 2], Millis(0), id)))
        .collect()
}

fn rank(priority: Priority, [tenant, adapter]: [TenantKey; 2], arrival: u64) -> Rank {
    let place = Place { effective_ms: arrival, arrival };
    Rank { priority, tenant, adapter, place, since: Millis(arrival) }
}

/// Counts a sequence of a tenant with an adapter.
fn enter(fairness: &mut Fairness, tenant: Option<&str>, adapter: Option<&str>) -> [TenantKey; 2] {
    let tenant = fairness.enter(tenant);
    [tenant, fairness.adapters_mut(tenant).enter(adapter)]
}

fn charge(fairness: &mut Fairness, [tenant, adapter]: [TenantKey; 2], cost: u64) {
    fairness.charge(tenant, cost);
    fairness.adapters_mut(tenant).charge(adapter, cost);
}

fn first(queue: &mut Queue, fairness: &mut Fairness) -> Option<SequenceKey> {
    queue.sort(fairness);
    queue.iter().next()
}

#[test]
fn class_goes_before_arrival_and_parked_sequences_are_passed_over() {
    let keys = keys(3);
    let mut fairness = Fairness::new(&[], 0);
    let tenant = enter(&mut fairness, None, None);
    let mut queue = Queue::default();
    let (old, new) = (rank(Priority::Normal, tenant, 0), rank(Priority::Normal, tenant, 1));
    let high = rank(Priority::High, tenant, 2);
    queue.enter(old, &fairness, keys[0], true, 5);
    queue.enter(new, &fairness, keys[1], false, 7);
    queue.enter(high, &fairness, keys[2], true, 0);
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[2]));
    queue.leave(Some(high), true, 0);
    queue.park(old);
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[1]));
    assert_eq!((queue.num_waiting(), queue.num_new()), (2, 1));
    queue.leave(None, true, 5);
    assert_eq!((queue.num_waiting(), queue.num_uncached_tokens(), queue.num_new()), (1, 7, 0));
}

#[test]
fn the_tenant_that_got_least_goes_before_age() {
    let keys = keys(4);
    let mut fairness = Fairness::new(&[], 0);
    let (a, b) = (enter(&mut fairness, Some("a"), None), enter(&mut fairness, Some("b"), None));
    let mut queue = Queue::default();
    for (arrival, tenant) in [(0, a), (1, a), (2, b), (3, b)] {
        let rank = rank(Priority::Normal, tenant, arrival);
        queue.enter(rank, &fairness, keys[arrival as usize], true, 1);
    }
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[0]));
    charge(&mut fairness, a, 5);
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[2]), "no rank is stale");
    queue.leave(Some(rank(Priority::Normal, b, 2)), true, 1);
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[3]));
    charge(&mut fairness, b, 6);
    assert_eq!(first(&mut queue, &mut fairness), Some(keys[0]));
}

#[test]
fn who_waits_longest_in_a_class_is_found() {
    let keys = keys(2);
    let mut fairness = Fairness::new(&[], 0);
    let (a, b) = (enter(&mut fairness, Some("a"), None), enter(&mut fairness, Some("b"), None));
    let mut queue = Queue::default();
    queue.enter(rank(Priority::Low, a, 7), &fairness, keys[0], true, 1);
    queue.enter(rank(Priority::Low, b, 5), &fairness, keys[1], true, 1);
    assert_eq!(queue.waiting_since(Priority::Low, Millis(4)), None);
    assert_eq!(queue.waiting_since(Priority::Low, Millis(5)), Some(keys[1]));
    assert_eq!(queue.waiting_since(Priority::Normal, Millis(9)), None);
    queue.leave(Some(rank(Priority::Low, b, 5)), true, 1);
    assert_eq!(queue.waiting_since(Priority::Low, Millis(9)), Some(keys[0]));
}

#[test]
fn the_adapter_that_got_least_goes_before_age_within_its_tenant() {
    let keys = keys(6);
    let mut fairness = Fairness::new(&[], 0);
    let a = ["x", "y", "z"].map(|adapter| enter(&mut fairness, Some("a"), Some(adapter)));
    let b = enter(&mut fairness, Some("b"), None);
    let mut queue = Queue::default();
    // The first adapter of `a` has three sequences.
    for (arrival, of) in [(0, a[0]), (1, a[0]), (2, a[2]), (3, a[1]), (4, b), (5, a[0])] {
        queue.enter(rank(Priority::Normal, of, arrival), &fairness, keys[arrival as usize], true, 1);
    }
    let mut order = |fairness: &mut Fairness| -> Vec<usize> {
        queue.sort(fairness);
        queue.iter().map(|key| keys.iter().position(|&other| other == key).unwrap()).collect()
    };
    assert_eq!(order(&mut fairness), [0, 1, 5, 2, 3, 4], "by age if all got equally much");
    charge(&mut fairness, a[0], 3);
    assert_eq!(order(&mut fairness), [4, 2, 3, 0, 1, 5]);
    charge(&mut fairness, a[2], 9);
    charge(&mut fairness, b, 20);
    assert_eq!(order(&mut fairness), [3, 0, 1, 5, 2, 4]);
    queue.leave(Some(rank(Priority::Normal, a[1], 3)), true, 1);
    queue.leave(Some(rank(Priority::Normal, a[0], 0)), true, 1);
    let first: Vec<SequenceKey> = queue.iter().take(2).collect();
    assert_eq!(first, [keys[1], keys[5]]);
}
