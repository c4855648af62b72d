//! Reads arguments that are written one by one between tags, and writes them as one JSON object.

use serde_json::Value;

use crate::call_start::{Header, Tags, split_header};
use crate::json_scanner::Scan;
use crate::lenient_json::LenientScanner;
use crate::marks::mark_prefix_len;
use crate::python_calls;
use crate::signature::{Signature, Types};

#[derive(Debug, Clone)]
enum State {
    /// Before the tag of a key or the end.
    BeforeKey,
    /// Before the first character of the value of this parameter.
    BeforeValue(String),
    /// In a value that is held until it is complete. Its text begins at this byte.
    Held { types: Types, start: usize },
    /// In a text that streams.
    Text,
}

/// Reads the arguments of one call while their text arrives.
#[derive(Debug, Clone)]
pub struct TaggedReader {
    tags: &'static Tags,
    tool: Signature,
    state: State,
    /// End of the text that was read.
    pos: usize,
    has_keys: bool,
    has_begun: bool,
}

/// The outcome of one step of a reader.
enum Step {
    /// Nothing without more text.
    Wait,
    Continue,
    End(Scan),
}

impl TaggedReader {
    /// Creates a reader of the arguments that begin at the byte `start` of the text.
    pub(crate) fn new(tags: &'static Tags, tool: Signature, start: usize) -> Self {
        Self { tags, tool, state: State::BeforeKey, pos: start, has_keys: false, has_begun: false }
    }

    /// Continues with `text`, which is the text of the last call with more appended, and appends JSON to `out`.
    /// Positions in the result are bytes of `text`; the end tag follows complete arguments.
    pub fn read(&mut self, text: &str, out: &mut String) -> Scan {
        if !self.has_begun {
            self.has_begun = true;
            out.push('{');
        }
        loop {
            let step = match &self.state {
                State::BeforeKey => self.read_key(text, out),
                State::BeforeValue(key) => self.begin_value(self.tool.types(key), text, out),
                State::Held { types, start } => self.read_held(*types, *start, text, out),
                State::Text => self.read_text(text, out),
            };
            match step {
                Step::Wait => return Scan::Incomplete,
                Step::Continue => {}
                Step::End(scan) => return scan,
            }
        }
    }

    fn read_key(&mut self, text: &str, out: &mut String) -> Step {
        let rest = text[self.pos..].trim_start();
        let at = text.len() - rest.len();
        if rest.starts_with(self.tags.end) {
            out.push('}');
            return Step::End(Scan::Complete(at));
        }
        let Some(key) = rest.strip_prefix(self.tags.key_open) else {
            return if self.tags.may_begin_tag(rest) {
                Step::Wait
            } else {
                Step::End(Scan::Invalid(self.pos))
            };
        };
        let (key, after) = match split_header(key, self.tags.key_close) {
            Header::Complete(key, after) => (key, after),
            Header::Undecided => return Step::Wait,
            Header::Missing => return Step::End(Scan::Invalid(self.pos)),
        };
        let value = if self.tags.value_open.is_empty() {
            after
        } else {
            let opening = after.trim_start();
            let Some(value) = opening.strip_prefix(self.tags.value_open) else {
                let may_open = self.tags.value_open.starts_with(opening);
                return if may_open { Step::Wait } else { Step::End(Scan::Invalid(self.pos)) };
            };
            value
        };
        let key = key.trim();
        out.push_str(if self.has_keys { ", " } else { "" });
        out.push_str(&Value::from(key).to_string());
        out.push_str(": ");
        self.has_keys = true;
        self.pos = text.len() - value.len();
        self.state = State::BeforeValue(key.to_owned());
        Step::Continue
    }

    fn begin_value(&mut self, types: Types, text: &str, out: &mut String) -> Step {
        if self.tags.has_value_lines {
            let Some(first) = text[self.pos..].chars().next() else { return Step::Wait };
            self.pos += usize::from(first == '\n');
        }
        self.state = if types == Types::STRING {
            out.push('"');
            State::Text
        } else {
            State::Held { types, start: self.pos }
        };
        Step::Continue
    }

    fn read_text(&mut self, text: &str, out: &mut String) -> Step {
        let rest = &text[self.pos..];
        if let Some(at) = rest.find(self.tags.value_close) {
            out.push_str(escaped(self.value(&rest[..at])).as_str());
            out.push('"');
            self.end_value(self.pos + at);
            return Step::Continue;
        }
        let certain = &rest[..rest.len() - mark_prefix_len(rest, self.tags.value_close)];
        let certain = self.value(certain);
        out.push_str(escaped(certain).as_str());
        self.pos += certain.len();
        Step::Wait
    }

    fn read_held(&mut self, types: Types, start: usize, text: &str, out: &mut String) -> Step {
        let close = self.tags.value_close;
        let Some(at) = text[self.pos..].find(close) else {
            self.pos = text.len() - mark_prefix_len(&text[self.pos..], close);
            return Step::Wait;
        };
        let end = self.pos + at;
        out.push_str(&json(self.value(&text[start..end]), types));
        self.end_value(end);
        Step::Continue
    }

    /// Returns the value without the line break at its end that belongs to the tags.
    fn value<'a>(&self, text: &'a str) -> &'a str {
        if self.tags.has_value_lines { text.strip_suffix('\n').unwrap_or(text) } else { text }
    }

    fn end_value(&mut self, end: usize) {
        self.pos = end + self.tags.value_close.len();
        self.state = State::BeforeKey;
    }
}

/// Returns the inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Converts a value that a model wrote to JSON of one of these types. Text that is no such JSON is a string.
fn json(value: &str, types: Types) -> String {
    let text = || Value::from(value).to_string();
    let python =
        || value.trim_start().starts_with(['[', '{']).then(|| python_calls::literal(value)).flatten();
    let Some(json) = lenient(value).or_else(python) else { return text() };
    let Ok(parsed) = serde_json::from_str::<Value>(&json) else { return text() };
    let found = Types::of(&parsed);
    // Models write strings without quotes, so quotes belong to the text, unless the type is not known.
    let is_quoted_text = found == Types::STRING && types != Types::ANY;
    let is_text = types.contains(Types::STRING) && (is_quoted_text || !types.contains(found));
    if is_text { text() } else { json }
}

/// Returns the JSON text that `value` is, with the mistakes of models repaired.
fn lenient(value: &str) -> Option<String> {
    let mut json = String::new();
    // Only a byte after a number ends it.
    let text = format!("{} ", value.trim());
    match LenientScanner::new(0).read(&text, &mut json) {
        Scan::Complete(end) => text[end..].trim().is_empty().then_some(json),
        Scan::Incomplete | Scan::Invalid(_) => None,
    }
}
