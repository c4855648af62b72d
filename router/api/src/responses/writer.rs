//! Writes a reply as output items and as events:
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

use bytes::Bytes;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use trunkline_reply::Piece;

use super::continued::Added;
use super::input::reply_messages;
use super::types::ResponseObject;
use crate::chat::reply::{ReplyPlan, ReplyReader};
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::generate::{self, FinishReason, Output};
use trunkline_http::Events;

/// An item that is being written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Message { id: String, text: String },
    Reasoning { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

impl Open {
    fn id(&self) -> &str {
        match self {
            Self::Message { id, .. } | Self::Reasoning { id, .. } | Self::Call { id, .. } => id,
        }
    }

    /// Returns the text to which deltas are appended.
    fn text_mut(&mut self) -> &mut String {
        match self {
            Self::Message { text, .. }
            | Self::Reasoning { text, .. }
            | Self::Call { arguments: text, .. } => text,
        }
    }

    fn item(&self, status: &str) -> Value {
        match self {
            Self::Message { id, text } => {
                let content = if text.is_empty() { json!([]) } else { json!([text_part(text)]) };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Self::Reasoning { id, text } => {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                let content = if text.is_empty() { json!([]) } else { content };
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Self::Call { id, call_id, name, arguments } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The event that most tokens cause. It has its own type so that it is serialised without building a JSON value.
#[derive(Debug, Serialize)]
struct DeltaEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    delta: &'a str,
    /// Present only for text, and always empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

/// An event about the whole response, which copies the request's fields as they are.
#[derive(Debug, Serialize)]
struct ResponseEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    response: &'a ResponseObject,
}

/// Writes one response, in one piece or as events.
pub struct ResponseWriter {
    response: ResponseObject,
    /// What to store with the response when it is complete.
    keeping: Option<Added>,
    reader: ReplyReader,
    open: Option<Open>,
    sequence_number: u64,
}

impl ResponseWriter {
    /// Creates the writer. `response` is the response before its first token.
    pub fn new(response: ResponseObject, reply: &ReplyPlan, keeping: Option<Added>) -> Self {
        Self { response, keeping, reader: reply.reader(), open: None, sequence_number: 0 }
    }

    /// Returns the JSON of the complete response for the whole output.
    pub fn whole(mut self, text: &str, reason: FinishReason, usage: generate::Usage) -> Bytes {
        // Items are built by the code that writes events, so events are written here, too, and then discarded.
        let mut events = Events::default();
        for piece in self.reader.read(text, true) {
            self.piece(piece, &mut events);
        }
        self.complete(reason, usage, &mut events);
        let json = self.response.json();
        self.keep(&json);
        json
    }

    fn event(&mut self, name: &str, data: Value, events: &mut Events) {
        let mut event = json!({"type": name, "sequence_number": self.sequence_number});
        if let (Value::Object(event), Value::Object(data)) = (&mut event, data) {
            event.extend(data);
        }
        self.sequence_number += 1;
        events.named(name, &event);
    }

    fn response_event(&mut self, kind: &'static str, events: &mut Events) {
        let event = ResponseEvent { kind, sequence_number: self.sequence_number, response: &self.response };
        events.named(kind, &event);
        self.sequence_number += 1;
    }

    /// Writes an event about the item that is being written.
    fn item_event(&mut self, name: &str, data: Value, events: &mut Events) {
        let Some(open) = &self.open else { return };
        let mut about = json!({"item_id": open.id(), "output_index": self.response.output.len()});
        if let (Value::Object(about), Value::Object(data)) = (&mut about, data) {
            about.extend(data);
        }
        self.event(name, about, events);
    }

    /// Appends to the item that is being written.
    fn delta(&mut self, delta: &str, events: &mut Events) {
        let output_index = self.response.output.len();
        let Some(open) = &mut self.open else { return };
        let (kind, content_index, logprobs) = match open {
            Open::Message { .. } => ("response.output_text.delta", Some(0), Some([])),
            Open::Reasoning { .. } => ("response.reasoning_text.delta", Some(0), None),
            Open::Call { .. } => ("response.function_call_arguments.delta", None, None),
        };
        let sequence_number = self.sequence_number;
        let item_id = open.id();
        let event =
            DeltaEvent { kind, sequence_number, item_id, output_index, content_index, delta, logprobs };
        events.named(kind, &event);
        self.sequence_number += 1;
        open.text_mut().push_str(delta);
    }

    fn begin(&mut self, open: Open, events: &mut Events) {
        self.end("completed", events);
        let (index, item) = (self.response.output.len(), open.item("in_progress"));
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), events);
        let is_message = matches!(open, Open::Message { .. });
        self.open = Some(open);
        if is_message {
            let part = json!({"content_index": 0, "part": text_part("")});
            self.item_event("response.content_part.added", part, events);
        }
    }

    fn end(&mut self, status: &str, events: &mut Events) {
        let Some(open) = self.open.clone() else { return };
        match &open {
            Open::Message { text, .. } => {
                let done = json!({"content_index": 0, "text": text, "logprobs": []});
                self.item_event("response.output_text.done", done, events);
                let part = json!({"content_index": 0, "part": text_part(text)});
                self.item_event("response.content_part.done", part, events);
            }
            Open::Reasoning { text, .. } => {
                let done = json!({"content_index": 0, "text": text});
                self.item_event("response.reasoning_text.done", done, events);
            }
            Open::Call { arguments, name, .. } => {
                let done = json!({"arguments": arguments, "name": name});
                self.item_event("response.function_call_arguments.done", done, events);
            }
        }
        let (index, item) = (self.response.output.len(), open.item(status));
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), events);
        self.response.output.push(item);
        self.open = None;
    }

    fn piece(&mut self, piece: Piece, events: &mut Events) {
        match piece {
            Piece::Text(delta) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    self.begin(Open::Message { id: id("msg"), text: String::new() }, events);
                }
                self.delta(&delta, events);
            }
            Piece::Reasoning(delta) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.begin(Open::Reasoning { id: id("rs"), text: String::new() }, events);
                }
                self.delta(&delta, events);
            }
            Piece::CallBegin { name } => {
                let call_id = self.reader.call_id();
                self.begin(Open::Call { id: id("fc"), call_id, name, arguments: String::new() }, events);
            }
            Piece::Arguments(delta) => self.delta(&delta, events),
            Piece::CallEnd => {
                // A call that a limit cut off, or that the model broke, has no valid arguments.
                let is_complete = self.open.as_mut().is_some_and(|open| is_json(open.text_mut()));
                self.end(if is_complete { "completed" } else { "incomplete" }, events);
            }
        }
    }

    /// Completes the response. Returns the name of the event that says so.
    fn complete(
        &mut self,
        reason: FinishReason,
        usage: generate::Usage,
        events: &mut Events,
    ) -> &'static str {
        let is_cut = reason == FinishReason::Length;
        let (status, event) = match is_cut {
            true => ("incomplete", "response.incomplete"),
            false => ("completed", "response.completed"),
        };
        self.end(status, events);
        self.response.status = status;
        self.response.incomplete_details = is_cut.then(|| json!({"reason": "max_output_tokens"}));
        self.response.usage = Some(usage.into());
        event
    }

    /// Stores the complete response, if it is to be stored.
    fn keep(&mut self, json: &Bytes) {
        if let Some(Added { store, owner, before, input, .. }) = self.keeping.take() {
            let reply = reply_messages(&self.response.output).into();
            store.put(owner.as_deref(), before, input, reply, self.response.stored(json.clone()));
        }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn id(kind: &str) -> String {
    format!("{kind}_{}", trunkline_base::random::id())
}

impl Render for ResponseWriter {
    fn begin(&mut self, events: &mut Events) {
        for name in ["response.created", "response.in_progress"] {
            self.response_event(name, events);
        }
    }

    fn output(&mut self, _index: usize, output: Output, events: &mut Events) {
        for piece in self.reader.read(&output.text, output.finish.is_some()) {
            self.piece(piece, events);
        }
        if let Some((reason, usage)) = output.finish {
            let event = self.complete(reason, usage, events);
            if self.keeping.is_some() {
                self.keep(&self.response.json());
            }
            self.response_event(event, events);
        }
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        self.end("incomplete", events);
        self.response.status = "failed";
        self.response.error = Some(json!({"code": error.code(), "message": error.to_string()}));
        self.response_event("response.failed", events);
    }
}
