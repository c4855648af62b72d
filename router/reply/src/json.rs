//! One JSON value, checked as its text comes.

/// What a scanner knows after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// All bytes belong to the value, more may come.
    Open,
    /// The value ended after so many of the bytes.
    Ended(usize),
    /// The byte with this number cannot stand there.
    Broken(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value begins.
    Value,
    /// After `[`: a value or `]`.
    FirstItem,
    /// After `{`: a name or `}`.
    FirstName,
    /// After `,` in an object.
    Name,
    Colon,
    /// After a value: `,` or the end of what holds it.
    After,
    Text {
        is_name: bool,
    },
    Escape {
        is_name: bool,
    },
    /// So many digits of `\uXXXX` are missing.
    Hex {
        is_name: bool,
        missing: u8,
    },
    Number(Number),
    /// What is missing of `true`, `false` or `null`.
    Literal(&'static [u8]),
}

/// Where in a number (RFC 8259, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Self::Digits,
            (Self::Zero | Self::Digits, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => Self::ExponentDigits,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits)
    }
}

/// Checks one JSON value byte by byte (RFC 8259). O(1) a byte; memory: a byte for each level of nesting.
#[derive(Debug, Clone)]
pub struct Scanner {
    state: State,
    /// What is open, outermost first: `{` or `[`.
    open: Vec<u8>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { state: State::Value, open: Vec::new() }
    }
}

/// What may follow: what a reader of loose JSON needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A value.
    Value,
    /// More of a string, and no part of an escape.
    Text,
    /// `,` after a value in what this byte closes.
    Comma {
        /// `]` or `}`.
        close: u8,
    },
    /// Something else.
    Other,
}

impl Scanner {
    /// What may follow.
    pub fn place(&self) -> Place {
        let is_behind_value = match self.state {
            State::Value | State::FirstItem => return Place::Value,
            State::Text { .. } => return Place::Text,
            State::After => true,
            State::Number(number) => number.may_end(),
            _ => false,
        };
        match self.open.last() {
            Some(b'{') if is_behind_value => Place::Comma { close: b'}' },
            Some(_) if is_behind_value => Place::Comma { close: b']' },
            _ => Place::Other,
        }
    }

    /// Goes on with `bytes`. White space before the value belongs to it. A number at the top ends with the first byte
    /// that is none of it.
    pub fn feed(&mut self, bytes: &[u8]) -> Scan {
        for (idx, &byte) in bytes.iter().enumerate() {
            // A number ends only with what comes after it.
            if let State::Number(number) = self.state {
                if let Some(next) = number.next(byte) {
                    self.state = State::Number(next);
                    continue;
                }
                if !number.may_end() {
                    return Scan::Broken(idx);
                }
                if self.open.is_empty() {
                    return Scan::Ended(idx);
                }
                self.state = State::After;
            }
            match self.step(byte) {
                None => return Scan::Broken(idx),
                Some(true) => return Scan::Ended(idx + 1),
                Some(false) => {}
            }
        }
        Scan::Open
    }

    /// Whether the value ended with this byte; none if it cannot stand here.
    fn step(&mut self, byte: u8) -> Option<bool> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match (self.state, byte) {
            (State::Text { is_name }, b'"') => return self.ended_text(is_name),
            (State::Text { is_name }, b'\\') => State::Escape { is_name },
            (State::Text { .. }, 0..0x20) => return None,
            (State::Text { is_name }, _) => State::Text { is_name },
            (State::Escape { is_name }, b'u') => State::Hex { is_name, missing: 4 },
            (State::Escape { is_name }, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                State::Text { is_name }
            }
            (State::Hex { is_name, missing }, _) if byte.is_ascii_hexdigit() => match missing {
                1 => State::Text { is_name },
                _ => State::Hex { is_name, missing: missing - 1 },
            },
            (State::Literal([expected, rest @ ..]), _) if byte == *expected => {
                if rest.is_empty() {
                    return Some(self.ended_value());
                }
                State::Literal(rest)
            }
            (state @ (State::Value | State::FirstItem | State::FirstName), _) if is_space => state,
            (state @ (State::Name | State::Colon | State::After), _) if is_space => state,
            (State::FirstItem, b']') | (State::FirstName, b'}') => return Some(self.closed()),
            (State::FirstName | State::Name, b'"') => State::Text { is_name: true },
            (State::Colon, b':') => State::Value,
            (State::After, b',') => match self.open.last() {
                Some(b'{') => State::Name,
                _ => State::Value,
            },
            (State::After, b'}') if self.open.last() == Some(&b'{') => return Some(self.closed()),
            (State::After, b']') if self.open.last() == Some(&b'[') => return Some(self.closed()),
            (State::Value | State::FirstItem, _) => self.begun(byte)?,
            _ => return None,
        };
        Some(false)
    }

    fn begun(&mut self, byte: u8) -> Option<State> {
        Some(match byte {
            b'{' => {
                self.open.push(byte);
                State::FirstName
            }
            b'[' => {
                self.open.push(byte);
                State::FirstItem
            }
            b'"' => State::Text { is_name: false },
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            _ => return None,
        })
    }

    fn ended_text(&mut self, is_name: bool) -> Option<bool> {
        if is_name {
            self.state = State::Colon;
            return Some(false);
        }
        Some(self.ended_value())
    }

    fn closed(&mut self) -> bool {
        self.open.pop();
        self.ended_value()
    }

    /// Whether it was the outermost value.
    fn ended_value(&mut self) -> bool {
        self.state = State::After;
        self.open.is_empty()
    }
}
