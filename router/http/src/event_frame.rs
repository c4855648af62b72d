//! Events that differ only in one string from token to token.

use serde::Serialize;

/// The data that replaces a value which cannot be serialised. It reports a defect, because our types have string keys
/// and finite numbers.
const NOT_JSON: &[u8] = b"{\"error\":{\"message\":\"internal error\",\"code\":\"internal_error\"}}";

/// The start of an event's data. JSON is written without line breaks, so the data is one line.
const BEGIN: &[u8] = b"data: ";
/// The end of an event.
const END: &[u8] = b"\n\n";

/// An event without its one variable string. It is serialised once for each stream, so that a token costs only the
/// serialisation of its text.
///
/// ```text
/// data: {"id":"...","choices":[{"delta":{"content":  "text"  },"finish_reason":null}]}⏎⏎
/// ╰──────────────────── head ──────────────────────╯        ╰───────── tail ──────────╯
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFrame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl EventFrame {
    /// Creates the frame of `event`, a function that returns an event with the given text in it.
    ///
    /// The event must contain the text exactly once, as a JSON string, and nothing else in it may depend on the text.
    /// The frame is found by comparing two events, so that only the event's type knows its form. Panics if `event`
    /// breaks these rules, which is a defect of the server.
    pub fn new<T: Serialize>(event: impl Fn(&'static str) -> T) -> Self {
        let (empty, one) = (event_bytes(&event("")), event_bytes(&event("x")));
        // The first difference is right after the string's opening quote.
        let differ = empty.iter().zip(&one).position(|(a, b)| a != b).unwrap_or(0);
        let frame = Self {
            head: empty[..differ.saturating_sub(1)].to_vec(),
            tail: empty[(differ + 1).min(empty.len())..].to_vec(),
        };
        let whole = |text: &[u8]| [&frame.head, text, &frame.tail].concat();
        assert_eq!((whole(b"\"\""), whole(b"\"x\"")), (empty, one), "a framed event contains its text once");
        frame
    }

    pub fn head(&self) -> &[u8] {
        &self.head
    }

    pub fn tail(&self) -> &[u8] {
        &self.tail
    }
}

/// Appends an event whose data is `data` as JSON.
pub(super) fn write_event(bytes: &mut Vec<u8>, data: &impl Serialize) {
    bytes.extend_from_slice(BEGIN);
    write_json(bytes, data);
    bytes.extend_from_slice(END);
}

fn event_bytes(data: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_event(&mut bytes, data);
    bytes
}

/// Appends a value as JSON, or an error if it cannot be serialised.
pub(super) fn write_json<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, data: &T) {
    let begin = bytes.len();
    if let Err(error) = serde_json::to_writer(&mut *bytes, data) {
        tracing::error!(%error, "cannot serialise an event");
        bytes.truncate(begin);
        bytes.extend_from_slice(NOT_JSON);
    }
}
