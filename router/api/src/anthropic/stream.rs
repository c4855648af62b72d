//! A reply as Anthropic's events: <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.

use serde::Serialize;
use serde_json::json;
use trunkline_reply::Piece;

use super::types::{Answer, ContentBlock, Usage};
use super::{ErrorResponse, stop_reason, stop_sequence};
use crate::chat::reply::{ReplyPlan, ReplyReader};
use crate::respond::ErrorForm;
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::generate::{self, Output};
use trunkline_http::Events;

/// The fields that are known before the first token.
pub struct Head {
    pub id: String,
    pub model: String,
    /// The priority class that was used, if the request named one.
    pub service_tier: Option<&'static str>,
}

impl Head {
    pub fn usage(&self, usage: generate::Usage) -> Usage {
        Usage { service_tier: self.service_tier, ..usage.into() }
    }

    /// Returns the answer before its first token.
    pub fn empty_answer(&self) -> Answer<'_> {
        Answer {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: self.usage(generate::Usage::default()),
        }
    }
}

/// A block that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Thinking,
    Text,
    Call,
}

/// The event that most tokens cause. It has its own type so that it is serialised without building a JSON value.
#[derive(Debug, Serialize)]
struct DeltaEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
    delta: Delta<'a>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

/// Writes a reply as events: `message_start`, the events of each block, `message_delta` and `message_stop`.
pub struct MessageStream {
    head: Head,
    stops: Vec<String>,
    reader: ReplyReader,
    open: Open,
    /// The number of blocks that have begun, including the open one.
    num_blocks: u32,
    has_calls: bool,
}

impl MessageStream {
    /// Creates the writer of one reply. `stops` are the request's stop strings.
    pub fn new(head: Head, stops: Vec<String>, reply: &ReplyPlan) -> Self {
        let reader = reply.reader();
        Self { head, stops, reader, open: Open::Nothing, num_blocks: 0, has_calls: false }
    }

    /// Returns the index of the block that is being written.
    fn index(&self) -> u32 {
        self.num_blocks.saturating_sub(1)
    }

    fn begin(&mut self, open: Open, block: &ContentBlock, events: &mut Events) {
        self.end(events);
        self.open = open;
        self.num_blocks += 1;
        let index = self.index();
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        events.named("content_block_start", &start);
    }

    fn end(&mut self, events: &mut Events) {
        if self.open != Open::Nothing {
            let stop = json!({"type": "content_block_stop", "index": self.index()});
            events.named("content_block_stop", &stop);
            self.open = Open::Nothing;
        }
    }

    fn delta(&self, delta: Delta<'_>, events: &mut Events) {
        const NAME: &str = "content_block_delta";
        events.named(NAME, &DeltaEvent { kind: NAME, index: self.index(), delta });
    }

    fn piece(&mut self, piece: Piece, events: &mut Events) {
        match piece {
            Piece::Text(text) => {
                if self.open != Open::Text {
                    self.begin(Open::Text, &ContentBlock::Text { text: String::new() }, events);
                }
                self.delta(Delta::Text { text: &text }, events);
            }
            Piece::Reasoning(thinking) => {
                if self.open != Open::Thinking {
                    let empty = ContentBlock::Thinking { thinking: String::new(), signature: String::new() };
                    self.begin(Open::Thinking, &empty, events);
                }
                self.delta(Delta::Thinking { thinking: &thinking }, events);
            }
            Piece::CallBegin { name } => {
                self.has_calls = true;
                let block = ContentBlock::ToolUse { id: self.reader.call_id(), name, input: json!({}) };
                self.begin(Open::Call, &block, events);
            }
            Piece::Arguments(text) => {
                self.delta(Delta::InputJson { partial_json: &text }, events);
            }
            Piece::CallEnd => self.end(events),
        }
    }
}

impl Render for MessageStream {
    fn started(&mut self, _index: usize, usage: generate::Usage, events: &mut Events) {
        let message = Answer { usage: self.head.usage(usage), ..self.head.empty_answer() };
        events.named("message_start", &json!({"type": "message_start", "message": message}));
        events.named("ping", &json!({"type": "ping"}));
    }

    fn output(&mut self, _index: usize, output: Output, events: &mut Events) {
        for piece in self.reader.read(&output.text, output.finish.is_some()) {
            self.piece(piece, events);
        }
        let Some((reason, usage)) = output.finish else { return };
        self.end(events);
        let delta = json!({
            "stop_reason": stop_reason(reason, self.has_calls),
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
