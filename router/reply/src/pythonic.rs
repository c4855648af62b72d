//! Calls as a Python list: `[name(key=value, ...), ...]`.

use serde_json::{Map, Number, Value};

/// Deepest nesting of values.
const MAX_DEPTH: usize = 32;

/// Where a list is known to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListEnd {
    /// Not yet.
    Open,
    /// Before this byte.
    At(usize),
    /// It is no list.
    NoList,
}

/// Finds the end of a list by its brackets and strings.
#[derive(Debug, Clone, Default)]
pub struct ListScanner {
    at: usize,
    depth: usize,
    quote: Option<u8>,
    is_escaped: bool,
}

impl ListScanner {
    /// Before the list, which begins at this byte of the text.
    pub fn new(at: usize) -> Self {
        Self { at, ..Self::default() }
    }

    /// Goes on with `text`, which begins as it did the last time and has grown.
    pub fn read(&mut self, text: &str) -> ListEnd {
        for &byte in &text.as_bytes()[self.at..] {
            self.at += 1;
            match (self.quote, byte) {
                (Some(_), _) if self.is_escaped => self.is_escaped = false,
                (Some(_), b'\\') => self.is_escaped = true,
                (Some(quote), _) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') if self.depth > 0 => self.quote = Some(byte),
                (None, b'[' | b'(' | b'{') if self.depth > 0 || byte == b'[' => self.depth += 1,
                (None, b']' | b')' | b'}') if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return ListEnd::At(self.at);
                    }
                }
                (None, _) if self.depth == 0 && !byte.is_ascii_whitespace() => return ListEnd::NoList,
                (None, _) => {}
            }
        }
        ListEnd::Open
    }
}

/// Whether this may be the beginning of a list of calls of known tools, as far as that can be seen: `[`, a name, `(`.
pub fn may_be_calls(text: &str, tools: &[String]) -> bool {
    let Some(rest) = text.trim_start().strip_prefix('[') else { return text.trim_start().is_empty() };
    let rest = rest.trim_start();
    match rest.split_once('(') {
        Some((name, _)) => tools.iter().any(|tool| tool == name.trim_end()),
        None => tools.iter().any(|tool| tool.starts_with(rest.trim_end())),
    }
}

/// The calls of a whole list: names, and arguments as JSON objects; none if it is not one.
pub fn parse(list: &str) -> Option<Vec<(String, Value)>> {
    let mut parser = Parser { rest: list.trim() };
    parser.take("[")?;
    let mut calls = Vec::new();
    while parser.take("]").is_none() {
        if !calls.is_empty() {
            parser.take(",")?;
        }
        let name = parser.name()?;
        parser.take("(")?;
        let mut arguments = Map::new();
        while parser.take(")").is_none() {
            if !arguments.is_empty() {
                parser.take(",")?;
            }
            let key = parser.name()?;
            parser.take("=")?;
            arguments.insert(key, parser.value(0)?);
        }
        calls.push((name, Value::Object(arguments)));
    }
    parser.rest.trim().is_empty().then_some(calls)
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, mark: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(mark)?;
        Some(())
    }

    fn name(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// A literal of Python's: <https://docs.python.org/3/library/ast.html#ast.literal_eval>.
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.as_bytes().first()? {
            b'"' | b'\'' => self.text().map(Value::String),
            b'[' => self.items("[", "]", depth).map(Value::Array),
            b'(' => self.items("(", ")", depth).map(Value::Array),
            b'{' => self.fields(depth).map(Value::Object),
            b'-' | b'+' | b'.' | b'0'..=b'9' => self.number().map(Value::Number),
            _ => match self.name()?.as_str() {
                "True" | "true" => Some(true.into()),
                "False" | "false" => Some(false.into()),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        }
    }

    fn items(&mut self, open: &str, close: &str, depth: usize) -> Option<Vec<Value>> {
        self.take(open)?;
        let mut items = Vec::new();
        while self.take(close).is_none() {
            if !items.is_empty() {
                self.take(",")?;
                if self.take(close).is_some() {
                    break;
                }
            }
            items.push(self.value(depth + 1)?);
        }
        Some(items)
    }

    fn fields(&mut self, depth: usize) -> Option<Map<String, Value>> {
        self.take("{")?;
        let mut fields = Map::new();
        while self.take("}").is_none() {
            if !fields.is_empty() {
                self.take(",")?;
                if self.take("}").is_some() {
                    break;
                }
            }
            let Value::String(key) = self.value(depth + 1)? else { return None };
            self.take(":")?;
            fields.insert(key, self.value(depth + 1)?);
        }
        Some(fields)
    }

    fn number(&mut self) -> Option<Number> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E' | '_');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.replace('_', "");
        text.parse::<i64>().map(Number::from).ok().or_else(|| Number::from_f64(text.parse().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut chars = self.rest[1..].char_indices();
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => {
                    let (_, escaped) = chars.next()?;
                    match escaped {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        '\n' => {}
                        'x' => text.push(hex(&mut chars, 2)?),
                        'u' => text.push(hex(&mut chars, 4)?),
                        'U' => text.push(hex(&mut chars, 8)?),
                        '\\' | '\'' | '"' => text.push(escaped),
                        // Python keeps the backslash of what is no escape.
                        other => text.extend(['\\', other]),
                    }
                }
                c if c == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }
}

fn hex(chars: &mut std::str::CharIndices<'_>, num_digits: usize) -> Option<char> {
    let digits: String = chars.take(num_digits).map(|(_, c)| c).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn python_literals_become_json() {
        let list = r#"[get_weather(city='San "F"', days=3, exact=True, at=None, range=(1.5, -2), by={"a": ['x\n']}), no_arguments()]"#;
        let calls = parse(list).unwrap();
        assert_eq!(calls[0].0, "get_weather");
        assert_eq!(
            calls[0].1,
            json!({"city": "San \"F\"", "days": 3, "exact": true, "at": null, "range": [1.5, -2], "by": {"a": ["x\n"]}})
        );
        assert_eq!(calls[1], ("no_arguments".into(), json!({})));
        for list in ["[f(x=)]", "[f(1)]", "[f(x=y)]", "[f]", "[f(x=1) g()]", "[f(x='a)]"] {
            assert_eq!(parse(list), None, "{list}");
        }
    }

    #[test]
    fn lists_end_at_their_own_bracket() {
        assert_eq!(ListScanner::new(0).read(" [f(x=']', y=[1])] more"), ListEnd::At(18));
        assert_eq!(ListScanner::new(0).read("[f(x='\\']'"), ListEnd::Open);
        assert_eq!(ListScanner::new(0).read("f()"), ListEnd::NoList);
    }
}
