//! Grammars that are written in the parser's Lark.

pub(crate) mod ebnf;
pub(crate) mod structural_tag;

use std::fmt::Write;

use serde_json::Value;

/// Collects the rules of a grammar.
#[derive(Debug, Default)]
pub(crate) struct LarkWriter {
    text: String,
    num_names: usize,
}

impl LarkWriter {
    /// Adds a rule and returns its name.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        let name = self.reserve();
        self.define(&name, body);
        name
    }

    /// Adds an expression that is matched as one piece of text, and returns its name.
    pub(crate) fn terminal(&mut self, body: &str) -> String {
        let name = self.reserve().to_uppercase();
        self.define(&name, body);
        name
    }

    /// Returns the name of a rule that is defined later.
    pub(crate) fn reserve(&mut self) -> String {
        self.num_names += 1;
        format!("r{}", self.num_names)
    }

    pub(crate) fn define(&mut self, name: &str, body: &str) {
        // A string takes any text.
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// Returns the grammar that begins with a rule.
    pub(crate) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.text)
    }
}

/// Writes a text as a literal. A JSON string is also a Lark literal, escapes included.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writes a regular expression as a literal.
pub(crate) fn expression(regex: &str) -> String {
    let mut escaped = String::new();
    let mut chars = regex.chars();
    while let Some(char) = chars.next() {
        match char {
            '/' => escaped.push_str("\\/"),
            '\n' => escaped.push_str("\\n"),
            '\\' => {
                escaped.push('\\');
                escaped.extend(chars.next());
            }
            char => escaped.push(char),
        }
    }
    format!("/{escaped}/")
}
