use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use tokio::time::Instant;
use trunkline_base::tenants::rate_headers::{date, span};
use trunkline_base::tenants::{EXPOSED_HEADERS, Limiter, RateHeaders, RateSlot, TenantLimits};

#[test]
fn durations_are_written_as_openai_does() {
    for (ms, text) in [
        (0, "0s"),
        (17, "17ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_603_250, "1h0m3.25s"),
    ] {
        assert_eq!(span(Duration::from_millis(ms)), text);
    }
    assert_eq!(span(Duration::from_nanos(1)), "1ms");
}

#[test]
fn dates_are_rounded_up_to_whole_seconds() {
    let at = |ms| date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
    assert_eq!((at(0), at(1)), ("1970-01-01T00:00:00Z".into(), "1970-01-01T00:00:01Z".into()));
}

#[test]
fn each_dialect_has_its_own_headers_and_all_are_exposed() {
    let limits = TenantLimits {
        requests_per_minute: Some(60),
        tokens_per_minute: Some(1_000),
        max_concurrent_requests: None,
    };
    let limiter = Arc::new(Limiter::new(limits, Instant::now()));
    let slot = RateSlot::default();
    let mut headers = HeaderMap::new();
    slot.write(RateHeaders::OpenAi, &mut headers);
    assert!(headers.is_empty(), "no limits are set");
    slot.set(&limiter);
    limiter.take_output(2_000, Instant::now());
    slot.write(RateHeaders::OpenAi, &mut headers);
    assert_eq!(headers["x-ratelimit-limit-requests"], "60");
    assert_eq!(headers["x-ratelimit-remaining-requests"], "60");
    assert_eq!(headers["x-ratelimit-reset-requests"], "0s");
    assert_eq!(headers["x-ratelimit-remaining-tokens"], "0");
    slot.write(RateHeaders::Anthropic, &mut headers);
    assert_eq!(headers["anthropic-ratelimit-tokens-limit"], "1000");
    assert_eq!(headers["anthropic-ratelimit-requests-remaining"], "60");
    assert_eq!(headers.len(), 12);
    assert!(headers.keys().all(|name| EXPOSED_HEADERS.contains(name)));
}
