//! Python's string literals: <https://docs.python.org/3/reference/lexical_analysis.html#string-and-bytes-literals>.

/// Where in strings a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Outside,
    /// After the first quote.
    Opened(u8),
    /// After two: an empty string, or the beginning of three quotes.
    Pair(u8),
    /// In a string that one quote ends.
    Single(u8),
    /// In a string that three quotes end, so many of which were there.
    Triple(u8, u8),
}

/// Tells what stands in strings, byte by byte.
#[derive(Debug, Clone, Copy, Default)]
pub struct StringScanner {
    state: State,
    is_escaped: bool,
}

impl StringScanner {
    /// Whether the next byte belongs to a string.
    pub fn takes(&mut self, byte: u8) -> bool {
        if std::mem::take(&mut self.is_escaped) {
            return true;
        }
        let is_opening = matches!(byte, b'"' | b'\'');
        self.state = match self.state {
            State::Opened(quote) if byte == quote => State::Pair(quote),
            State::Pair(quote) if byte == quote => State::Triple(quote, 0),
            State::Outside | State::Pair(_) if is_opening => State::Opened(byte),
            State::Outside | State::Pair(_) => State::Outside,
            State::Single(quote) if byte == quote => State::Outside,
            State::Triple(quote, 2) if byte == quote => State::Outside,
            State::Triple(quote, num) if byte == quote => State::Triple(quote, num + 1),
            State::Opened(quote) | State::Single(quote) => State::Single(quote),
            State::Triple(quote, _) => State::Triple(quote, 0),
        };
        self.is_escaped = byte == b'\\' && self.state != State::Outside;
        // The quote that ends a string belongs to it.
        self.state != State::Outside || is_opening
    }
}

/// Whether a string begins here.
pub fn begins(text: &str) -> bool {
    quoted(text).starts_with(['"', '\''])
}

/// A literal without the letter before its quotes.
fn quoted(literal: &str) -> &str {
    literal.strip_prefix(['r', 'R', 'u', 'U']).unwrap_or(literal)
}

/// What a literal says that the text begins with, and what follows it.
pub fn parse(literal: &str) -> Option<(String, &str)> {
    let is_raw = literal.starts_with(['r', 'R']);
    let quoted = quoted(literal);
    let mark = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|mark| quoted.starts_with(mark))?;
    let mut rest = &quoted[mark.len()..];
    let mut text = Characters::default();
    loop {
        if let Some(rest) = rest.strip_prefix(mark) {
            return Some((text.finish(), rest));
        }
        let mut chars = rest.chars();
        match chars.next()? {
            '\\' if is_raw => {
                text.push('\\');
                text.push(chars.next()?);
            }
            '\\' => {
                rest = escape(chars.as_str(), &mut text)?;
                continue;
            }
            c => text.push(c),
        }
        rest = chars.as_str();
    }
}

/// What follows a backslash; the text behind it.
fn escape<'a>(text: &'a str, out: &mut Characters) -> Option<&'a str> {
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
        'x' => return code(rest, 2, out),
        'u' => return code(rest, 4, out),
        'U' => return code(rest, 8, out),
        '0'..='7' => {
            let end = text.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            out.push_code(u32::from_str_radix(&text[..end], 8).ok()?)?;
            return Some(&text[end..]);
        }
        '\\' | '\'' | '"' => out.push(escaped),
        // Python keeps the backslash of what is no escape.
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    Some(rest)
}

/// A character by its number in so many hexadecimal digits; the text behind it.
fn code<'a>(text: &'a str, num_digits: usize, out: &mut Characters) -> Option<&'a str> {
    let digits = text.get(..num_digits)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    out.push_code(u32::from_str_radix(digits, 16).ok()?)?;
    Some(&text[num_digits..])
}

/// A text of characters, of which some come as two surrogates.
#[derive(Debug, Default)]
struct Characters {
    text: String,
    /// The first of two.
    high: Option<u32>,
}

impl Characters {
    fn push(&mut self, c: char) {
        self.end_pair();
        self.text.push(c);
    }

    /// None if there is no such character.
    fn push_code(&mut self, code: u32) -> Option<()> {
        match (self.high, code) {
            (_, 0xd800..0xdc00) => {
                self.end_pair();
                self.high = Some(code);
            }
            (Some(high), 0xdc00..0xe000) => {
                self.high = None;
                self.text.push(char::from_u32(0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00))?);
            }
            (None, 0xdc00..0xe000) => self.push(char::REPLACEMENT_CHARACTER),
            _ => self.push(char::from_u32(code)?),
        }
        Some(())
    }

    /// A surrogate alone is no character.
    fn end_pair(&mut self) {
        if self.high.take().is_some() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn finish(mut self) -> String {
        self.end_pair();
        self.text
    }
}
