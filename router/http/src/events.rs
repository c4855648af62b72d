//! Server-sent events, collected in a buffer that is sent in one write.
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use bytes::Bytes;
use serde::Serialize;

use super::event_frame::{EventFrame, write_event, write_json};

/// Events that are ready to be sent.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
}

impl Events {
    pub fn json(&mut self, data: &impl Serialize) {
        write_event(&mut self.bytes, data);
    }

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

    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes all events. The empty buffer holds no memory until the next event.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}
