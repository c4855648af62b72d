//! One tool call as a JSON object, read as it comes.

use serde_json::Value;

use crate::Piece;
use crate::json::{Scan, Scanner};
use crate::loose::LooseScanner;

/// How reading went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All of the text belongs to the call, more may come.
    Open,
    /// The call ended before this byte.
    Ended(usize),
    /// So it did, as its arguments cannot go on with it: they are no JSON.
    Broken(usize),
    /// It is no call. Never after a piece was given.
    NoCall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    /// A name as well, if it is a tool's.
    Function,
    Arguments,
    Other,
}

impl Member {
    fn of(name: &str) -> Self {
        match name {
            "name" => Self::Name,
            "function" => Self::Function,
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
    /// In a value, of which so much is read.
    Value(Member, LooseScanner, String),
    /// In arguments that stream.
    Arguments(LooseScanner),
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
    /// A mark said that it is a call: it may lack arguments.
    is_marked: bool,
}

impl CallReader {
    /// Before the object, which begins at this byte of the text.
    pub fn new(at: usize, is_marked: bool) -> Self {
        Self { state: State::Open, at, whole: at, name: None, early: None, is_begun: false, is_marked }
    }

    /// Whether pieces were given: it is a call now, whatever comes.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether arguments are given that have not ended.
    pub fn has_open_arguments(&self) -> bool {
        matches!(self.state, State::Arguments(_))
    }

    /// Goes on with `text`, which begins as it did the last time and has grown; `is_known` says which tools there are.
    pub fn read(&mut self, text: &str, is_known: &dyn Fn(&str) -> bool, out: &mut Vec<Piece>) -> Reading {
        loop {
            let rest = &text.as_bytes()[self.at..];
            match &mut self.state {
                State::Arguments(scanner) => {
                    let mut arguments = String::new();
                    let scan = scanner.read(text, &mut arguments);
                    push(&arguments, out);
                    match scan {
                        Scan::Open => return Reading::Open,
                        Scan::Ended(at) => (self.at, self.whole) = (at, at),
                        Scan::Broken(at) => {
                            // What was given cannot be taken back; what comes is text again.
                            out.push(Piece::CallEnd);
                            return Reading::Broken(at);
                        }
                    }
                    self.state = State::After;
                }
                State::Value(member, scanner, value) => {
                    match scanner.read(text, value) {
                        Scan::Open => return Reading::Open,
                        Scan::Broken(_) => return self.fail(out),
                        Scan::Ended(at) => self.at = at,
                    }
                    let (member, value) = (*member, std::mem::take(value));
                    self.state = State::After;
                    if !self.take(member, &value, is_known, out) {
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
                self.state = State::Arguments(LooseScanner::new(self.at));
                return None;
            }
            (State::BeforeValue(member), _) => {
                self.state = State::Value(*member, LooseScanner::new(self.at), String::new());
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
                Ok(name) if is_known(&name) && self.name.as_ref().is_none_or(|known| *known == name) => {
                    self.name = Some(name);
                }
                _ => return false,
            },
            Member::Function => match serde_json::from_str::<String>(value) {
                Ok(name) if is_known(&name) && self.name.is_none() => self.name = Some(name),
                _ => return true,
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
        if self.name.is_none() || !self.is_begun && !self.is_marked {
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

/// Arguments as an object: some models write it as a string, or nothing for none.
fn arguments(value: &str) -> Option<String> {
    match serde_json::from_str(value).ok()? {
        Value::Object(_) => Some(value.to_owned()),
        Value::Null => Some("{}".into()),
        Value::String(text) if text.trim().is_empty() => Some("{}".into()),
        Value::String(text) => {
            let mut arguments = String::new();
            let Scan::Ended(end) = LooseScanner::new(0).read(&text, &mut arguments) else { return None };
            let is_object = arguments.trim_start().starts_with('{');
            if !text[end..].trim().is_empty() {
                return None;
            }
            if arguments.trim() == "null" { Some("{}".into()) } else { is_object.then_some(arguments) }
        }
        _ => None,
    }
}
