//! A generation as a response: as server-sent events, or folded into one piece.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde::Serialize;

use crate::error::ApiError;
use crate::generate::{FinishReason, Generation, GenerationEvent, Output, OutputToken, Usage};
use crate::limits::KEEP_ALIVE;
use crate::metrics::Metrics;

/// A response of events.
fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = futures::StreamExt::map(events, Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies that buffer answers would hold tokens back.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// One event with JSON data.
pub fn json(data: &impl Serialize) -> Event {
    match Event::default().json_data(data) {
        Ok(event) => event,
        // Our own types have string keys and finite numbers, so this is a defect; the stream still gets an answer.
        Err(error) => {
            tracing::error!(%error, "an event cannot be written as JSON");
            Event::default().data("{\"error\":{\"message\":\"internal error\",\"code\":\"internal_error\"}}")
        }
    }
}

/// How a dialect writes a generation as events. Each call appends the events to send.
pub trait Render: Send + 'static {
    /// Before the first piece of output.
    fn begin(&mut self, _events: &mut VecDeque<Event>) {}
    /// A piece of output; the last one has `finish`.
    fn output(&mut self, output: Output, events: &mut VecDeque<Event>);
    /// The generation failed; nothing comes after it.
    fn failed(&mut self, error: &ApiError, events: &mut VecDeque<Event>);
}

/// The events of a generation as a response. Dropping the response's body drops the generation, which aborts it.
pub fn stream(generation: Generation, mut render: impl Render, metrics: Arc<Metrics>) -> Response {
    let mut events = VecDeque::new();
    render.begin(&mut events);
    let state = (generation, render, events, metrics);
    response(futures::stream::unfold(state, |(mut generation, mut render, mut events, metrics)| async move {
        loop {
            if let Some(event) = events.pop_front() {
                return Some((event, (generation, render, events, metrics)));
            }
            match generation.next().await? {
                GenerationEvent::Output(output) => render.output(output, &mut events),
                GenerationEvent::Failed(error) => {
                    tracing::warn!(code = error.code(), %error, "stream ended with an error");
                    metrics.observe_failure(error.class(), error.code());
                    render.failed(&error, &mut events);
                }
            }
        }
    }))
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
