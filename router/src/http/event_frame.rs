//! Events that differ only in one string from token to token.

use serde::Serialize;

use super::events::json_event;

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
    /// breaks these rules, which is a defect of ours.
    pub fn new<T: Serialize>(event: impl Fn(&'static str) -> T) -> Self {
        let (empty, one) = (json_event(&event("")), json_event(&event("x")));
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

    /// Returns the bytes before the string.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the bytes after the string.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }
}
