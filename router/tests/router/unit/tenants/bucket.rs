use std::time::Duration;

use trunkline_base::tenants::bucket::Bucket;

const START: Duration = Duration::from_secs(1_000);

fn after_ms(ms: u64) -> Duration {
    START + Duration::from_millis(ms)
}

#[test]
fn the_amount_of_a_minute_is_available_at_once_and_refills_evenly() {
    let mut bucket = Bucket::new(60, START);
    for _ in 0..60 {
        assert_eq!(bucket.wait_for(1, START), Duration::ZERO);
        bucket.take(1, START);
    }
    assert_eq!((bucket.remaining(START), bucket.wait_for(1, START)), (0, Duration::from_secs(1)));
    assert_eq!(bucket.wait_for(1, after_ms(400)), Duration::from_millis(600));
    assert_eq!((bucket.remaining(after_ms(999)), bucket.remaining(after_ms(1_000))), (0, 1));
    assert_eq!(bucket.full_in(after_ms(1_000)), Duration::from_secs(59));
    assert_eq!(bucket.remaining(after_ms(3_600_000)), 60, "no more than a minute's worth");
}

#[test]
fn waits_are_exact_to_the_nanosecond() {
    for (per_minute, amount) in
        [(1, 1), (7, 3), (60, 60), (61, 17), (1_000_003, 999_983), (u32::MAX, 1 << 31)]
    {
        let mut bucket = Bucket::new(per_minute, START);
        bucket.take(u64::from(per_minute), START);
        let wait = bucket.wait_for(amount, START);
        let nanosecond = Duration::from_nanos(1);
        assert_eq!(bucket.clone().wait_for(amount, START + wait - nanosecond), nanosecond, "{per_minute}");
        assert_eq!(bucket.wait_for(amount, START + wait), Duration::ZERO, "{per_minute}");
    }
}

#[test]
fn a_debt_delays_the_next_request() {
    let mut bucket = Bucket::new(100, START);
    bucket.take(350, START);
    assert_eq!((bucket.remaining(START), bucket.clone().remaining(after_ms(149_000))), (0, 0));
    assert_eq!(bucket.wait_for(1, START), Duration::from_millis(150_600));
    assert_eq!(bucket.full_in(START), Duration::from_secs(210));
    bucket.give_back(350, START);
    assert_eq!(bucket.remaining(START), 100);
}

#[test]
fn an_amount_above_the_capacity_needs_a_full_bucket() {
    let mut bucket = Bucket::new(100, START);
    assert_eq!(bucket.wait_for(5_000, START), Duration::ZERO);
    bucket.take(5_000, START);
    assert_eq!(bucket.wait_for(5_000, START), Duration::from_secs(50 * 60));
}

#[test]
fn a_new_rate_keeps_the_fill_level() {
    let mut bucket = Bucket::new(1_000, START);
    bucket.take(750, START);
    bucket.set_rate(100, START);
    assert_eq!((bucket.remaining(START), bucket.per_minute()), (25, 100));
    bucket.take(125, START);
    bucket.set_rate(10, START);
    assert_eq!(bucket.full_in(START), Duration::from_secs(120), "the debt of a minute is one");
}

#[test]
fn the_rate_holds_over_many_minutes_for_any_requests() {
    let (mut bucket, mut now, mut taken) = (Bucket::new(6_000, START), START, 0);
    let mut state = 9_u64;
    while now < START + Duration::from_secs(3_600) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let amount = state >> 56;
        now += bucket.wait_for(amount, now);
        // Outputs are charged after they were admitted, so up to twice the amount is used.
        bucket.take(amount + (state >> 50 & 255), now);
        taken += amount + (state >> 50 & 255);
    }
    let allowed = 6_000 * 60 + 6_000 + 2 * 255;
    assert!((360_000..=allowed).contains(&taken), "{taken}");
}

#[test]
fn a_clock_that_moves_back_fills_nothing_twice() {
    let mut bucket = Bucket::new(60, START);
    bucket.take(60, START);
    assert_eq!(bucket.remaining(after_ms(5_000)), 5);
    assert_eq!(bucket.remaining(after_ms(2_000)), 5);
    assert_eq!(bucket.remaining(after_ms(6_000)), 6);
}
