//! An event of which only one text changes from token to token.

use serde::Serialize;

use super::events::json_event;

/// Everything of an event but one string: written once per stream, so that a token costs its own text alone.
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
    /// The frame of `event`, which writes the text that it is given once, as a JSON string; all else in it must not
    /// depend on the text.
    ///
    /// Found by comparing two events, so that the type that documents the event stays the only place that knows its
    /// form. Panics if `event` does not keep to that, which is a defect of ours.
    pub fn new<T: Serialize>(event: impl Fn(&'static str) -> T) -> Self {
        let (empty, one) = (json_event(&event("")), json_event(&event("x")));
        // The first difference stands right after the string's opening quote.
        let differ = empty.iter().zip(&one).position(|(a, b)| a != b).unwrap_or(0);
        let frame = Self {
            head: empty[..differ.saturating_sub(1)].to_vec(),
            tail: empty[(differ + 1).min(empty.len())..].to_vec(),
        };
        let whole = |text: &[u8]| [&frame.head, text, &frame.tail].concat();
        assert_eq!((whole(b"\"\""), whole(b"\"x\"")), (empty, one), "a framed event has its text once");
        frame
    }

    /// What stands before the string.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// What stands after it.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }
}
