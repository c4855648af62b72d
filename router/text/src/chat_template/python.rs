//! Features of Python and transformers that templates expect: printing of values, `json.dumps`, and generation tags.

use minijinja::value::{Kwargs, StringInput, Value as Variable, ValueKind};
use minijinja::{Error, ErrorKind, Output};
use serde::Serialize;
use serde_json::Value;

use super::BoundedOutput;

/// Prints a value as Jinja2 does, which is `str(value)`, or nothing for an undefined value.
pub fn write(out: &mut Output<'_>, value: &Variable) -> Result<(), Error> {
    check_extent(value)?;
    let write_failed = |error| Error::new(ErrorKind::WriteFailure, "cannot write").with_source(error);
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()).map_err(write_failed),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            match serde_json::to_value(value) {
                Ok(plain) => {
                    let mut text = String::new();
                    write_repr(&mut text, &plain);
                    out.write_str(&text).map_err(write_failed)
                }
                // A value that contains functions is printed by the engine.
                Err(_) => write!(out, "{value}").map_err(write_failed),
            }
        }
        _ => write!(out, "{value}").map_err(write_failed),
    }
}

/// The deepest nesting and the most elements of a value that a template prints. A namespace may contain itself, and
/// printing it would not end.
const MAX_DEPTH: usize = 128;
const MAX_ELEMENTS: usize = 1 << 20;

/// Refuses a value that is too deep or too large to be printed.
fn check_extent(value: &Variable) -> Result<(), Error> {
    let mut num_left = MAX_ELEMENTS;
    if is_bounded(value, MAX_DEPTH, &mut num_left) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        "the value contains itself, or has too many elements to be printed",
    ))
}

fn is_bounded(value: &Variable, depth: usize, num_left: &mut usize) -> bool {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return true;
    }
    let Ok(items) = value.try_iter() else { return true };
    let is_map = value.kind() == ValueKind::Map;
    for item in items {
        *num_left = num_left.saturating_sub(1);
        // A map's iterator yields its keys.
        let item = if is_map { value.get_item(&item).unwrap_or_default() } else { item };
        if depth == 0 || *num_left == 0 || !is_bounded(&item, depth - 1, num_left) {
            return false;
        }
    }
    true
}

/// The widest indent that a template may ask for.
const MAX_INDENT: usize = 256;

fn check_indent(width: Option<usize>) -> Result<(), Error> {
    match width {
        Some(width) if width > MAX_INDENT => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("an indent of {width} is too wide")))
        }
        _ => Ok(()),
    }
}

/// Implements the filter `indent` for widths within bounds.
pub fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Variable, Error> {
    let asked = width.map_or_else(|| kwargs.peek::<Option<usize>>("width"), |width| Ok(Some(width)))?;
    check_indent(asked)?;
    minijinja::filters::indent(text, width, first, blank, kwargs)
}

/// Writes a value as Python's `repr` does.
fn write_repr(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => push_number(out, number),
        Value::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            out.push(quote);
            for char in text.chars() {
                match char {
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    '\\' => out.push_str("\\\\"),
                    char if char == quote => out.extend(['\\', char]),
                    char => out.push(char),
                }
            }
            out.push(quote);
        }
        Value::Array(items) => {
            out.push('[');
            for (idx, item) in items.iter().enumerate() {
                out.push_str(if idx == 0 { "" } else { ", " });
                write_repr(out, item);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (idx, (name, item)) in fields.iter().enumerate() {
                out.push_str(if idx == 0 { "" } else { ", " });
                write_repr(out, &Value::String(name.clone()));
                out.push_str(": ");
                write_repr(out, item);
            }
            out.push('}');
        }
    }
}

/// Writes a number as Python's `repr` and `json.dumps` do.
fn push_number(out: &mut String, number: &serde_json::Number) {
    match number.as_f64() {
        Some(float) if number.is_f64() => out.push_str(&float_repr(float)),
        _ => out.push_str(&number.to_string()),
    }
}

/// Formats a float as Python's `repr` does, with an exponent below 1e-4 and from 1e16 on, and else with a decimal
/// point.
fn float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => {
            let plain = float.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

/// Implements the filter `tojson` as transformers defines it, which is `json.dumps` with `ensure_ascii=False`.
pub fn to_json(value: &Variable, options: &Kwargs) -> Result<Variable, Error> {
    let failed = |error: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, "the value has no JSON form").with_source(error)
    };
    let indent: Option<usize> = options.get("indent")?;
    check_indent(indent)?;
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;

    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no JSON form"));
    }
    check_extent(value)?;
    let mut plain = serde_json::to_value(value).map_err(failed)?;
    if sort_keys {
        plain.sort_all_objects();
    }
    let default_item_separator = if indent.is_some() { "," } else { ", " };
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        None => (default_item_separator, ": "),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "`separators` is not a pair")),
    };
    let style = PythonStyle { indent, item, key, ensure_ascii, depth: 0, is_empty: true };
    let mut out = BoundedOutput::default();
    plain.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(failed)?;
    let text = String::from_utf8(out.bytes)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "JSON is not UTF-8").with_source(error))?;
    Ok(Variable::from(text))
}

/// Returns the JSON text of a value as `json.dumps` writes it with `ensure_ascii=False`.
pub fn json(value: &Value) -> String {
    let style =
        PythonStyle { indent: None, item: ", ", key: ": ", ensure_ascii: false, depth: 0, is_empty: true };
    let mut out = Vec::new();
    // Writing to memory cannot fail, because all map keys are strings.
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).unwrap_or_default();
    String::from_utf8_lossy(&out).into_owned()
}

/// Formats JSON with the separators, the indentation and the numbers of `json.dumps`.
struct PythonStyle<'a> {
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    ensure_ascii: bool,
    depth: usize,
    /// True while the innermost list or object has no item.
    is_empty: bool,
}

impl PythonStyle<'_> {
    fn new_line<W: ?Sized + std::io::Write>(&self, out: &mut W) -> std::io::Result<()> {
        match self.indent {
            Some(indent) => write!(out, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + std::io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + std::io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.new_line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }

    fn begin_item<W: ?Sized + std::io::Write>(&mut self, out: &mut W, is_first: bool) -> std::io::Result<()> {
        if !is_first {
            out.write_all(self.item.as_bytes())?;
        }
        self.new_line(out)
    }
}

impl serde_json::ser::Formatter for PythonStyle<'_> {
    fn write_f64<W: ?Sized + std::io::Write>(&mut self, out: &mut W, value: f64) -> std::io::Result<()> {
        out.write_all(float_repr(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> std::io::Result<()> {
        if !self.ensure_ascii || text.is_ascii() {
            return out.write_all(text.as_bytes());
        }
        for char in text.chars() {
            if char.is_ascii() {
                write!(out, "{char}")?;
            } else {
                let mut units = [0; 2];
                for unit in char.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin_item(out, first)
    }

    fn end_array_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin_item(out, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + std::io::Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.is_empty = false;
        Ok(())
    }
}

/// Replaces transformers' tags `generation` and `endgeneration` by `if true` and `endif`, which strip the same white
/// space.
///
/// The tags mark an assistant's tokens for training and print nothing.
pub fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start + 2..].find("%}").map(|at| at + 4) else { break };
        let tag = &rest[start..start + len];
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match inner {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => {
                // Only the opening is skipped, because a string in the tag may contain what looks like its end.
                out.push_str("{%");
                rest = &rest[start + 2..];
                continue;
            }
        }
        rest = &rest[start + len..];
    }
    out.push_str(rest);
    out
}
