//! Sends a generation as a response of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use tokio::time::{Instant, Sleep};

use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_WRITE_BYTES;
use trunkline_base::metrics::Metrics;
use trunkline_generation::choices::Choices;
use trunkline_generation::generate::{GenerationEvent, Output, ScoredPrompt, Usage};
use trunkline_http::{Events, StreamForm};

/// Writes a generation as events of one dialect. Each call appends the events to send.
pub trait Render: Send + Unpin + 'static {
    const FORM: StreamForm = StreamForm::Events;

    /// Called once, before anything else.
    fn begin(&mut self, _events: &mut Events) {}
    /// Called when the first step of a choice is planned. `usage` counts no output yet.
    fn started(&mut self, _index: usize, _usage: Usage, _events: &mut Events) {}
    /// Called with the logprobs of a prompt, before any output of its choices. `index` is the first of these choices.
    fn prompt(&mut self, _index: usize, _prompt: Arc<ScoredPrompt>, _events: &mut Events) {}
    /// Appends the next event that shows a prompt, and returns true until there is none. No output is rendered before.
    fn prompts(&mut self, _events: &mut Events) -> bool {
        false
    }
    /// Called for each piece of a choice's output. The last piece has `finish`.
    fn output(&mut self, index: usize, output: Output, events: &mut Events);
    /// Called last, when all choices have ended.
    fn finished(&mut self, _usage: Usage, _events: &mut Events) {}
    /// Called last, when a choice failed. The failure ends the whole request.
    fn failed(&mut self, error: &ApiError, events: &mut Events);
}

/// Returns the events of a request as a response. Dropping the response's body aborts the choices.
/// After each `pause` without an event, a comment keeps the connection open.
pub fn stream<R: Render>(
    choices: Choices,
    mut render: R,
    pause: Duration,
    metrics: Arc<Metrics>,
) -> Response {
    let mut events = Events::new(R::FORM);
    render.begin(&mut events);
    let quiet_since = Instant::now();
    let keep_alive = Box::pin(tokio::time::sleep_until(quiet_since + pause));
    let body = EventBody { choices, render, events, metrics, ended: false, quiet_since, pause, keep_alive };
    event_stream(Body::new(body), R::FORM)
}

/// Returns a response of events.
pub(crate) fn event_stream(body: Body, form: StreamForm) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(form.content_type())),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Tells proxies not to buffer, because they would delay tokens.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

/// The body of a streamed answer. Each frame has all events that are ready, so that they leave in one write. An event
/// never waits for others.
struct EventBody<R> {
    choices: Choices,
    render: R,
    /// Events that are rendered but not yet sent.
    events: Events,
    metrics: Arc<Metrics>,
    /// True once the last event is rendered.
    ended: bool,
    /// The time of the last write. Each token updates it; the timer catches up only when it fires.
    quiet_since: Instant,
    /// The longest time without an event.
    pause: Duration,
    keep_alive: Pin<Box<Sleep>>,
}

impl<R: Render> EventBody<R> {
    /// Renders the available events, up to the size of one write.
    fn gather(&mut self, cx: &mut Context<'_>) {
        while !self.ended && self.events.num_bytes() < MAX_WRITE_BYTES {
            if self.render.prompts(&mut self.events) {
                continue;
            }
            match self.choices.poll_next(cx) {
                Poll::Ready(Some((index, GenerationEvent::Started(usage)))) => {
                    self.render.started(index, usage, &mut self.events);
                }
                Poll::Ready(Some((index, GenerationEvent::Prompt(prompt)))) => {
                    self.render.prompt(index, prompt, &mut self.events);
                }
                Poll::Ready(Some((index, GenerationEvent::Output(output)))) => {
                    self.render.output(index, output, &mut self.events);
                    if self.choices.is_over() {
                        self.ended = true;
                        self.render.finished(self.choices.usage(), &mut self.events);
                    }
                }
                Poll::Ready(Some((_, GenerationEvent::Failed(error)))) => {
                    let request_id = self.choices.request_id().as_str();
                    tracing::warn!(request_id, code = error.code(), %error, "stream ended with an error");
                    self.metrics.observe_failure(error.class(), error.code());
                    self.ended = true;
                    self.render.failed(&error, &mut self.events);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return,
            }
        }
    }

    /// Returns ready if nothing was sent for `pause`.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.keep_alive.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), self.quiet_since + self.pause);
            if due <= now {
                let next = now + self.pause;
                self.keep_alive.as_mut().reset(next);
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
