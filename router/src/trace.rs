//! The spans of requests for a tracing system, by the OpenTelemetry conventions for generative AI.
//!
//! The router says what happened and when. An exporter such as `trunkline-otlp` makes spans of it and sends them.
//! Without one there is no span, and nothing is measured for it.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::{HeaderMap, Method};
use futures::future::BoxFuture;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

pub type Attributes = Vec<(&'static str, Value)>;

/// The span of a request. It ends when it is dropped, which is when the last byte of the answer was handed over.
pub trait RequestSpan: Send + Sync {
    /// Adds attributes, each of which must be new.
    fn set(&self, attributes: Attributes);

    /// Marks the request as failed.
    fn fail(&self, reason: String);

    /// Adds a part of the request as a span of its own.
    fn part(&self, name: &'static str, begin: SystemTime, end: SystemTime, attributes: Attributes);
}

/// Begins a span in the trace that the request's headers name (W3C Trace Context), or in a new one. `None` if it is not
/// sampled.
pub type BeginSpan =
    Arc<dyn Fn(&HeaderMap, String, Attributes) -> Option<Arc<dyn RequestSpan>> + Send + Sync>;

/// A running exporter.
pub struct Exporter {
    pub begin: BeginSpan,
    /// Sends what is left, for a few seconds at most.
    pub stop: BoxFuture<'static, ()>,
}

/// Returns the operation of a route that generates, and `None` for the others, which have no span.
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

/// The moments of one sequence, as its handler sees them. Dropping it adds the parts that were reached to the request's
/// span: `queue`, `prefill` and `decode`.
pub struct Timeline {
    span: Arc<dyn RequestSpan>,
    submitted: SystemTime,
    /// The time of the first step and the tokens that were cached.
    started: Option<(SystemTime, u32)>,
    first_token: Option<SystemTime>,
    last_token: SystemTime,
    prompt_tokens: u32,
    output_tokens: u32,
}

impl Timeline {
    pub fn new(span: Arc<dyn RequestSpan>, prompt_tokens: usize) -> Self {
        let submitted = SystemTime::now();
        Self {
            span,
            submitted,
            started: None,
            first_token: None,
            last_token: submitted,
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            output_tokens: 0,
        }
    }

    pub fn start(&mut self, cached_tokens: u32) {
        self.started.get_or_insert_with(|| (SystemTime::now(), cached_tokens));
    }

    pub fn token(&mut self) {
        self.last_token = SystemTime::now();
        self.first_token.get_or_insert(self.last_token);
        self.output_tokens += 1;
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let now = SystemTime::now();
        let started = self.started.map_or(now, |(at, _)| at);
        self.span.part("queue", self.submitted, started, Vec::new());
        let Some((started, cached_tokens)) = self.started else { return };
        let computed = self.prompt_tokens.saturating_sub(cached_tokens);
        let prefill = vec![
            ("trunkline.prompt_tokens.computed", computed.into()),
            ("trunkline.prompt_tokens.cached", cached_tokens.into()),
        ];
        self.span.part("prefill", started, self.first_token.unwrap_or(now), prefill);
        let Some(first) = self.first_token else { return };
        let decode = vec![("trunkline.output_tokens", self.output_tokens.into())];
        self.span.part("decode", first, self.last_token, decode);
    }
}
