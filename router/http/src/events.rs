//! Events of a stream, collected in a buffer that is sent in one write.

use bytes::Bytes;
use serde::Serialize;

use super::event_frame::{EventFrame, write_event, write_json};

/// The form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamForm {
    /// Server-sent events: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.
    #[default]
    Events,
    /// A JSON value in each line: <https://github.com/ndjson/ndjson-spec>.
    Lines,
}

impl StreamForm {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }
}

/// Events that are ready to be sent.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
    form: StreamForm,
}

impl Events {
    pub fn new(form: StreamForm) -> Self {
        Self { bytes: Vec::new(), form }
    }

    /// Appends an event without a name.
    pub fn json(&mut self, data: &impl Serialize) {
        match self.form {
            StreamForm::Events => write_event(&mut self.bytes, data),
            StreamForm::Lines => {
                write_json(&mut self.bytes, data);
                self.bytes.push(b'\n');
            }
        }
    }

    /// Appends a server-sent event with a name.
    pub fn named(&mut self, name: &str, data: &impl Serialize) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.json(data);
    }

    /// Appends the frame's server-sent event with `text` in it.
    pub fn framed(&mut self, frame: &EventFrame, text: &str) {
        self.bytes.extend_from_slice(frame.head());
        write_json(&mut self.bytes, text);
        self.bytes.extend_from_slice(frame.tail());
    }

    /// Appends the marker that ends a stream of OpenAI's API.
    pub fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Appends what clients skip: an empty comment, or a space before the JSON of the next line.
    pub fn comment(&mut self) {
        self.bytes.extend_from_slice(match self.form {
            StreamForm::Events => b":\n\n",
            StreamForm::Lines => b" ",
        });
    }

    /// Appends what clients skip, with a text where the form has room for one.
    pub fn note(&mut self, text: &str) {
        match self.form {
            StreamForm::Events => {
                // A comment ends at the end of its line.
                self.bytes.extend_from_slice(format!(": {}\n\n", text.replace(['\r', '\n'], " ")).as_bytes());
            }
            StreamForm::Lines => self.comment(),
        }
    }

    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes all events. The empty buffer holds no memory until the next event.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}
