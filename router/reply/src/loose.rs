//! One JSON value as models write it, made JSON as it comes.

use crate::json::{Place, Scan, Scanner};

/// Python's words for what JSON writes otherwise.
const WORDS: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("None", "null")];
/// What stands for half a character (U+FFFD).
const HALF: &str = "\\ufffd";

/// What to do with a character and what is held before it.
enum Step {
    /// What it means is not known yet.
    Hold,
    /// Give this for what is held and the character.
    Give(String),
    /// Give this for so many of the bytes that are held, then see the character again.
    GiveHeld(String, usize),
}

/// Reads a value that may break JSON as models do, and gives it as JSON. What is JSON stays as it is. Mended are
/// control characters in strings, escapes that JSON does not have (`\'` is `'`, another backslash is itself), halves of
/// characters, `True`, `False`, `None` and a comma after the last item. O(1) a byte.
#[derive(Debug, Clone)]
pub struct LooseScanner {
    scanner: Scanner,
    /// Bytes up to here are given.
    given: usize,
    /// Bytes up to here are read; between both is what is held.
    at: usize,
}

impl LooseScanner {
    /// Before the value, which begins at this byte of the text.
    pub fn new(at: usize) -> Self {
        Self { scanner: Scanner::default(), given: at, at }
    }

    /// Goes on with `text`, which begins as it did the last time and has grown; gives JSON. Bytes of the answer are the
    /// text's. From the byte where it is broken nothing was given.
    pub fn read(&mut self, text: &str, out: &mut String) -> Scan {
        while let Some(c) = text[self.at..].chars().next() {
            let end = self.at + c.len_utf8();
            let (json, given, next) = match self.step(&text[self.given..self.at], c) {
                Step::Hold => {
                    self.at = end;
                    continue;
                }
                Step::Give(json) => (json, end, end),
                Step::GiveHeld(json, len) => (json, self.given + len, self.at),
            };
            match self.scanner.feed(json.as_bytes()) {
                Scan::Open => out.push_str(&json),
                // A number ends with what follows it.
                Scan::Ended(0) => return Scan::Ended(self.given),
                Scan::Ended(_) => {
                    out.push_str(&json);
                    return Scan::Ended(next);
                }
                Scan::Broken(_) => return Scan::Broken(self.given),
            }
            (self.given, self.at) = (given, next);
        }
        Scan::Open
    }

    fn step(&self, held: &str, c: char) -> Step {
        match held.as_bytes().first() {
            None => self.fresh(c),
            Some(b'\\') => escape(held, c),
            Some(b',') if matches!(c, ' ' | '\t' | '\n' | '\r') => Step::Hold,
            Some(b',') if self.is_close(c) => Step::GiveHeld(held[1..].to_owned(), held.len()),
            Some(b',') => Step::GiveHeld(held.to_owned(), held.len()),
            Some(_) => word(held, c),
        }
    }

    /// Whether it closes the innermost list or object.
    fn is_close(&self, c: char) -> bool {
        matches!(self.scanner.place(), Place::Comma { close } if c == char::from(close))
    }

    fn fresh(&self, c: char) -> Step {
        match (self.scanner.place(), c) {
            (Place::Text, '\\') | (Place::Comma { .. }, ',') | (Place::Value, 'T' | 'F' | 'N') => Step::Hold,
            (Place::Text, '\0'..='\x1f') => Step::Give(escaped(c)),
            _ => Step::Give(c.to_string()),
        }
    }
}

/// A control character as JSON writes it in strings.
fn escaped(c: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        c => format!("\\u{:04x}", u32::from(c)),
    }
}

/// In an escape, or behind one that is the first half of a character.
fn escape(held: &str, c: char) -> Step {
    match (held.len(), c) {
        (1, '\'') => Step::Give("'".to_owned()),
        (1, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Step::Give(format!("{held}{c}")),
        (1 | 7, 'u') => Step::Hold,
        (2..=4 | 8..=10, c) if c.is_ascii_hexdigit() => Step::Hold,
        (5, c) if c.is_ascii_hexdigit() => match surrogate(held) {
            None => Step::Give(format!("{held}{c}")),
            Some(Half::First) => Step::Hold,
            Some(Half::Second) => Step::Give(HALF.to_owned()),
        },
        (1..=5, _) => Step::GiveHeld(format!("\\{held}"), held.len()),
        (6, '\\') => Step::Hold,
        (11, c) if c.is_ascii_hexdigit() && surrogate(&held[6..]) == Some(Half::Second) => {
            Step::Give(format!("{held}{c}"))
        }
        _ => Step::GiveHeld(HALF.to_owned(), 6),
    }
}

/// Characters that do not fit into an escape are two of them (RFC 8259, section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

/// Which half an escape is, by all but its last digit.
fn surrogate(escape: &str) -> Option<Half> {
    match escape.as_bytes() {
        [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _] => Some(Half::First),
        [b'\\', b'u', b'd' | b'D', b'c'..=b'f' | b'C'..=b'F', _] => Some(Half::Second),
        _ => None,
    }
}

/// In a word of [`WORDS`].
fn word(held: &str, c: char) -> Step {
    let grown = format!("{held}{c}");
    match WORDS.iter().find(|(word, _)| word.starts_with(&grown)) {
        Some((word, json)) if *word == grown => Step::Give((*json).to_owned()),
        Some(_) => Step::Hold,
        None => Step::GiveHeld(held.to_owned(), held.len()),
    }
}
