//! One tool call as a JSON object, read as it comes.

use serde_json::Value;

use crate::Piece;
use crate::json::{Scan, Scanner};

/// How reading went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All of the text belongs to the call, more may come.
    Open,
    /// The call ended before this byte.
    Ended(usize),
    /// It is no call. Never after a piece was given.
    NoCall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

impl Member {
    fn of(name: &str) -> Self {
        match name {
            "name" => Self::Name,
            "arguments" | "parameters" | "input" => Self::Arguments,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone)]
enum State {
    /// Before `{`.
    Open,
    /// Before a member or `}`.
    Member,
    /// After a member's name.
    Colon(Member),
    /// Before a member's value.
    BeforeValue(Member),
    /// In a value that began at this byte.
    Value(Member, Scanner, usize),
    /// In arguments that stream.
    Arguments(Scanner),
    /// After a value.
    After,
}

/// Reads `{"name": ..., "arguments": {...}}`, its members in any order, others among them.
#[derive(Debug, Clone)]
pub struct CallReader {
    state: State,
    /// Bytes that are read.
    at: usize,
    /// Bytes up to the end of the last whole member: what is broken after it is text again.
    whole: usize,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    is_begun: bool,
}

impl CallReader {
    /// Before the object, which begins at this byte of the text.
    pub fn new(at: usize) -> Self {
        Self { state: State::Open, at, whole: at, name: None, early: None, is_begun: false }
    }

    /// Whether pieces were given: it is a call now, whatever comes.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Goes on with `text`, which begins as it did the last time and has grown; `is_known` says which tools there are.
    pub fn read(&mut self, text: &str, is_known: &dyn Fn(&str) -> bool, out: &mut Vec<Piece>) -> Reading {
        loop {
            let rest = &text.as_bytes()[self.at..];
            match &mut self.state {
                State::Arguments(scanner) => {
                    let scan = scanner.feed(rest);
                    let (Scan::Ended(len) | Scan::Broken(len)) = scan else {
                        push(&text[self.at..], out);
                        self.at = text.len();
                        return Reading::Open;
                    };
                    push(&text[self.at..self.at + len], out);
                    self.at += len;
                    self.whole = self.at;
                    self.state = State::After;
                    if matches!(scan, Scan::Broken(_)) {
                        // What was given cannot be taken back; what comes is text again.
                        return self.end(self.at, out);
                    }
                }
                State::Value(member, scanner, start) => {
                    let (member, start) = (*member, *start);
                    match scanner.feed(rest) {
                        Scan::Open => {
                            self.at = text.len();
                            return Reading::Open;
                        }
                        Scan::Broken(_) => return self.fail(out),
                        Scan::Ended(len) => self.at += len,
                    }
                    self.state = State::After;
                    if !self.take(member, &text[start..self.at], is_known, out) {
                        return self.fail(out);
                    }
                    self.whole = self.at;
                }
                _ => match rest.first() {
                    None => return Reading::Open,
                    Some(byte) if byte.is_ascii_whitespace() => self.at += 1,
                    Some(byte) => {
                        if let Some(reading) = self.step(*byte, text, out) {
                            return reading;
                        }
                    }
                },
            }
        }
    }

    /// Between values; none to go on.
    fn step(&mut self, byte: u8, text: &str, out: &mut Vec<Piece>) -> Option<Reading> {
        self.state = match (&self.state, byte) {
            (State::Member | State::After, b'}') => return Some(self.end(self.at + 1, out)),
            (State::Open, b'{') | (State::After, b',') => State::Member,
            (State::Colon(member), b':') => State::BeforeValue(*member),
            (State::Member, b'"') => match Scanner::default().feed(&text.as_bytes()[self.at..]) {
                Scan::Open => return Some(Reading::Open),
                Scan::Broken(_) => return Some(self.fail(out)),
                Scan::Ended(len) => {
                    let name: Option<String> = serde_json::from_str(&text[self.at..self.at + len]).ok();
                    self.at += len;
                    self.state = State::Colon(Member::of(name.as_deref().unwrap_or_default()));
                    return None;
                }
            },
            (State::BeforeValue(Member::Arguments), b'{') if self.name.is_some() && !self.is_begun => {
                self.begin(out);
                self.state = State::Arguments(Scanner::default());
                return None;
            }
            (State::BeforeValue(member), _) => {
                self.state = State::Value(*member, Scanner::default(), self.at);
                return None;
            }
            _ => return Some(self.fail(out)),
        };
        self.at += 1;
        None
    }

    /// A member's value is complete; whether it may be what it is.
    fn take(
        &mut self,
        member: Member,
        value: &str,
        is_known: &dyn Fn(&str) -> bool,
        out: &mut Vec<Piece>,
    ) -> bool {
        match member {
            Member::Other => return true,
            Member::Name => match serde_json::from_str::<String>(value) {
                Ok(name) if is_known(&name) && self.name.is_none() => self.name = Some(name),
                _ => return false,
            },
            Member::Arguments => match arguments(value) {
                Some(arguments) if self.early.is_none() && !self.is_begun => self.early = Some(arguments),
                _ => return false,
            },
        }
        if self.name.is_some() && self.early.is_some() && !self.is_begun {
            self.begin(out);
            push(&self.early.take().unwrap_or_default(), out);
        }
        true
    }

    fn begin(&mut self, out: &mut Vec<Piece>) {
        self.is_begun = true;
        out.push(Piece::CallBegin { name: self.name.clone().unwrap_or_default() });
    }

    fn fail(&mut self, out: &mut Vec<Piece>) -> Reading {
        if self.is_begun { self.end(self.whole, out) } else { Reading::NoCall }
    }

    /// The object ended before this byte.
    fn end(&mut self, at: usize, out: &mut Vec<Piece>) -> Reading {
        if self.name.is_none() {
            return Reading::NoCall;
        }
        if !self.is_begun {
            self.begin(out);
            push("{}", out);
        }
        out.push(Piece::CallEnd);
        Reading::Ended(at)
    }
}

fn push(arguments: &str, out: &mut Vec<Piece>) {
    if !arguments.is_empty() {
        out.push(Piece::Arguments(arguments.to_owned()));
    }
}

/// Arguments as an object: some models write it as a string, or null for none.
fn arguments(value: &str) -> Option<String> {
    match serde_json::from_str(value).ok()? {
        Value::Object(_) => Some(value.to_owned()),
        Value::Null => Some("{}".into()),
        Value::String(text) => match serde_json::from_str(&text).ok()? {
            Value::Object(_) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
