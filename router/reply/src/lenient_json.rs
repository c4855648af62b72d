//! Reads one JSON value with the mistakes that models make, and writes valid JSON, while the text arrives.

use crate::json_scanner::{Expected, Scan, Scanner};

/// Python's literals and their JSON spellings.
const LITERALS: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("None", "null")];
/// Replaces an unpaired surrogate.
const REPLACEMENT: &str = "\\ufffd";

/// The way to treat a character and the text held before it.
enum Step {
    /// Hold the character too, because its meaning is not known yet.
    Hold,
    /// Write this in place of the held text and the character.
    Write(String),
    /// Write this in place of the first bytes of the held text, then read the character again.
    WriteHeld(String, usize),
}

/// Reads a JSON value that may contain the mistakes of models, and writes it as JSON, in O(1) a byte.
///
/// Valid JSON is unchanged. The scanner repairs control characters in strings, escapes that JSON does not have (`\'`
/// becomes `'`, any other backslash is kept as a character), unpaired surrogates, `True`, `False`, `None`, and a comma
/// after the last item.
#[derive(Debug, Clone)]
pub struct LenientScanner {
    scanner: Scanner,
    /// End of the text whose JSON was written.
    written: usize,
    /// End of the text that was read. The text after `written` is held.
    pos: usize,
}

impl LenientScanner {
    /// Creates a scanner of the value that begins at the byte `start` of the text.
    pub fn new(start: usize) -> Self {
        Self { scanner: Scanner::default(), written: start, pos: start }
    }

    /// Continues with `text`, which is the text of the last call with more appended, and appends JSON to `out`.
    ///
    /// Positions in the result are bytes of `text`. Nothing is written for the text from an invalid byte on.
    pub fn read(&mut self, text: &str, out: &mut String) -> Scan {
        while let Some(c) = text[self.pos..].chars().next() {
            let end = self.pos + c.len_utf8();
            let (json, written, next) = match self.step(&text[self.written..self.pos], c) {
                Step::Hold => {
                    self.pos = end;
                    continue;
                }
                Step::Write(json) => (json, end, end),
                Step::WriteHeld(json, len) => (json, self.written + len, self.pos),
            };
            match self.scanner.feed(json.as_bytes()) {
                Scan::Incomplete => out.push_str(&json),
                // Only the byte after a number ends it.
                Scan::Complete(0) => return Scan::Complete(self.written),
                Scan::Complete(_) => {
                    out.push_str(&json);
                    return Scan::Complete(next);
                }
                Scan::Invalid(_) => return Scan::Invalid(self.written),
            }
            (self.written, self.pos) = (written, next);
        }
        Scan::Incomplete
    }

    fn step(&self, held: &str, c: char) -> Step {
        match held.as_bytes().first() {
            None => self.step_without_held(c),
            Some(b'\\') => step_in_escape(held, c),
            Some(b',') if matches!(c, ' ' | '\t' | '\n' | '\r') => Step::Hold,
            Some(b',') if self.is_close(c) => Step::WriteHeld(held[1..].to_owned(), held.len()),
            Some(b',') => Step::WriteHeld(held.to_owned(), held.len()),
            Some(_) => step_in_literal(held, c),
        }
    }

    /// Returns true if `c` closes the innermost list or object.
    fn is_close(&self, c: char) -> bool {
        matches!(self.scanner.expected(), Expected::Comma { close } if c == char::from(close))
    }

    fn step_without_held(&self, c: char) -> Step {
        match (self.scanner.expected(), c) {
            (Expected::StringCharacter, '\\')
            | (Expected::Comma { .. }, ',')
            | (Expected::Value, 'T' | 'F' | 'N') => Step::Hold,
            (Expected::StringCharacter, '\0'..='\x1f') => Step::Write(escape_control(c)),
            _ => Step::Write(c.to_string()),
        }
    }
}

/// Escapes a control character for a JSON string.
fn escape_control(c: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        c => format!("\\u{:04x}", u32::from(c)),
    }
}

/// Takes a step in an escape, or after one that is a high surrogate.
fn step_in_escape(held: &str, c: char) -> Step {
    match (held.len(), c) {
        (1, '\'') => Step::Write("'".to_owned()),
        (1, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Step::Write(format!("{held}{c}")),
        (1 | 7, 'u') => Step::Hold,
        (2..=4 | 8..=10, c) if c.is_ascii_hexdigit() => Step::Hold,
        (5, c) if c.is_ascii_hexdigit() => match surrogate(held) {
            None => Step::Write(format!("{held}{c}")),
            Some(Surrogate::High) => Step::Hold,
            Some(Surrogate::Low) => Step::Write(REPLACEMENT.to_owned()),
        },
        (1..=5, _) => Step::WriteHeld(format!("\\{held}"), held.len()),
        (6, '\\') => Step::Hold,
        (11, c) if c.is_ascii_hexdigit() && surrogate(&held[6..]) == Some(Surrogate::Low) => {
            Step::Write(format!("{held}{c}"))
        }
        _ => Step::WriteHeld(REPLACEMENT.to_owned(), 6),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surrogate {
    High,
    Low,
}

/// Returns which surrogate an escape without its last digit is.
fn surrogate(escape: &str) -> Option<Surrogate> {
    match escape.as_bytes() {
        [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _] => Some(Surrogate::High),
        [b'\\', b'u', b'd' | b'D', b'c'..=b'f' | b'C'..=b'F', _] => Some(Surrogate::Low),
        _ => None,
    }
}

/// Takes a step in one of [`LITERALS`].
fn step_in_literal(held: &str, c: char) -> Step {
    let grown = format!("{held}{c}");
    match LITERALS.iter().find(|(literal, _)| literal.starts_with(&grown)) {
        Some((literal, json)) if *literal == grown => Step::Write((*json).to_owned()),
        Some(_) => Step::Hold,
        None => Step::WriteHeld(held.to_owned(), held.len()),
    }
}
