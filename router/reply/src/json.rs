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

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn scan_in_pieces(text: &str, cuts: &[usize]) -> Scan {
        let mut scanner = Scanner::default();
        let mut start = 0;
        let ends = cuts.iter().map(|cut| cut % (text.len() + 1)).chain([text.len()]);
        let mut ends: Vec<usize> = ends.collect();
        ends.sort_unstable();
        for end in ends {
            match scanner.feed(&text.as_bytes()[start..end]) {
                Scan::Open => start = end,
                Scan::Ended(at) => return Scan::Ended(start + at),
                Scan::Broken(at) => return Scan::Broken(start + at),
            }
        }
        Scan::Open
    }

    pub(crate) fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9f64).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(".*", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_is_taken_however_it_is_cut(
            value in json(), is_pretty: bool, cuts in proptest::collection::vec(any::<usize>(), 0..6)
        ) {
            let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap() + " after";
            let end = text.len() - " after".len();
            prop_assert_eq!(scan_in_pieces(&text, &cuts), Scan::Ended(end));
        }

        #[test]
        fn what_is_taken_is_what_serde_takes(text in r#"[\[\]{},:"0-9eE.+\-a-u\\ ]{0,12}"#) {
            let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            let first = stream.next();
            match scan_in_pieces(&text, &[]) {
                Scan::Ended(end) => {
                    let parsed: Result<Value, _> = serde_json::from_str(&text[..end]);
                    prop_assert!(parsed.is_ok() || is_out_of_range(&parsed), "{:?}", &text[..end]);
                }
                Scan::Broken(_) => {
                    // serde wants a separator after some values, the scanner does not look so far.
                    prop_assert!(first.is_none_or(|value| value.is_err()), "{text:?}");
                }
                Scan::Open => {
                    let is_number = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_number());
                    let is_open = first.is_none_or(|value| value.is_err_and(|error| error.is_eof() || is_range(&error)));
                    prop_assert!(is_number || is_open, "{text:?}");
                }
            }
        }
    }

    fn is_range(error: &serde_json::Error) -> bool {
        error.to_string().contains("out of range")
    }

    /// A number that JSON allows and f64 does not hold; or half a surrogate pair.
    fn is_out_of_range(parsed: &Result<Value, serde_json::Error>) -> bool {
        parsed.as_ref().is_err_and(|error| {
            is_range(error)
                || error.to_string().contains("surrogate")
                || error.to_string().contains("hex escape")
        })
    }
}
