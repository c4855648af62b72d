//! The headers in which TGI reports the times and token counts of a request.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Duration, Instant};

use trunkline_generation::fold::Folded;

#[derive(Debug)]
pub(super) struct Timings {
    arrived: Instant,
    /// The time at which the request was submitted.
    queued: Instant,
    num_characters: usize,
    device: String,
}

impl Timings {
    /// Starts the clock of a request that is submitted now.
    pub(super) fn queued_now(arrived: Instant, inputs: &str, device: &str) -> Self {
        let num_characters = inputs.chars().count();
        Self { arrived, queued: Instant::now(), num_characters, device: device.to_owned() }
    }

    /// Returns the headers that are known before anything is computed.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // Device names are ASCII. Any other name is left out.
        if let Ok(device) = HeaderValue::try_from(&self.device) {
            headers.insert("x-compute-type", device);
        }
        headers.insert("x-compute-characters", HeaderValue::from(self.num_characters));
        headers
    }

    /// Returns all headers, for a complete answer. `x-compute-time` is in seconds, the other times in whole
    /// milliseconds.
    pub(super) fn complete(&self, output: &Folded) -> HeaderMap {
        let now = Instant::now();
        let started = output.started.unwrap_or(self.queued);
        let inference = now.duration_since(started);
        let per_token = inference / output.usage.output_tokens.max(1);
        let mut headers = self.headers();
        let total = now.duration_since(self.arrived);
        if let Ok(seconds) = HeaderValue::try_from(total.as_secs_f64().to_string()) {
            headers.insert("x-compute-time", seconds);
        }
        for (name, time) in [
            ("x-total-time", total),
            ("x-validation-time", self.queued.duration_since(self.arrived)),
            ("x-queue-time", started.duration_since(self.queued)),
            ("x-inference-time", inference),
            ("x-time-per-token", per_token),
        ] {
            headers.insert(HeaderName::from_static(name), millis(time));
        }
        headers.insert("x-prompt-tokens", HeaderValue::from(output.usage.prompt_tokens));
        headers.insert("x-generated-tokens", HeaderValue::from(output.usage.output_tokens));
        headers
    }
}

fn millis(time: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
