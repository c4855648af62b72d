//! Calls as a Python list: `[name(key=value, ...), ...]`.

use std::collections::HashSet;

use serde_json::Number;

use crate::python_string::{self, StringScanner};

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
    strings: StringScanner,
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
            if self.depth > 0 && self.strings.takes(byte) {
                continue;
            }
            match byte {
                b'[' | b'(' | b'{' if self.depth > 0 || byte == b'[' => self.depth += 1,
                b']' | b')' | b'}' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return ListEnd::At(self.at);
                    }
                }
                _ if self.depth == 0 && !byte.is_ascii_whitespace() => return ListEnd::NoList,
                _ => {}
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
pub fn parse(list: &str) -> Option<Vec<(String, String)>> {
    let mut parser = Parser { rest: list.trim() };
    parser.take("[")?;
    let mut calls = Vec::new();
    parser.list("]", |parser| {
        calls.push(parser.call()?);
        Some(())
    })?;
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

    /// Items with commas between them, and behind the last one or not, up to what closes them; whether a comma stands
    /// behind the last one.
    fn list(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<bool> {
        let mut is_behind_comma = false;
        while self.take(close).is_none() {
            item(self)?;
            is_behind_comma = self.take(",").is_some();
            if !is_behind_comma {
                self.take(close)?;
                break;
            }
        }
        Some(is_behind_comma)
    }

    /// `name(key=value, ...)`.
    fn call(&mut self) -> Option<(String, String)> {
        let name = self.name()?;
        self.take("(")?;
        let mut arguments = String::from("{");
        let mut keys = HashSet::new();
        self.list(")", |parser| {
            let key = parser.name()?;
            parser.take("=")?;
            push_key(&key, &mut arguments)?;
            parser.value(0, &mut arguments)?;
            keys.insert(key).then_some(())
        })?;
        arguments.push('}');
        Some((name, arguments))
    }

    /// A literal of Python's, as JSON: <https://docs.python.org/3/library/ast.html#ast.literal_eval>.
    fn value(&mut self, depth: usize, out: &mut String) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        if python_string::begins(self.rest) {
            out.push_str(&serde_json::to_string(&self.text()?).ok()?);
            return Some(());
        }
        match self.rest.as_bytes().first()? {
            b'[' => self.items("[", "]", depth, out),
            b'(' => self.items("(", ")", depth, out),
            b'{' => self.fields(depth, out),
            b'-' | b'+' | b'.' | b'0'..=b'9' => {
                out.push_str(&self.number()?);
                Some(())
            }
            _ => {
                out.push_str(match self.name()?.as_str() {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    _ => return None,
                });
                Some(())
            }
        }
    }

    /// A list or a tuple; a single value in parentheses is that value.
    fn items(&mut self, open: &str, close: &str, depth: usize, out: &mut String) -> Option<()> {
        self.take(open)?;
        let start = out.len();
        let mut num_items = 0;
        out.push('[');
        let is_behind_comma = self.list(close, |parser| {
            if num_items > 0 {
                out.push(',');
            }
            num_items += 1;
            parser.value(depth + 1, out)
        })?;
        if open == "(" && num_items == 1 && !is_behind_comma {
            out.remove(start);
        } else {
            out.push(']');
        }
        Some(())
    }

    fn fields(&mut self, depth: usize, out: &mut String) -> Option<()> {
        self.take("{")?;
        out.push('{');
        self.list("}", |parser| {
            let key = parser.text()?;
            parser.take(":")?;
            push_key(&key, out)?;
            parser.value(depth + 1, out)
        })?;
        out.push('}');
        Some(())
    }

    /// As JSON; integers have all their digits.
    fn number(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E' | '_');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.replace('_', "");
        let digits = text.strip_prefix(['-', '+']).unwrap_or(&text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Number::from_f64(text.parse().ok()?).map(|number| number.to_string());
        }
        Some(match digits.trim_start_matches('0') {
            "" => "0".to_owned(),
            digits if text.starts_with('-') => format!("-{digits}"),
            digits => digits.to_owned(),
        })
    }

    /// Strings that follow each other are one.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let (part, rest) = python_string::parse(self.rest.trim_start())?;
            text.push_str(&part);
            self.rest = rest;
            if !python_string::begins(rest.trim_start()) {
                return Some(text);
            }
        }
    }
}

/// A member's name behind those before it.
fn push_key(key: &str, out: &mut String) -> Option<()> {
    if !out.ends_with('{') {
        out.push(',');
    }
    out.push_str(&serde_json::to_string(key).ok()?);
    out.push(':');
    Some(())
}
