use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_base::tenants::{LimitKind, Limiter, Rates, TenantLimits};

fn limits(requests: u32, tokens: u32, open: u32) -> TenantLimits {
    TenantLimits {
        requests_per_minute: Some(requests),
        tokens_per_minute: Some(tokens),
        max_concurrent_requests: Some(open),
    }
}

#[test]
fn a_rejection_names_its_limit_and_takes_nothing() {
    let now = Instant::now();
    let limiter = Arc::new(Limiter::new(limits(3, 1_000, 2), now));
    let first = limiter.admit(now).unwrap();
    let second = limiter.admit(now).unwrap();
    let refused = limiter.admit(now).unwrap_err();
    assert_eq!((refused.kind, refused.limit, refused.wait), (LimitKind::Concurrency, 2, Err(2)));
    drop(first);
    let third = limiter.admit(now).unwrap();
    drop((second, third));
    let refused = limiter.admit(now).unwrap_err();
    let wait = Ok(Duration::from_secs(20));
    assert_eq!((refused.kind, refused.limit, refused.wait), (LimitKind::Requests, 3, wait));
    let later = now + Duration::from_secs(20);
    drop(limiter.admit(later).unwrap());
    limiter.take_prompt(900, later).unwrap();
    let refused = limiter.take_prompt(101, later).unwrap_err();
    assert_eq!((refused.kind, refused.wait), (LimitKind::Tokens, Ok(Duration::from_millis(60))));
    assert_eq!(limiter.rates(later).tokens.unwrap().remaining, 100, "a refusal took something");
}

#[test]
fn requests_wait_while_the_tenant_is_in_debt() {
    let now = Instant::now();
    let tokens_alone = TenantLimits { tokens_per_minute: Some(1_000), ..TenantLimits::default() };
    let limiter = Arc::new(Limiter::new(tokens_alone, now));
    limiter.take_output(1_400, now);
    let refused = limiter.admit(now).unwrap_err();
    assert_eq!((refused.kind, refused.wait), (LimitKind::Tokens, Ok(Duration::from_millis(24_060))));
    assert!(limiter.admit(now + Duration::from_millis(24_060)).is_ok());
}

#[test]
fn places_are_returned_one_by_one() {
    let now = Instant::now();
    let unlimited = TenantLimits { max_concurrent_requests: Some(3), ..TenantLimits::default() };
    let limiter = Arc::new(Limiter::new(unlimited, now));
    let mut places = limiter.admit(now).unwrap();
    assert_eq!(places.take_more(3).unwrap_err().kind, LimitKind::Concurrency);
    places.take_more(2).unwrap();
    assert!(limiter.check(now).is_err());
    let (one, two) = (places.split().unwrap(), places.split().unwrap());
    assert!(places.split().is_none());
    drop(one);
    assert!(limiter.check(now).is_ok());
    drop((two, places));
    let all: Vec<_> = (0..3).map(|_| limiter.admit(now).unwrap()).collect();
    assert!(limiter.admit(now).is_err(), "{} places are taken", all.len());
}

#[test]
fn unlimited_tenants_are_not_counted() {
    let now = Instant::now();
    let limiter = Arc::new(Limiter::new(TenantLimits::default(), now));
    let places: Vec<_> = (0..1_000).map(|_| limiter.admit(now).unwrap()).collect();
    limiter.take_prompt(1 << 40, now).unwrap();
    assert_eq!((limiter.rates(now), places.len()), (Rates::default(), 1_000));
}

#[test]
fn changed_limits_keep_the_use() {
    let now = Instant::now();
    let limiter = Arc::new(Limiter::new(limits(100, 1_000, 5), now));
    let places: Vec<_> = (0..3).map(|_| limiter.admit(now).unwrap()).collect();
    limiter.set_limits(limits(1_000, 100, 3), now);
    assert_eq!(limiter.rates(now).requests.unwrap().remaining, 970);
    assert_eq!(limiter.admit(now).unwrap_err().kind, LimitKind::Concurrency);
    drop(places);
    limiter.give_back(3, 0, now);
    assert_eq!(limiter.rates(now).requests.unwrap().remaining, 973);
}

#[test]
fn requests_without_steps_take_a_place_or_a_request_but_not_both() {
    let now = Instant::now();
    let limiter = Arc::new(Limiter::new(limits(2, 1_000, 1), now));
    let open = limiter.open().unwrap();
    assert_eq!(limiter.rates(now).requests.unwrap().remaining, 2, "the rate is not charged");
    assert_eq!(limiter.open().unwrap_err().kind, LimitKind::Concurrency);
    // These need no place, and no tokens.
    limiter.take_output(5_000, now);
    limiter.take_request(now).unwrap();
    limiter.take_request(now).unwrap();
    let refused = limiter.take_request(now).unwrap_err();
    assert_eq!((refused.kind, refused.wait), (LimitKind::Requests, Ok(Duration::from_secs(30))));
    drop(open);
    drop(limiter.open().unwrap());
}
