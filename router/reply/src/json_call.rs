//! Reads one tool call written as a JSON object, while its text arrives.

use serde_json::Value;

use crate::json_scanner::{Scan, Scanner};
use crate::lenient_json::LenientScanner;
use crate::piece::{Piece, push_nonempty};

/// The result of reading some text of a possible call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallScan {
    /// All of the text belongs to the call, and more may follow.
    Incomplete,
    /// The call ended before this byte.
    Complete(usize),
    /// The arguments are not valid JSON from this byte on, so the call ended there.
    Invalid(usize),
    /// The object is not a call. Never returned after a piece was pushed.
    NotACall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    /// A second word for the name, used by some models. Ignored if its value is not the name of a known tool.
    Function,
    Arguments,
    Other,
}

impl Member {
    fn from_key(key: &str) -> Self {
        match key {
            "name" | "tool_name" => Self::Name,
            "function" => Self::Function,
            "arguments" | "parameters" | "input" => Self::Arguments,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone)]
enum State {
    BeforeObject,
    BeforeMember,
    BeforeColon(Member),
    BeforeValue(Member),
    /// In a value that is kept until it is complete, with its text so far.
    Value(Member, LenientScanner, String),
    /// In arguments that stream.
    Arguments(LenientScanner),
    AfterValue,
}

/// Reads `{"name": ..., "arguments": {...}}`, whose members may come in any order and among others.
#[derive(Debug, Clone)]
pub struct CallReader {
    state: State,
    pos: usize,
    /// End of the last complete member. If the object is invalid after it, the rest is text again.
    valid_end: usize,
    name: Option<String>,
    /// Arguments that preceded the name.
    early_arguments: Option<String>,
    has_begun: bool,
    /// True if an opening mark preceded the object. Such a call may lack arguments.
    is_marked: bool,
}

impl CallReader {
    /// Creates a reader of the object that begins at the byte `start` of the text.
    pub fn new(start: usize, is_marked: bool) -> Self {
        Self {
            state: State::BeforeObject,
            pos: start,
            valid_end: start,
            name: None,
            early_arguments: None,
            has_begun: false,
            is_marked,
        }
    }

    /// Returns true if pieces were pushed. From then on the object is a call, whatever follows.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns true if the reader is inside arguments that stream.
    pub fn is_in_arguments(&self) -> bool {
        matches!(self.state, State::Arguments(_))
    }

    /// Continues with `text`, which is the text of the last call with more appended. `is_known` tells whether a tool
    /// has a name.
    pub fn read(&mut self, text: &str, is_known: &dyn Fn(&str) -> bool, out: &mut Vec<Piece>) -> CallScan {
        loop {
            let rest = &text.as_bytes()[self.pos..];
            match &mut self.state {
                State::Arguments(scanner) => {
                    let mut arguments = String::new();
                    let scan = scanner.read(text, &mut arguments);
                    push_nonempty(&arguments, Piece::Arguments, out);
                    match scan {
                        Scan::Incomplete => return CallScan::Incomplete,
                        Scan::Complete(end) => (self.pos, self.valid_end) = (end, end),
                        Scan::Invalid(at) => {
                            // Pieces that were sent cannot be withdrawn; what follows is text again.
                            out.push(Piece::CallEnd);
                            return CallScan::Invalid(at);
                        }
                    }
                    self.state = State::AfterValue;
                }
                State::Value(member, scanner, value) => {
                    match scanner.read(text, value) {
                        Scan::Incomplete => return CallScan::Incomplete,
                        Scan::Invalid(_) => return self.fail(out),
                        Scan::Complete(end) => self.pos = end,
                    }
                    let (member, value) = (*member, std::mem::take(value));
                    self.state = State::AfterValue;
                    if !self.take(member, &value, is_known, out) {
                        return self.fail(out);
                    }
                    self.valid_end = self.pos;
                }
                _ => match rest.first() {
                    None => return CallScan::Incomplete,
                    Some(byte) if byte.is_ascii_whitespace() => self.pos += 1,
                    Some(byte) => {
                        if let Some(scan) = self.step(*byte, text, out) {
                            return scan;
                        }
                    }
                },
            }
        }
    }

    /// Reads one byte or key between values. Returns `None` to continue.
    fn step(&mut self, byte: u8, text: &str, out: &mut Vec<Piece>) -> Option<CallScan> {
        self.state = match (&self.state, byte) {
            (State::BeforeMember | State::AfterValue, b'}') => return Some(self.end(self.pos + 1, out)),
            (State::BeforeObject, b'{') | (State::AfterValue, b',') => State::BeforeMember,
            (State::BeforeColon(member), b':') => State::BeforeValue(*member),
            (State::BeforeMember, b'"') => match Scanner::default().feed(&text.as_bytes()[self.pos..]) {
                Scan::Incomplete => return Some(CallScan::Incomplete),
                Scan::Invalid(_) => return Some(self.fail(out)),
                Scan::Complete(len) => {
                    let key: Option<String> = serde_json::from_str(&text[self.pos..self.pos + len]).ok();
                    self.pos += len;
                    self.state = State::BeforeColon(Member::from_key(key.as_deref().unwrap_or_default()));
                    return None;
                }
            },
            (State::BeforeValue(Member::Arguments), b'{') if self.name.is_some() && !self.has_begun => {
                self.begin(out);
                self.state = State::Arguments(LenientScanner::new(self.pos));
                return None;
            }
            (State::BeforeValue(member), _) => {
                self.state = State::Value(*member, LenientScanner::new(self.pos), String::new());
                return None;
            }
            _ => return Some(self.fail(out)),
        };
        self.pos += 1;
        None
    }

    /// Takes a complete value, and returns false if no call can have it.
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
                Some(arguments) if self.early_arguments.is_none() && !self.has_begun => {
                    self.early_arguments = Some(arguments);
                }
                _ => return false,
            },
        }
        if self.name.is_some() && self.early_arguments.is_some() && !self.has_begun {
            self.begin(out);
            push_nonempty(&self.early_arguments.take().unwrap_or_default(), Piece::Arguments, out);
        }
        true
    }

    fn begin(&mut self, out: &mut Vec<Piece>) {
        self.has_begun = true;
        out.push(Piece::CallBegin { name: self.name.clone().unwrap_or_default() });
    }

    fn fail(&mut self, out: &mut Vec<Piece>) -> CallScan {
        if self.has_begun { self.end(self.valid_end, out) } else { CallScan::NotACall }
    }

    /// Ends the object before the byte `end`.
    fn end(&mut self, end: usize, out: &mut Vec<Piece>) -> CallScan {
        if self.name.is_none() || !self.has_begun && !self.is_marked {
            return CallScan::NotACall;
        }
        if !self.has_begun {
            self.begin(out);
            push_nonempty("{}", Piece::Arguments, out);
        }
        out.push(Piece::CallEnd);
        CallScan::Complete(end)
    }
}

fn arguments(value: &str) -> Option<String> {
    match serde_json::from_str(value).ok()? {
        Value::Object(_) => Some(value.to_owned()),
        Value::Null => Some("{}".into()),
        Value::String(text) if text.trim().is_empty() => Some("{}".into()),
        Value::String(text) => {
            let mut arguments = String::new();
            let Scan::Complete(end) = LenientScanner::new(0).read(&text, &mut arguments) else { return None };
            let is_object = arguments.trim_start().starts_with('{');
            if !text[end..].trim().is_empty() {
                return None;
            }
            if arguments.trim() == "null" { Some("{}".into()) } else { is_object.then_some(arguments) }
        }
        _ => None,
    }
}
