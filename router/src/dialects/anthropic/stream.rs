//! A reply as Anthropic's events: <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.

use serde::Serialize;
use serde_json::json;

use super::messages::stop_sequence;
use super::types::{Answer, ContentBlock, Usage};
use super::{ErrorResponse, stop_reason};
use crate::error::ApiError;
use crate::generate::{self, Output};
use crate::http::sse::Render;
use crate::http::{EventFrame, Events};

/// What all events of an answer know.
pub struct Head {
    /// Names the answer.
    pub id: String,
    /// The served model's name.
    pub model: String,
}

impl Head {
    /// The answer before its first token.
    pub fn empty_answer(&self) -> Answer<'_> {
        Answer {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: generate::Usage::default().into(),
        }
    }
}

/// Number of the one block that a reply of text has.
const TEXT_BLOCK: u32 = 0;

/// A piece of text.
#[derive(Serialize)]
struct TextDelta<'a> {
    r#type: &'static str,
    index: u32,
    delta: Delta<'a>,
}

#[derive(Serialize)]
struct Delta<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// `message_start`, a block of text if there is any, `message_delta`, `message_stop`.
pub struct MessageStream {
    head: Head,
    stops: Vec<String>,
    /// The event of a piece of text.
    piece: EventFrame,
    /// The text's block was begun.
    is_open: bool,
}

impl MessageStream {
    /// `stops`: the request's stop strings.
    pub fn new(head: Head, stops: Vec<String>) -> Self {
        let piece = EventFrame::named("content_block_delta", |text| TextDelta {
            r#type: "content_block_delta",
            index: TEXT_BLOCK,
            delta: Delta { r#type: "text_delta", text },
        });
        Self { head, stops, piece, is_open: false }
    }
}

impl Render for MessageStream {
    fn started(&mut self, _index: usize, usage: generate::Usage, events: &mut Events) {
        let message = Answer { usage: usage.into(), ..self.head.empty_answer() };
        events.named("message_start", &json!({"type": "message_start", "message": message}));
        events.named("ping", &json!({"type": "ping"}));
    }

    fn output(&mut self, _index: usize, output: Output, events: &mut Events) {
        if !output.text.is_empty() {
            if !self.is_open {
                self.is_open = true;
                let content_block = ContentBlock::Text { text: String::new() };
                let start = json!({"type": "content_block_start", "index": TEXT_BLOCK, "content_block": content_block});
                events.named("content_block_start", &start);
            }
            events.framed(&self.piece, &output.text);
        }
        let Some((reason, usage)) = output.finish else { return };
        if self.is_open {
            let stop = json!({"type": "content_block_stop", "index": TEXT_BLOCK});
            events.named("content_block_stop", &stop);
        }
        let delta = json!({
            "stop_reason": stop_reason(reason),
            "stop_sequence": stop_sequence(reason, &self.stops),
        });
        let usage = Usage::from(usage);
        events.named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        events.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.named("error", &ErrorResponse::from_error(error));
    }
}
