//! What happened in a request and when: a line of the log at its end, and a span for a tracing system.
//!
//! An exporter such as `trunkline-otlp` makes spans of the records and sends them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use futures::future::BoxFuture;

/// The target of the lines of which each request has one.
pub const ACCESS_LOG: &str = "trunkline_router::access";

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
    /// The tokens that were read from the store before the first step, and the time that this took.
    pub restored: Option<(u32, Duration)>,
    pub first_token: Option<SystemTime>,
    pub last_token: Option<SystemTime>,
    /// The end or the abort.
    pub ended: SystemTime,
    pub tokens: TokenCounts,
}

impl Timeline {
    /// Returns the timeline of a request that is submitted now.
    pub fn begin(tokens: TokenCounts) -> Self {
        let now = SystemTime::now();
        let (started, first_token, last_token) = (None, None, None);
        Self { submitted: now, started, restored: None, first_token, last_token, ended: now, tokens }
    }
}

/// What is known of a request at its end.
#[derive(Debug, Clone)]
pub struct Record {
    pub request_id: String,
    /// `chat`, `text_completion` or `embeddings`.
    pub operation: &'static str,
    pub route: String,
    /// The name by which the request chose the model or an adapter.
    pub model: String,
    pub adapter: Option<Arc<str>>,
    pub arrived: SystemTime,
    /// The status of the answer; `None` if the handler was dropped before it answered.
    pub status: Option<u16>,
    pub tenant: Option<String>,
    /// The code of the error that ended the request.
    pub error: Option<&'static str>,
    /// The client left before all choices had ended.
    pub is_aborted: bool,
    /// The tokens of all choices; `None` if the request was refused.
    pub tokens: Option<TokenCounts>,
    /// Why each choice ended, by the names of OpenTelemetry's conventions.
    pub finish_reasons: Vec<&'static str>,
    /// The time at which the request's grammar was ready, and how long it took to compile it or to find it among the
    /// compiled ones.
    pub grammar: Option<(SystemTime, Duration)>,
    /// A few at most, since a request may have thousands of choices.
    pub sequences: Vec<Timeline>,
}

/// Names a span in the trace that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanIds {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
}

impl SpanIds {
    /// Returns the trace's id as W3C Trace Context and logs spell it.
    pub fn trace(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.trace_id))
    }

    /// Returns the span's id as W3C Trace Context and logs spell it.
    pub fn span(&self) -> String {
        format!("{:016x}", u64::from_be_bytes(self.span_id))
    }
}

/// A step that a shard computed.
#[derive(Debug, Clone)]
pub struct StepRecord {
    /// The lane of the shard that computed it.
    pub lane: u32,
    pub step_id: u64,
    /// The time at which its result arrived.
    pub ended: SystemTime,
    /// The time that the device worked on it.
    pub device_time: Duration,
    pub num_tokens: u64,
    pub num_sequences: usize,
    /// The spans of requests whose sequences it computed.
    pub requests: Vec<SpanIds>,
}

/// The largest number of sequences of a request whose moments are kept.
pub const MAX_TIMELINES: usize = 16;

/// The span of a request that is still running.
pub trait RequestSpan: Send + Sync {
    fn ids(&self) -> SpanIds;

    fn end(self: Box<Self>, record: &Record);
}

/// Receives what happens, for a system outside. No method waits for that system.
pub trait Telemetry: Send + Sync {
    /// Begins the span of an operation on a model, in the trace that the headers name (W3C Trace Context), or in a new
    /// one. `None` if it is not sampled.
    fn begin(&self, headers: &HeaderMap, record: &Record) -> Option<Box<dyn RequestSpan>>;

    /// Measures a request that has ended, sampled or not.
    fn measure(&self, record: &Record);

    /// Adds the span of a step.
    fn step(&self, step: &StepRecord);

    /// Ends the spans of the start, since the first shard computes. Later calls change nothing.
    fn started(&self) {}
}

/// The receiver of an exporter, once it runs. It never changes then.
pub type TelemetrySlot = Arc<OnceLock<Arc<dyn Telemetry>>>;

/// A running exporter.
pub struct Exporter {
    pub telemetry: Arc<dyn Telemetry>,
    /// Sends what is left, for a few seconds at most.
    pub stop: BoxFuture<'static, ()>,
}

/// The record of a running request. It ends when it is dropped, which is when the answer was handed over.
pub struct RequestTrace {
    record: Mutex<Record>,
    span: Option<Box<dyn RequestSpan>>,
    telemetry: TelemetrySlot,
}

impl RequestTrace {
    /// Begins the record, and its span if there is an exporter.
    pub fn begin(record: Record, headers: &HeaderMap, telemetry: TelemetrySlot) -> Self {
        let span = telemetry.get().and_then(|telemetry| telemetry.begin(headers, &record));
        Self { record: Mutex::new(record), span, telemetry }
    }

    /// The ids of the span; `None` if the request is not sampled.
    pub fn span_ids(&self) -> Option<SpanIds> {
        self.span.as_ref().map(|span| span.ids())
    }

    pub fn update<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let ids = self.span_ids();
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        record.log(ids);
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.measure(record);
        }
        if let Some(span) = self.span.take() {
            span.end(record);
        }
    }
}

impl Record {
    /// The time of the first token of any choice.
    pub fn first_token(&self) -> Option<SystemTime> {
        self.sequences.iter().filter_map(|sequence| sequence.first_token).min()
    }

    /// Notes the error that was answered. A request of which no step was computed was refused: it gets no other line
    /// than that of its refusal. Returns true if that is so.
    pub fn fail(&mut self, code: &'static str) -> bool {
        self.error = Some(code);
        let is_refused = self.sequences.iter().all(|sequence| sequence.started.is_none());
        if is_refused {
            self.tokens = None;
        }
        is_refused
    }

    /// Logs the end of a request that was accepted. The middleware logs refusals.
    fn log(&self, ids: Option<SpanIds>) {
        let Some(tokens) = self.tokens else { return };
        let milliseconds = |from: SystemTime, to: SystemTime| {
            to.duration_since(from).map_or(0, |time| time.as_millis() as u64)
        };
        let now = SystemTime::now();
        let first = self.first_token();
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
            target: ACCESS_LOG,
            request_id = self.request_id,
            trace_id = ids.map(|ids| ids.trace()),
            span_id = ids.map(|ids| ids.span()),
            route = self.route,
            status = self.status,
            tenant = self.tenant,
            adapter = self.adapter.as_deref(),
            outcome,
            code = self.error,
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
