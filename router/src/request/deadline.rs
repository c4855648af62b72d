//! When a request's time is over, and who said so.

use std::time::Duration;

use axum::http::HeaderMap;
use tokio::time::Instant;

use crate::error::ApiError;

/// Seconds that a client gives its request; a body's `timeout` is the same. (`x-stainless-timeout`, which the packages
/// of OpenAI and Anthropic send, is how long they wait for one answer of several tries: it means nothing here.)
const REQUEST_TIMEOUT: &str = "x-request-timeout";
/// Longest time that a request may ask for, in seconds.
const MAX_SECONDS: f64 = 86_400.0;

/// The end of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When.
    pub at: Instant,
    /// How long that is after it came.
    pub after: Duration,
    /// The field, header or flag that set it.
    pub by: &'static str,
}

impl Deadline {
    /// The earliest of those that its header, its body (`timeout`) and the flag set, if any does.
    pub fn new(
        arrived: Instant,
        header: Option<Duration>,
        timeout: Option<f64>,
        flag: Option<Duration>,
    ) -> Result<Option<Self>, ApiError> {
        let timeout = timeout.map(|value| seconds("timeout", value)).transpose()?;
        let named = [(timeout, "timeout"), (header, REQUEST_TIMEOUT), (flag, "--request-timeout")];
        let set = named.into_iter().filter_map(|(after, by)| Some((after?, by)));
        let earliest = set.min_by_key(|(after, _)| *after);
        Ok(earliest.map(|(after, by)| Self { at: arrived + after, after, by }))
    }

    /// Its time is over.
    pub fn exceeded(&self) -> ApiError {
        ApiError::DeadlineExceeded { limit_s: self.after.as_secs_f64(), by: self.by }
    }
}

/// What the request's header says.
pub fn header_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(REQUEST_TIMEOUT) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let number: f64 = number
        .ok_or_else(|| ApiError::value(REQUEST_TIMEOUT, "is not a number of seconds; hint: such as 2.5"))?;
    seconds(REQUEST_TIMEOUT, number).map(Some)
}

fn seconds(field: &str, value: f64) -> Result<Duration, ApiError> {
    // Written so that NaN fails.
    if !(value > 0.0 && value <= MAX_SECONDS) {
        let problem = format!("is {value}, must be greater than 0 and at most {MAX_SECONDS} seconds");
        return Err(ApiError::value(field, problem));
    }
    // A time too short for a clock is still one.
    Ok(Duration::from_secs_f64(value).max(Duration::from_nanos(1)))
}
