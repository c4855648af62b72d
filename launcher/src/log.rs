//! The launcher's own log lines, in the format that all processes share (docs/parts/launcher.md).

use std::fmt::Display;
use std::io::{self, Write};
use std::time::SystemTime;

use serde_json::{Map, Value};
use trunkline_settings::{Choice, LogLevel};

const TARGET: &str = "launcher";

/// The format of log lines: text, or one JSON object per line (`--json-output`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `2026-01-31T12:00:00.000Z  INFO launcher: message key=value`
    Text,
    /// `{"timestamp","level","target","message",...fields}`
    Json,
}

/// The launcher's log, which writes one line per event to stderr.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    format: Format,
    level: LogLevel,
}

/// A named value in a log line.
pub type Field<'a> = (&'a str, &'a dyn Display);

impl Log {
    /// Creates a log that writes lines up to `level`.
    pub fn new(format: Format, level: LogLevel) -> Self {
        Self { format, level }
    }

    /// Logs a problem that needs attention.
    pub fn warn(&self, message: &str, fields: &[Field<'_>]) {
        self.write(LogLevel::Warn, message, fields);
    }

    /// Logs a start, stop or restart.
    pub fn info(&self, message: &str, fields: &[Field<'_>]) {
        self.write(LogLevel::Info, message, fields);
    }

    /// Logs details that help to find a fault.
    pub fn debug(&self, message: &str, fields: &[Field<'_>]) {
        self.write(LogLevel::Debug, message, fields);
    }

    fn write(&self, level: LogLevel, message: &str, fields: &[Field<'_>]) {
        if level <= self.level {
            write_line(render(self.format, SystemTime::now(), level, message, fields).as_bytes());
        }
    }
}

/// Writes a line, including its newline, to stderr without interleaving it with other threads' lines.
///
/// A failed write is ignored: a closed stderr must not end the server, and there is no other place to report it.
pub fn write_line(line: &[u8]) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(line).and_then(|()| stderr.flush());
}

/// Renders a log line, including its newline.
pub fn render(
    format: Format,
    now: SystemTime,
    level: LogLevel,
    message: &str,
    fields: &[Field<'_>],
) -> String {
    let timestamp = humantime::format_rfc3339_millis(now).to_string();
    let name = level.name().to_uppercase();
    match format {
        Format::Text => {
            let mut line = format!("{timestamp} {name:>5} {TARGET}: {message}");
            for (key, value) in fields {
                line.push_str(&format!(" {key}={}", quoted(&value.to_string())));
            }
            line.push('\n');
            line
        }
        Format::Json => {
            let mut object = Map::new();
            object.insert("timestamp".into(), timestamp.into());
            object.insert("level".into(), name.into());
            object.insert("target".into(), TARGET.into());
            object.insert("message".into(), message.into());
            for (key, value) in fields {
                let text = value.to_string();
                let number = text.parse::<u64>().ok().map(Value::from);
                object.insert((*key).into(), number.unwrap_or_else(|| text.into()));
            }
            format!("{}\n", Value::Object(object))
        }
    }
}

/// Puts a value with blanks or quotes in quotes, so that lines of `key=value` can be parsed.
fn quoted(value: &str) -> String {
    let plain = !value.is_empty()
        && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '=' || c.is_control());
    if plain { value.to_owned() } else { Value::from(value).to_string() }
}
