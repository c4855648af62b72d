//! Prefixes that stay on the device while they are pinned.

use trunkline_kv::{KvCache, NodeId, PinCounts, PinOutcome, Salt, TenantShare};

use crate::support::request;

fn granted(num_blocks: u32, num_new_blocks: u32) -> PinOutcome {
    PinOutcome::Granted { num_blocks, num_new_blocks }
}

fn flood(kv: &mut KvCache, salt: &Salt) {
    for round in 0..20 {
        request(kv, salt, &[1_000 + round, 2_000 + round]);
    }
}

#[test]
fn a_pinned_prefix_stays_until_its_time_is_over() {
    let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
    kv.set_max_pinned_blocks(4);
    request(&mut kv, &salt, &[1, 2, 3]);
    assert_eq!(kv.pin(&salt, &[1, 2, 3], 100), granted(3, 3));
    assert_eq!((kv.device().available(), kv.device().counts().held), (7, 3));
    flood(&mut kv, &salt);
    assert_eq!(request(&mut kv, &salt, &[1, 2, 3]), 3);
    kv.set_now(99);
    kv.expire_pins();
    assert_eq!(kv.pin_counts().num_blocks, 3);
    kv.set_now(100);
    kv.expire_pins();
    assert_eq!((kv.pin_counts().num_blocks, kv.device().available()), (0, 10));
    flood(&mut kv, &salt);
    assert_eq!(request(&mut kv, &salt, &[1, 2, 3]), 0);
}

#[test]
fn a_pin_is_renewed_never_cut_short_and_shared_blocks_count_once() {
    let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
    kv.set_max_pinned_blocks(4);
    request(&mut kv, &salt, &[1, 2, 3]);
    request(&mut kv, &salt, &[1, 2, 4]);
    kv.pin(&salt, &[1, 2, 3], 100);
    assert_eq!(kv.pin(&salt, &[1, 2, 4], 50), granted(3, 1));
    assert_eq!(kv.pin(&salt, &[1, 2, 3], 10), granted(3, 0));
    assert_eq!(kv.pin_counts().num_blocks, 4);
    kv.set_now(60);
    kv.expire_pins();
    assert_eq!(kv.pin_counts().num_blocks, 3, "the longer one is still there");
    assert!(kv.drop_pin() && !kv.drop_pin());
    assert_eq!(kv.pin_counts(), PinCounts { num_blocks: 0, granted: 3, refused: 0, dropped: 1 });
    kv.check_invariants();
}

#[test]
fn a_pin_beyond_the_limit_for_all_or_the_share_of_its_tenant_is_refused() {
    let mut kv = KvCache::new(1, 10);
    let [a, b] = ["a", "b"].map(Salt::of_tenant);
    let share = |tenant: &str, weight| TenantShare { tenant: tenant.into(), weight };
    kv.set_shares(&[share("a", 4), share("b", 1)]);
    kv.set_max_pinned_blocks(5);
    request(&mut kv, &a, &[1, 2, 3, 4]);
    request(&mut kv, &b, &[1, 2, 3, 4]);
    assert_eq!(kv.pin(&b, &[1, 2, 3], 9), PinOutcome::Refused, "b's share is 2");
    assert_eq!(kv.pin(&b, &[1, 2], 9), granted(2, 2));
    assert_eq!(kv.pin(&a, &[1, 2, 3, 4], 9), PinOutcome::Refused, "5 for all");
    assert_eq!(kv.pin(&a, &[1, 2, 3], 9), granted(3, 3));
    let pinned: Vec<u32> = kv.device().usages().map(|usage| usage.num_pinned).collect();
    assert_eq!(pinned, [3, 2]);
    assert_eq!(kv.pin_counts().refused, 2);
    assert_eq!(kv.pin(&a, &[7, 8], 9), granted(0, 0), "nothing is there to pin");
}

#[test]
fn a_pin_is_renewed_by_its_tokens_while_it_is_there() {
    let (mut kv, salt) = (KvCache::new(2, 10), Salt::default());
    kv.set_max_pinned_blocks(4);
    request(&mut kv, &salt, &[1, 2, 3, 4]);
    assert_eq!(kv.pin(&salt, &[1, 2, 3, 4, 5], 10), granted(2, 2));
    kv.set_now(5);
    for ttl_ms in [20, 1] {
        assert!(kv.renew_pin(&salt, &[1, 2, 3, 4, 6], ttl_ms));
    }
    kv.set_now(24);
    kv.expire_pins();
    assert_eq!(kv.pin_counts().num_blocks, 2);
    kv.set_now(25);
    kv.expire_pins();
    assert!(!kv.renew_pin(&salt, &[1, 2, 3, 4], 9) && !kv.renew_pin(&salt, &[1], 9));
    assert_eq!(kv.pin_counts(), PinCounts { num_blocks: 0, granted: 1, refused: 0, dropped: 0 });
    kv.check_invariants();
}

#[test]
fn a_pin_of_a_tail_pins_the_whole_blocks_before_it() {
    let (mut kv, salt) = (KvCache::new(2, 10), Salt::default());
    kv.set_max_pinned_blocks(10);
    request(&mut kv, &salt, &[1, 2, 3]);
    let nodes = kv.walk(NodeId(0), 10, |_| true).nodes;
    let tail = nodes.iter().find(|view| view.num_tokens == 1).unwrap();
    let tokens = kv.path_tokens(tail.id, tail.key).unwrap();
    assert_eq!(kv.pin(&salt, &tokens, 9), granted(1, 1));
    assert_eq!(kv.unpin_node(tail.id, tail.key), Some(1));
    kv.check_invariants();
}

#[test]
fn pins_are_listed_and_ended_by_node() {
    let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
    kv.set_max_pinned_blocks(10);
    for prompt in [[1, 2, 3], [1, 2, 4], [5, 6, 7]] {
        request(&mut kv, &salt, &prompt);
        kv.pin(&salt, &prompt, u64::from(prompt[2]) * 10);
    }
    let nodes = kv.walk(NodeId(0), 10, |_| true).nodes;
    let pins: Vec<_> = nodes.iter().map(|view| (view.num_pinned, view.pin_ends_at_ms)).collect();
    let [shared, ends] = [(2, None), (1, Some(30))];
    assert!(pins.contains(&shared) && pins.contains(&ends) && pins.contains(&(3, Some(70))), "{pins:?}");
    let fork = nodes.iter().find(|view| view.num_children == 2).unwrap();
    assert_eq!(kv.unpin_node(fork.id, nodes[0].key.extend(&[9])), None);
    assert_eq!(kv.unpin_node(fork.id, fork.key), Some(4), "and what continues it");
    assert_eq!(kv.unpin_node(fork.id, fork.key), Some(0));
    assert_eq!(kv.pin_counts().num_blocks, 3);
    kv.check_invariants();
}

#[test]
fn a_dropped_pin_is_the_one_that_would_end_first() {
    let (mut kv, salt) = (KvCache::new(1, 10), Salt::default());
    kv.set_max_pinned_blocks(10);
    // The pin that ends first is neither the first nor the last that was granted.
    for (token, ttl_ms) in [(1, 50), (2, 10), (3, 90), (4, 30)] {
        request(&mut kv, &salt, &[token, token]);
        assert_eq!(kv.pin(&salt, &[token, token], ttl_ms), granted(2, 2));
    }
    let mut ended = Vec::new();
    for num_left in (0..4).rev() {
        assert!(kv.drop_pin());
        let (counts, num_dropped) = (kv.pin_counts(), 4 - u64::from(num_left));
        assert_eq!((counts.num_blocks, counts.dropped), (2 * num_left, num_dropped));
        assert_eq!((kv.device().counts().held, kv.device().available()), (2 * num_left, 10 - 2 * num_left));
        let is_gone = |token: &u32| !kv.renew_pin(&salt, &[*token, *token], 1);
        let gone: Vec<u32> = [1, 2, 3, 4].into_iter().filter(is_gone).collect();
        ended.extend(gone.into_iter().filter(|token| !ended.contains(token)).collect::<Vec<_>>());
        kv.check_invariants();
    }
    assert_eq!(ended, [2, 4, 1, 3]);
    assert!(!kv.drop_pin(), "none is left");
    assert_eq!(kv.pin_counts().dropped, 4);
}
