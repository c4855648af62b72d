//! Checks one JSON value while its text arrives.

/// The result of reading some bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// All bytes belong to the value, and more may follow.
    Incomplete,
    /// The value ended before this byte.
    Complete(usize),
    /// The value is not valid from this byte on.
    Invalid(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BeforeValue,
    /// After `[`, where a value or `]` may follow.
    FirstItem,
    /// After `{`, where a key or `}` may follow.
    FirstKey,
    /// After `,` in an object.
    BeforeKey,
    BeforeColon,
    /// After a value, where `,` or the end of the enclosing list or object may follow.
    AfterValue,
    String {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    /// In `\uXXXX`, with the number of digits that are missing.
    Hex {
        is_key: bool,
        missing: u8,
    },
    Number(Number),
    /// In `true`, `false` or `null`, with the bytes that are missing.
    Literal(&'static [u8]),
}

/// The part of a number that was read last (RFC 8259, section 6).
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

/// Checks one JSON value byte by byte (RFC 8259), in O(1) a byte. It keeps one byte for each level of nesting.
#[derive(Debug, Clone)]
pub struct Scanner {
    state: State,
    /// The `{` and `[` that are not closed yet, outermost first.
    open: Vec<u8>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { state: State::BeforeValue, open: Vec::new() }
    }
}

/// The input that a scanner expects next, as far as a lenient reader needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Value,
    /// More of a string, outside an escape.
    StringCharacter,
    /// A comma after a value, or the byte that closes the enclosing list or object.
    Comma {
        /// The closing byte, `]` or `}`.
        close: u8,
    },
    /// Anything else, such as a key or a colon.
    Other,
}

impl Scanner {
    pub fn expected(&self) -> Expected {
        let is_after_value = match self.state {
            State::BeforeValue | State::FirstItem => return Expected::Value,
            State::String { .. } => return Expected::StringCharacter,
            State::AfterValue => true,
            State::Number(number) => number.may_end(),
            _ => false,
        };
        match self.open.last() {
            Some(b'{') if is_after_value => Expected::Comma { close: b'}' },
            Some(_) if is_after_value => Expected::Comma { close: b']' },
            _ => Expected::Other,
        }
    }

    /// Continues with `bytes`. White space before the value belongs to the value. A number that is not in a list or
    /// object ends only at the first byte after it.
    pub fn feed(&mut self, bytes: &[u8]) -> Scan {
        for (idx, &byte) in bytes.iter().enumerate() {
            // Only the byte after a number shows that the number has ended.
            if let State::Number(number) = self.state {
                if let Some(next) = number.next(byte) {
                    self.state = State::Number(next);
                    continue;
                }
                if !number.may_end() {
                    return Scan::Invalid(idx);
                }
                if self.open.is_empty() {
                    return Scan::Complete(idx);
                }
                self.state = State::AfterValue;
            }
            match self.step(byte) {
                None => return Scan::Invalid(idx),
                Some(true) => return Scan::Complete(idx + 1),
                Some(false) => {}
            }
        }
        Scan::Incomplete
    }

    /// Reads one byte, and returns whether it ended the value, or `None` if it is not valid here.
    fn step(&mut self, byte: u8) -> Option<bool> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match (self.state, byte) {
            (State::String { is_key }, b'"') => return self.end_string(is_key),
            (State::String { is_key }, b'\\') => State::Escape { is_key },
            (State::String { .. }, 0..0x20) => return None,
            (State::String { is_key }, _) => State::String { is_key },
            (State::Escape { is_key }, b'u') => State::Hex { is_key, missing: 4 },
            (State::Escape { is_key }, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                State::String { is_key }
            }
            (State::Hex { is_key, missing }, _) if byte.is_ascii_hexdigit() => match missing {
                1 => State::String { is_key },
                _ => State::Hex { is_key, missing: missing - 1 },
            },
            (State::Literal([expected, rest @ ..]), _) if byte == *expected => {
                if rest.is_empty() {
                    return Some(self.end_value());
                }
                State::Literal(rest)
            }
            (state @ (State::BeforeValue | State::FirstItem | State::FirstKey), _) if is_space => state,
            (state @ (State::BeforeKey | State::BeforeColon | State::AfterValue), _) if is_space => state,
            (State::FirstItem, b']') | (State::FirstKey, b'}') => return Some(self.close()),
            (State::FirstKey | State::BeforeKey, b'"') => State::String { is_key: true },
            (State::BeforeColon, b':') => State::BeforeValue,
            (State::AfterValue, b',') => match self.open.last() {
                Some(b'{') => State::BeforeKey,
                _ => State::BeforeValue,
            },
            (State::AfterValue, b'}') if self.open.last() == Some(&b'{') => return Some(self.close()),
            (State::AfterValue, b']') if self.open.last() == Some(&b'[') => return Some(self.close()),
            (State::BeforeValue | State::FirstItem, _) => self.begin_value(byte)?,
            _ => return None,
        };
        Some(false)
    }

    fn begin_value(&mut self, byte: u8) -> Option<State> {
        Some(match byte {
            b'{' => {
                self.open.push(byte);
                State::FirstKey
            }
            b'[' => {
                self.open.push(byte);
                State::FirstItem
            }
            b'"' => State::String { is_key: false },
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            _ => return None,
        })
    }

    fn end_string(&mut self, is_key: bool) -> Option<bool> {
        if is_key {
            self.state = State::BeforeColon;
            return Some(false);
        }
        Some(self.end_value())
    }

    fn close(&mut self) -> bool {
        self.open.pop();
        self.end_value()
    }

    /// Ends a value, and returns whether it was the outermost one.
    fn end_value(&mut self) -> bool {
        self.state = State::AfterValue;
        self.open.is_empty()
    }
}
