//! Parses calls written as a Python list, `[name(key=value, ...), ...]`, or one a line.

use std::collections::HashSet;

use serde_json::Number;

use crate::python_string::{self, StringScanner};
use crate::signature::{self, Signature};

const MAX_DEPTH: usize = 32;

/// The result of reading some text of a possible list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListScan {
    /// All of the text belongs to the list, and more may follow.
    Incomplete,
    /// The list ended before this byte.
    Complete(usize),
    /// The text does not begin with a list.
    NotAList,
}

/// Finds the end of a list by counting brackets outside strings.
#[derive(Debug, Clone, Default)]
pub struct ListScanner {
    pos: usize,
    depth: usize,
    strings: StringScanner,
    /// The byte that ends a list without brackets.
    end: Option<u8>,
}

impl ListScanner {
    /// Creates a scanner of the list that begins at the byte `start` of the text.
    pub fn new(start: usize) -> Self {
        Self { pos: start, ..Self::default() }
    }

    /// Creates a scanner of calls without a bracket around them, which end before the byte `end`.
    pub fn new_lines(start: usize, end: u8) -> Self {
        Self { pos: start, end: Some(end), ..Self::default() }
    }

    /// Continues with `text`, which is the text of the last call with more appended.
    pub fn read(&mut self, text: &str) -> ListScan {
        for &byte in &text.as_bytes()[self.pos..] {
            self.pos += 1;
            if self.depth > 0 && self.strings.is_in_string(byte) {
                continue;
            }
            match byte {
                _ if self.depth == 0 && self.end == Some(byte) => return ListScan::Complete(self.pos - 1),
                b'[' | b'(' | b'{' if self.depth > 0 || self.end.is_some() || byte == b'[' => self.depth += 1,
                b']' | b')' | b'}' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 && self.end.is_none() {
                        return ListScan::Complete(self.pos);
                    }
                }
                _ if self.depth == 0 && self.end.is_none() && !byte.is_ascii_whitespace() => {
                    return ListScan::NotAList;
                }
                _ => {}
            }
        }
        ListScan::Incomplete
    }
}

/// Returns true if `text` may begin calls of known tools: `[`, if they are a list, then a name and `(`.
pub fn may_be_calls(text: &str, tools: &[Signature]) -> bool {
    let text = text.trim_start();
    let rest = text.strip_prefix('[').unwrap_or(text).trim_start();
    match rest.split_once('(') {
        Some((name, _)) => signature::is_known(tools, name.trim_end()),
        None => signature::may_be_known(tools, rest.trim_end()),
    }
}

/// Parses a complete list of calls into names and JSON objects of arguments. Returns `None` if it is anything else.
pub fn parse(list: &str) -> Option<Vec<(String, String)>> {
    let mut parser = Parser { rest: list.trim() };
    let mut calls = Vec::new();
    if parser.take("[").is_some() {
        parser.list("]", |parser| {
            calls.push(parser.call()?);
            Some(())
        })?;
    } else {
        while !parser.rest.trim().is_empty() {
            calls.push(parser.call()?);
        }
    }
    parser.rest.trim().is_empty().then_some(calls)
}

/// Parses a Python literal and returns it as JSON.
pub fn literal(text: &str) -> Option<String> {
    let (mut parser, mut json) = (Parser { rest: text }, String::new());
    parser.value(0, &mut json)?;
    parser.rest.trim().is_empty().then_some(json)
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

    /// Parses items separated by commas up to `close`, and returns whether a comma follows the last item.
    fn list(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<bool> {
        let mut has_comma = false;
        while self.take(close).is_none() {
            item(self)?;
            has_comma = self.take(",").is_some();
            if !has_comma {
                self.take(close)?;
                break;
            }
        }
        Some(has_comma)
    }

    /// Parses one call, `name(key=value, ...)`.
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

    /// Parses a [Python literal](https://docs.python.org/3/library/ast.html#ast.literal_eval) and writes it as JSON.
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

    /// Parses a list or a tuple. A single value in parentheses is that value.
    fn items(&mut self, open: &str, close: &str, depth: usize, out: &mut String) -> Option<()> {
        self.take(open)?;
        let start = out.len();
        let mut num_items = 0;
        out.push('[');
        let has_trailing_comma = self.list(close, |parser| {
            if num_items > 0 {
                out.push(',');
            }
            num_items += 1;
            parser.value(depth + 1, out)
        })?;
        if open == "(" && num_items == 1 && !has_trailing_comma {
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

    /// Parses a number and returns it as JSON. An integer keeps all its digits.
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

    /// Parses a string. Adjacent literals are one string, as in Python.
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

/// Appends a key to a JSON object, after a comma if it is not the first.
fn push_key(key: &str, out: &mut String) -> Option<()> {
    if !out.ends_with('{') {
        out.push(',');
    }
    out.push_str(&serde_json::to_string(key).ok()?);
    out.push(':');
    Some(())
}
