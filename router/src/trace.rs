//! What happened in a request and when: a line of the log at its end, and a span for a tracing system.
//!
//! An exporter such as `trunkline-otlp` makes spans of the records and sends them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::http::{HeaderMap, Method};
use futures::future::BoxFuture;

/// The tokens of a request's sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    pub prompt: u32,
    /// Those of the prompt that were in the KV cache.
    pub cached: u32,
    pub output: u32,
}

/// The moments of a sequence, as its handler sees them.
#[derive(Debug, Clone)]
pub struct Timeline {
    pub submitted: SystemTime,
    /// The first step.
    pub started: Option<SystemTime>,
    pub first_token: Option<SystemTime>,
    pub last_token: Option<SystemTime>,
    /// The end or the abort.
    pub ended: SystemTime,
    pub tokens: TokenCounts,
}

/// What is known of a request at its end.
#[derive(Debug, Clone)]
pub struct Record {
    pub request_id: String,
    /// `chat` or `text_completion`.
    pub operation: &'static str,
    pub route: String,
    pub model: String,
    pub arrived: SystemTime,
    /// The status of the answer; `None` if the handler was dropped before it answered.
    pub status: Option<u16>,
    pub tenant: Option<String>,
    /// The code of the error that ended the request.
    pub error: Option<&'static str>,
    /// The client left before all choices had ended.
    pub is_aborted: bool,
    /// The tokens of all choices; `None` if no sequence was accepted.
    pub tokens: Option<TokenCounts>,
    /// Why each choice ended, by the names of OpenTelemetry's conventions.
    pub finish_reasons: Vec<&'static str>,
    /// A few at most, since a request may have thousands of choices.
    pub sequences: Vec<Timeline>,
}

/// The largest number of sequences of a request whose moments are kept.
pub const MAX_TIMELINES: usize = 16;

/// The span of a request that is still running.
pub trait RequestSpan: Send + Sync {
    fn end(self: Box<Self>, record: &Record);
}

/// Begins the span of an operation on a model, in the trace that the headers name (W3C Trace Context), or in a new one.
/// `None` if it is not sampled.
pub type BeginSpan = Arc<dyn Fn(&HeaderMap, &Record) -> Option<Box<dyn RequestSpan>> + Send + Sync>;

/// A running exporter.
pub struct Exporter {
    pub begin: BeginSpan,
    /// Sends what is left, for a few seconds at most.
    pub stop: BoxFuture<'static, ()>,
}

/// Returns the operation of a route that generates, and `None` for the others, which have no record.
pub fn operation(method: &Method, route: &str) -> Option<&'static str> {
    match route {
        _ if method != Method::POST => None,
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" => Some("chat"),
        "/v1/completions" | "/" | "/generate" | "/generate_stream" | "/invocations" | "/vertex" => {
            Some("text_completion")
        }
        _ => None,
    }
}

/// The record of a running request. It ends when it is dropped, which is when the answer was handed over.
pub struct RequestTrace {
    record: Mutex<Record>,
    span: Option<Box<dyn RequestSpan>>,
}

impl RequestTrace {
    pub fn new(record: Record, span: Option<Box<dyn RequestSpan>>) -> Self {
        Self { record: Mutex::new(record), span }
    }

    pub fn update(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        record.log();
        if let Some(span) = self.span.take() {
            span.end(record);
        }
    }
}

impl Record {
    /// Logs the end of a request that was accepted. The middleware logs refusals.
    fn log(&self) {
        let Some(tokens) = self.tokens else { return };
        let milliseconds = |from: SystemTime, to: SystemTime| {
            to.duration_since(from).map_or(0, |time| time.as_millis() as u64)
        };
        let now = SystemTime::now();
        let first = self.sequences.iter().filter_map(|sequence| sequence.first_token).min();
        let started = self.sequences.iter().filter_map(|sequence| sequence.started).min();
        let outcome = match self.error {
            Some(code) => code.to_owned(),
            None if self.is_aborted => "aborted".to_owned(),
            None => {
                let mut reasons = self.finish_reasons.clone();
                reasons.dedup();
                reasons.join(",")
            }
        };
        tracing::info!(
            request_id = self.request_id,
            route = self.route,
            status = self.status,
            tenant = self.tenant,
            outcome,
            prompt_tokens = tokens.prompt,
            cached_tokens = tokens.cached,
            output_tokens = tokens.output,
            queue_ms = started.map(|started| milliseconds(self.arrived, started)),
            ttft_ms = first.map(|first| milliseconds(self.arrived, first)),
            ms = milliseconds(self.arrived, now),
            "request ended"
        );
    }
}
