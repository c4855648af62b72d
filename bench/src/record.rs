//! What is known of a request when it has ended.

use std::time::Instant;

use crate::client::Answer;
use crate::client::failure::Failure;

/// A request that has ended. Times are seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Number of the session, and of the turn in it.
    pub session: u64,
    pub turn: u32,
    /// Time from the start of the run to the request.
    pub sent_s: f64,
    pub outcome: Result<Measured, Failure>,
}

/// A request with a complete answer. The definitions are those of `vllm bench serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Time from the request to the first event with output.
    pub ttft_s: f64,
    /// Time from the request to the last event with output.
    pub e2el_s: f64,
    /// Times between events with output.
    pub itl_s: Vec<f32>,
    pub prompt_tokens: u64,
    /// Tokens as the server counts them, or else events.
    pub output_tokens: u64,
    pub cached_tokens: Option<u64>,
    /// The output, if it is kept.
    pub text: Option<String>,
}

/// A request that was open when its run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    pub session: u64,
    pub turn: u32,
    /// Time from the start of the run to the request.
    pub sent_s: f64,
    /// Times from the request to each event with output.
    pub events_s: Vec<f64>,
}

impl Measured {
    pub fn new(sent: Instant, answer: &Answer) -> Self {
        let since_sent = |at: &Instant| at.duration_since(sent).as_secs_f64();
        let usage = answer.usage.unwrap_or_default();
        let counted = usage.completion_tokens;
        Self {
            ttft_s: answer.arrivals.first().map_or(0.0, since_sent),
            e2el_s: answer.arrivals.last().map_or(0.0, since_sent),
            itl_s: answer.arrivals.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f32()).collect(),
            prompt_tokens: usage.prompt_tokens,
            output_tokens: if counted > 0 { counted } else { answer.arrivals.len() as u64 },
            cached_tokens: usage.cached_tokens(),
            text: None,
        }
    }

    /// Returns the times from the request to each event with output.
    pub fn events_s(&self) -> impl Iterator<Item = f64> {
        let later = self.itl_s.iter().scan(self.ttft_s, |at, gap| {
            *at += f64::from(*gap);
            Some(*at)
        });
        std::iter::once(self.ttft_s).chain(later)
    }

    /// Returns the time per output token after the first; `None` for a single one.
    pub fn tpot_s(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) as f64)
    }
}
