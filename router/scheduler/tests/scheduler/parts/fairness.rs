//! Tests of the tenants' counters and ranks.

use trunkline_scheduler::TenantWeight;
use trunkline_scheduler::fairness::{Backlog, COST_SCALE, Fairness, MAX_DEBTS, OUTPUT_TOKEN_COST, TenantKey};

fn fairness(weights: &[(&str, u32)], max_credit_tokens: u32) -> Fairness {
    let weights: Vec<_> =
        weights.iter().map(|&(tenant, weight)| TenantWeight { tenant: tenant.into(), weight }).collect();
    Fairness::new(&weights, max_credit_tokens)
}

fn submit(fairness: &mut Fairness, name: &str) -> TenantKey {
    let key = fairness.enter(Some(name));
    fairness.lift(key);
    fairness.begin_waiting(key, true, 1);
    key
}

#[test]
fn tokens_cost_by_weight() {
    let mut fairness = fairness(&[("a", 2)], 0);
    let (a, b) = (fairness.enter(Some("a")), fairness.enter(Some("b")));
    fairness.begin_running(a, 10);
    fairness.begin_running(b, 5);
    assert_eq!(fairness.rank(a), fairness.rank(b), "10 tokens at weight 2 are 5 at weight 1");
    let cost = fairness.reserve(a, 4, 0);
    assert_eq!((fairness.served(a), fairness.served(b)), (2 * COST_SCALE, 0), "chunks in flight count");
    assert_eq!(fairness.rank(a), fairness.rank(b), "reserved tokens were counted as admitted before");
    fairness.release(a, cost);
    assert_eq!(fairness.served(a), 0, "a lost chunk costs nothing");
    fairness.charge(a, cost);
    assert_eq!(fairness.served(a), 2 * COST_SCALE);
    fairness.set_weights(&[TenantWeight { tenant: "a".into(), weight: 1 }]);
    fairness.charge(a, OUTPUT_TOKEN_COST);
    assert_eq!(fairness.served(a), 4 * COST_SCALE);
    assert_eq!((fairness.fair_part(a, 7), fairness.fair_part(b, 1)), (3, 1));
}

#[test]
fn a_returning_tenant_is_lifted_less_a_credit() {
    let mut fairness = fairness(&[], 100);
    let a = submit(&mut fairness, "a");
    fairness.charge(a, 1000);
    let b = submit(&mut fairness, "b");
    assert_eq!(fairness.served(b), 900 * COST_SCALE);
    let c = submit(&mut fairness, "c");
    assert_eq!(fairness.served(c), 900 * COST_SCALE, "credits do not add up");
    submit(&mut fairness, "b");
    assert_eq!(fairness.served(b), 900 * COST_SCALE);
}

#[test]
fn a_tenant_that_left_ahead_is_ahead_when_it_returns() {
    let mut fairness = fairness(&[], 0);
    let (a, b) = (fairness.enter(Some("a")), fairness.enter(Some("b")));
    fairness.begin_waiting(b, true, 1);
    fairness.charge(a, 1000);
    fairness.leave(a);
    let a = fairness.enter(Some("a"));
    assert_eq!(fairness.served(a), 1000 * COST_SCALE, "leaving pays no debt");
    fairness.leave(a);
    fairness.charge(b, 2000);
    let c = submit(&mut fairness, "c");
    fairness.end_waiting(c, true, 1);
    fairness.leave(c);
    assert!(!fairness.knows("a"), "the others have passed it");
    fairness.end_waiting(b, true, 1);
    fairness.leave(b);
    assert!(fairness.is_empty(), "no tenant is left");
}

#[test]
fn debts_are_bounded() {
    let mut fairness = fairness(&[], 0);
    let waiting = fairness.enter(None);
    fairness.begin_waiting(waiting, true, 1);
    for index in 0..2 * MAX_DEBTS as u64 {
        let key = fairness.enter(Some(&index.to_string()));
        fairness.charge(key, index + 1);
        fairness.leave(key);
    }
    assert_eq!(fairness.num_debts(), MAX_DEBTS);
    assert!(fairness.knows("2047") && !fairness.knows("0"));
}

#[test]
fn a_tenant_with_little_waiting_has_little_ahead() {
    let mut fairness = fairness(&[("c", 3)], 0);
    let a = fairness.enter(Some("a"));
    (0..200).for_each(|_| fairness.begin_waiting(a, true, 10));
    let all = Backlog { num_waiting: 200, num_uncached_tokens: 2000 };
    let ahead = |name| fairness.backlog_ahead(Some(name), all);
    assert_eq!(ahead("a"), all);
    assert_eq!(ahead("b"), Backlog { num_waiting: 0, num_uncached_tokens: 0 });
    let c = fairness.enter(Some("c"));
    (0..3).for_each(|_| fairness.begin_waiting(c, true, 9));
    let all = Backlog { num_waiting: 203, num_uncached_tokens: 2027 };
    assert_eq!(fairness.backlog_ahead(Some("c"), all), Backlog { num_waiting: 4, num_uncached_tokens: 36 });
}
