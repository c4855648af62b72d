//! The deadline of a request, and the field, header or flag that sets it.

use std::time::Duration;

use axum::http::HeaderMap;
use tokio::time::Instant;

use trunkline_base::error::ApiError;

/// The header with a request's timeout in seconds, equivalent to `timeout` in the body. `x-stainless-timeout`, which
/// the packages of OpenAI and Anthropic send, is ignored: it is the time that they wait for one of several attempts.
const REQUEST_TIMEOUT: &str = "x-request-timeout";
/// The longest timeout that a request may ask for.
const MAX_SECONDS: f64 = 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    pub at: Instant,
    /// The time from the request's arrival to the deadline.
    pub after: Duration,
    /// The field, header or flag that set it.
    pub by: &'static str,
}

impl Deadline {
    /// Returns the earliest deadline of those that the header, the body's `timeout` and the flag set, if any.
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

    /// Returns the error for a request that missed the deadline.
    pub fn exceeded(&self) -> ApiError {
        ApiError::DeadlineExceeded { limit_s: self.after.as_secs_f64(), by: self.by }
    }
}

/// Reads the timeout in a request's header.
pub fn header_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(REQUEST_TIMEOUT) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let number: f64 =
        number.ok_or_else(|| ApiError::value(REQUEST_TIMEOUT, "must be a number of seconds, such as 2.5"))?;
    seconds(REQUEST_TIMEOUT, number).map(Some)
}

fn seconds(field: &str, value: f64) -> Result<Duration, ApiError> {
    // The comparison is negated so that NaN fails.
    if !(value > 0.0 && value <= MAX_SECONDS) {
        let problem = format!("is {value}, must be greater than 0 and at most {MAX_SECONDS} seconds");
        return Err(ApiError::value(field, problem));
    }
    // A timeout that rounds to zero is still a timeout.
    Ok(Duration::from_secs_f64(value).max(Duration::from_nanos(1)))
}
