//! What is left of a tenant's rates, on its answers: OpenAI's headers, or Anthropic's on its routes.
//!
//! <https://platform.openai.com/docs/guides/rate-limits>, <https://docs.anthropic.com/en/api/rate-limits>

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::limiter::{Limiter, Rate};
use crate::dialects::Dialect;
use crate::log::timestamp;

/// Headers that a script in a browser may read, beyond those that it always may (WHATWG Fetch, section 3.2.3).
pub const EXPOSED_HEADERS: [HeaderName; 15] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
    HeaderName::from_static("anthropic-ratelimit-requests-limit"),
    HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
    HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
    HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
    HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
];

/// Travels with a request: whoever asks for its tenant's limits puts them in, and its answer shows what is left.
#[derive(Debug, Clone, Default)]
pub struct RateSlot(Arc<OnceLock<Arc<Limiter>>>);

impl RateSlot {
    /// This request counts against these limits.
    pub fn set(&self, limiter: &Arc<Limiter>) {
        self.0.get_or_init(|| limiter.clone());
    }

    /// Adds the headers, if the request counts.
    pub(super) fn write(&self, dialect: Dialect, headers: &mut HeaderMap) {
        let Some(limiter) = self.0.get() else { return };
        let rates = limiter.rates(Instant::now());
        for (what, rate) in [("requests", rates.requests), ("tokens", rates.tokens)] {
            let Some(rate) = rate else { continue };
            for (name, value) in fields(dialect, what, rate) {
                // Both are made of letters, digits and dashes.
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
    }
}

fn fields(dialect: Dialect, what: &str, rate: Rate) -> [(String, String); 3] {
    let values = [rate.limit.to_string(), rate.remaining.to_string()];
    let [limit, remaining] = values;
    match dialect {
        Dialect::Anthropic => [
            (format!("anthropic-ratelimit-{what}-limit"), limit),
            (format!("anthropic-ratelimit-{what}-remaining"), remaining),
            (format!("anthropic-ratelimit-{what}-reset"), date(SystemTime::now() + rate.full_in)),
        ],
        Dialect::OpenAi | Dialect::Tgi => [
            (format!("x-ratelimit-limit-{what}"), limit),
            (format!("x-ratelimit-remaining-{what}"), remaining),
            (format!("x-ratelimit-reset-{what}"), span(rate.full_in)),
        ],
    }
}

/// RFC 3339, in seconds, not before the time itself.
fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    timestamp(seconds, 0).replace(".000Z", "Z")
}

/// As OpenAI writes it: `0s`, `17ms`, `1.5s`, `6m0s`, `1h0m3s`; not shorter than it is.
fn span(time: Duration) -> String {
    let ms = time.as_nanos().div_ceil(1_000_000);
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let (seconds, rest) = (ms / 1_000 % 60, ms % 1_000);
    if 0 < ms && ms < 1_000 {
        return format!("{ms}ms");
    }
    let fraction = format!(".{rest:03}");
    let fraction = if rest == 0 { "" } else { fraction.trim_end_matches('0') };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{fraction}s"),
        (0, minutes) => format!("{minutes}m{seconds}{fraction}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::TenantLimits;

    #[test]
    fn spans_are_written_as_openai_does() {
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
    fn dates_are_whole_seconds_not_too_early() {
        let at = |ms| date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!((at(0), at(1)), ("1970-01-01T00:00:00Z".into(), "1970-01-01T00:00:01Z".into()));
    }

    #[test]
    fn each_dialect_has_its_own_headers_and_all_of_them_are_exposed() {
        let limits = TenantLimits {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(1_000),
            max_concurrent_requests: None,
        };
        let limiter = Arc::new(Limiter::new(limits, Instant::now()));
        let slot = RateSlot::default();
        let mut headers = HeaderMap::new();
        slot.write(Dialect::OpenAi, &mut headers);
        assert!(headers.is_empty(), "nobody asked for limits");
        slot.set(&limiter);
        limiter.take_output(2_000, Instant::now());
        slot.write(Dialect::OpenAi, &mut headers);
        assert_eq!(headers["x-ratelimit-limit-requests"], "60");
        assert_eq!(headers["x-ratelimit-remaining-requests"], "60");
        assert_eq!(headers["x-ratelimit-reset-requests"], "0s");
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "0");
        slot.write(Dialect::Anthropic, &mut headers);
        assert_eq!(headers["anthropic-ratelimit-tokens-limit"], "1000");
        assert_eq!(headers["anthropic-ratelimit-requests-remaining"], "60");
        assert_eq!(headers.len(), 12);
        assert!(headers.keys().all(|name| EXPOSED_HEADERS.contains(name)));
    }
}
