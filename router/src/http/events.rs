//! Server-sent events, collected in a buffer that is sent in one write.
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use bytes::Bytes;
use serde::Serialize;

use super::EventFrame;

/// Sent if one of our types cannot be serialised, so that the stream still gets an answer. It is a defect, because our
/// types have string keys and finite numbers.
const NOT_JSON: &[u8] = b"{\"error\":{\"message\":\"internal error\",\"code\":\"internal_error\"}}";

/// The start of an event's data. JSON is written without line breaks, so the data is one line.
const BEGIN: &[u8] = b"data: ";
/// The end of an event.
const END: &[u8] = b"\n\n";

/// Events that are ready to be sent.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Appends an event with JSON data.
    pub fn json(&mut self, data: &impl Serialize) {
        self.bytes.extend_from_slice(BEGIN);
        write_json(&mut self.bytes, data);
        self.bytes.extend_from_slice(END);
    }

    /// Appends an event of this name with JSON data.
    pub fn named(&mut self, name: &str, data: &impl Serialize) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.json(data);
    }

    /// Appends the frame's event with `text` in it.
    pub fn framed(&mut self, frame: &EventFrame, text: &str) {
        self.bytes.extend_from_slice(frame.head());
        write_json(&mut self.bytes, text);
        self.bytes.extend_from_slice(frame.tail());
    }

    /// Appends the marker that ends a stream of OpenAI's API.
    pub fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Appends an empty comment, which clients skip.
    pub fn comment(&mut self) {
        self.bytes.extend_from_slice(b":\n\n");
    }

    /// Returns the number of bytes of all events.
    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes all events. The empty buffer holds no memory until the next event.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

/// Returns the bytes of one event with JSON data.
pub(super) fn json_event(data: &impl Serialize) -> Vec<u8> {
    let mut events = Events::default();
    events.json(data);
    events.bytes
}

fn write_json<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, data: &T) {
    let begin = bytes.len();
    if let Err(error) = serde_json::to_writer(&mut *bytes, data) {
        tracing::error!(%error, "cannot serialise an event");
        bytes.truncate(begin);
        bytes.extend_from_slice(NOT_JSON);
    }
}
