//! Parses Python's [string literals].
//!
//! [string literals]: https://docs.python.org/3/reference/lexical_analysis.html#string-and-bytes-literals

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Outside,
    /// After the first quote.
    OneQuote(u8),
    /// After two quotes, which are an empty string or the beginning of three quotes.
    TwoQuotes(u8),
    /// In a string that one quote ends.
    Single(u8),
    /// In a string that three quotes end, with the number of them read so far.
    Triple(u8, u8),
}

/// Tells byte by byte whether a text is inside a string.
#[derive(Debug, Clone, Copy, Default)]
pub struct StringScanner {
    state: State,
    is_escaped: bool,
}

impl StringScanner {
    /// Reads the next byte, and returns whether it belongs to a string. The quotes belong to it.
    pub fn is_in_string(&mut self, byte: u8) -> bool {
        if std::mem::take(&mut self.is_escaped) {
            return true;
        }
        let is_quote = matches!(byte, b'"' | b'\'');
        self.state = match self.state {
            State::OneQuote(quote) if byte == quote => State::TwoQuotes(quote),
            State::TwoQuotes(quote) if byte == quote => State::Triple(quote, 0),
            State::Outside | State::TwoQuotes(_) if is_quote => State::OneQuote(byte),
            State::Outside | State::TwoQuotes(_) => State::Outside,
            State::Single(quote) if byte == quote => State::Outside,
            State::Triple(quote, 2) if byte == quote => State::Outside,
            State::Triple(quote, num) if byte == quote => State::Triple(quote, num + 1),
            State::OneQuote(quote) | State::Single(quote) => State::Single(quote),
            State::Triple(quote, _) => State::Triple(quote, 0),
        };
        self.is_escaped = byte == b'\\' && self.state != State::Outside;
        self.state != State::Outside || is_quote
    }
}

/// Returns true if `text` begins with a string literal.
pub fn begins(text: &str) -> bool {
    without_prefix(text).starts_with(['"', '\''])
}

/// Removes the letter that may precede the quotes of a literal.
fn without_prefix(literal: &str) -> &str {
    literal.strip_prefix(['r', 'R', 'u', 'U']).unwrap_or(literal)
}

/// Parses the literal at the beginning of `text`, and returns its value and the text after it.
pub fn parse(text: &str) -> Option<(String, &str)> {
    let is_raw = text.starts_with(['r', 'R']);
    let literal = without_prefix(text);
    let quotes = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quotes| literal.starts_with(quotes))?;
    let mut rest = &literal[quotes.len()..];
    let mut value = StringBuilder::default();
    loop {
        if let Some(rest) = rest.strip_prefix(quotes) {
            return Some((value.finish(), rest));
        }
        let mut chars = rest.chars();
        match chars.next()? {
            '\\' if is_raw => {
                value.push('\\');
                value.push(chars.next()?);
            }
            '\\' => {
                rest = parse_escape(chars.as_str(), &mut value)?;
                continue;
            }
            c => value.push(c),
        }
        rest = chars.as_str();
    }
}

/// Parses what follows a backslash, and returns the text after the escape.
fn parse_escape<'a>(text: &'a str, out: &mut StringBuilder) -> Option<&'a str> {
    let mut chars = text.chars();
    let escaped = chars.next()?;
    let rest = chars.as_str();
    match escaped {
        'n' => out.push('\n'),
        't' => out.push('\t'),
        'r' => out.push('\r'),
        'a' => out.push('\x07'),
        'b' => out.push('\x08'),
        'f' => out.push('\x0c'),
        'v' => out.push('\x0b'),
        '\n' => {}
        'x' => return parse_hex(rest, 2, out),
        'u' => return parse_hex(rest, 4, out),
        'U' => return parse_hex(rest, 8, out),
        '0'..='7' => {
            let end = text.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            out.push_code(u32::from_str_radix(&text[..end], 8).ok()?)?;
            return Some(&text[end..]);
        }
        '\\' | '\'' | '"' => out.push(escaped),
        // Python keeps the backslash of an unknown escape.
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    Some(rest)
}

/// Parses a code point of `num_digits` hexadecimal digits, and returns the text after it.
fn parse_hex<'a>(text: &'a str, num_digits: usize, out: &mut StringBuilder) -> Option<&'a str> {
    let digits = text.get(..num_digits)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    out.push_code(u32::from_str_radix(digits, 16).ok()?)?;
    Some(&text[num_digits..])
}

/// Builds a string from code points, and joins pairs of surrogates.
#[derive(Debug, Default)]
struct StringBuilder {
    text: String,
    /// A high surrogate whose low surrogate may follow.
    high_surrogate: Option<u32>,
}

impl StringBuilder {
    fn push(&mut self, c: char) {
        self.end_pair();
        self.text.push(c);
    }

    /// Appends a code point. Returns `None` if it is not a character.
    fn push_code(&mut self, code: u32) -> Option<()> {
        match (self.high_surrogate, code) {
            (_, 0xd800..0xdc00) => {
                self.end_pair();
                self.high_surrogate = Some(code);
            }
            (Some(high), 0xdc00..0xe000) => {
                self.high_surrogate = None;
                self.text.push(char::from_u32(0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00))?);
            }
            (None, 0xdc00..0xe000) => self.push(char::REPLACEMENT_CHARACTER),
            _ => self.push(char::from_u32(code)?),
        }
        Some(())
    }

    /// Replaces a high surrogate that has no low one.
    fn end_pair(&mut self) {
        if self.high_surrogate.take().is_some() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn finish(mut self) -> String {
        self.end_pair();
        self.text
    }
}
