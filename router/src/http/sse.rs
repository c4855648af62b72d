//! A generation as a response: as server-sent events, or folded into one piece.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use tokio::time::{Instant, Sleep};

use super::Events;
use crate::error::ApiError;
use crate::generate::{FinishReason, Generation, GenerationEvent, Output, OutputToken, Usage};
use crate::limits::{KEEP_ALIVE, MAX_WRITE_BYTES};
use crate::metrics::Metrics;

/// How a dialect writes a generation as events. Each call appends the events to send.
pub trait Render: Send + Unpin + 'static {
    /// Before the first piece of output.
    fn begin(&mut self, _events: &mut Events) {}
    /// A piece of output; the last one has `finish`.
    fn output(&mut self, output: Output, events: &mut Events);
    /// The generation failed; nothing comes after it.
    fn failed(&mut self, error: &ApiError, events: &mut Events);
}

/// The events of a generation as a response. Dropping the response's body drops the generation, which aborts it.
pub fn stream(generation: Generation, mut render: impl Render, metrics: Arc<Metrics>) -> Response {
    let mut events = Events::default();
    render.begin(&mut events);
    let quiet_since = Instant::now();
    let keep_alive = Box::pin(tokio::time::sleep_until(quiet_since + KEEP_ALIVE));
    let body = EventBody { generation, render, events, metrics, ended: false, quiet_since, keep_alive };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Proxies that buffer answers would hold tokens back.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::new(body)).into_response()
}

/// The body of a streamed answer: each frame is all events that are ready, so that they leave in one write; a lone one
/// never waits for company.
struct EventBody<R> {
    generation: Generation,
    render: R,
    /// Rendered and not yet taken.
    events: Events,
    metrics: Arc<Metrics>,
    /// The generation said its last word.
    ended: bool,
    /// When something was sent last. Each token moves it; the timer follows only when it fires.
    quiet_since: Instant,
    keep_alive: Pin<Box<Sleep>>,
}

impl<R: Render> EventBody<R> {
    /// Renders all that is ready, up to the size of a write.
    fn gather(&mut self, cx: &mut Context<'_>) {
        while !self.ended && self.events.num_bytes() < MAX_WRITE_BYTES {
            match self.generation.poll_next(cx) {
                Poll::Ready(Some(GenerationEvent::Output(output))) => {
                    self.ended = output.finish.is_some();
                    self.render.output(output, &mut self.events);
                }
                Poll::Ready(Some(GenerationEvent::Failed(error))) => {
                    tracing::warn!(code = error.code(), %error, "stream ended with an error");
                    self.metrics.observe_failure(error.class(), error.code());
                    self.ended = true;
                    self.render.failed(&error, &mut self.events);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return,
            }
        }
    }

    /// Ready when nothing was sent for as long as proxies keep a silent connection open.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.keep_alive.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), self.quiet_since + KEEP_ALIVE);
            if due <= now {
                self.keep_alive.as_mut().reset(now + KEEP_ALIVE);
                return Poll::Ready(());
            }
            self.keep_alive.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl<R: Render> hyper::body::Body for EventBody<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        body.gather(cx);
        if body.events.num_bytes() == 0 {
            if body.ended {
                return Poll::Ready(None);
            }
            match body.poll_quiet(cx) {
                Poll::Ready(()) => body.events.comment(),
                Poll::Pending => return Poll::Pending,
            }
        }
        body.quiet_since = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(body.events.take()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.events.num_bytes() == 0
    }
}

/// Whether a fold keeps the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepTokens {
    /// Text and usage are enough.
    No,
    /// The answer shows them.
    Yes,
}

/// A whole output.
#[derive(Debug)]
pub struct Folded {
    /// Its text.
    pub text: String,
    /// Its tokens, if kept.
    pub tokens: Vec<OutputToken>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}

/// Folds the events into the whole output, for answers in one piece.
pub async fn fold(mut generation: Generation, keep: KeepTokens) -> Result<Folded, ApiError> {
    let mut text = String::new();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().await {
        match event {
            GenerationEvent::Output(output) => {
                text.push_str(&output.text);
                if keep == KeepTokens::Yes {
                    tokens.extend(output.token);
                }
                if let Some((reason, usage)) = output.finish {
                    return Ok(Folded { text, tokens, reason, usage });
                }
            }
            GenerationEvent::Failed(error) => return Err(error),
        }
    }
    Err(ApiError::Bug { request_id: crate::random::id() })
}
