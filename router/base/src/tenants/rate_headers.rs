//! The response headers that report a tenant's remaining rates. Anthropic's routes use Anthropic's headers, all others
//! OpenAI's.
//!
//! <https://platform.openai.com/docs/guides/rate-limits>, <https://docs.anthropic.com/en/api/rate-limits>

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::limiter::{Limiter, Rate};

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

/// The API whose header names are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateHeaders {
    /// `anthropic-ratelimit-...`, with the time of day at which a rate is whole again.
    Anthropic,
    /// `x-ratelimit-...`, with the time until then.
    OpenAi,
}

/// A slot for a request's limiter. The admission of a request fills it, and its response reports the remaining rates.
#[derive(Debug, Clone, Default)]
pub struct RateSlot(Arc<OnceLock<Arc<Limiter>>>);

impl RateSlot {
    /// Fills the slot with the limiter that the request counts against.
    pub fn set(&self, limiter: &Arc<Limiter>) {
        self.0.get_or_init(|| limiter.clone());
    }

    /// Adds the headers to a response if the slot is filled.
    pub fn write(&self, form: RateHeaders, headers: &mut HeaderMap) {
        let Some(limiter) = self.0.get() else { return };
        let rates = limiter.rates(Instant::now());
        for (what, rate) in [("requests", rates.requests), ("tokens", rates.tokens)] {
            let Some(rate) = rate else { continue };
            for (name, value) in fields(form, what, rate) {
                // Names and values consist of valid characters, so neither conversion fails.
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
    }
}

fn fields(form: RateHeaders, what: &str, rate: Rate) -> [(String, String); 3] {
    let values = [rate.limit.to_string(), rate.remaining.to_string()];
    let [limit, remaining] = values;
    match form {
        RateHeaders::Anthropic => [
            (format!("anthropic-ratelimit-{what}-limit"), limit),
            (format!("anthropic-ratelimit-{what}-remaining"), remaining),
            (format!("anthropic-ratelimit-{what}-reset"), date(SystemTime::now() + rate.full_in)),
        ],
        RateHeaders::OpenAi => [
            (format!("x-ratelimit-limit-{what}"), limit),
            (format!("x-ratelimit-remaining-{what}"), remaining),
            (format!("x-ratelimit-reset-{what}"), span(rate.full_in)),
        ],
    }
}

/// Formats a time as RFC 3339 and rounds it up to whole seconds.
pub fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// Formats a duration as OpenAI does, rounded up: `0s`, `17ms`, `1.5s`, `6m0s`, `1h0m3s`.
pub fn span(time: Duration) -> String {
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
