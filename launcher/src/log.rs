//! The launcher's own log lines, in the one format of all processes (docs/architecture.md).

use std::fmt::Display;
use std::io::{self, Write};
use std::time::SystemTime;

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::args::choice::AsFlag;

const TARGET: &str = "launcher";

/// How much is logged, by all processes alike; also a value of `--log-level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// What ends something.
    Error,
    /// What someone should look at.
    Warn,
    /// Starts, stops, restarts.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Text for people or one JSON object a line for machines (`--json-output`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `2026-01-31T12:00:00.000Z  INFO launcher: message key=value`
    Text,
    /// `{"timestamp","level","target","message",...fields}`
    Json,
}

/// Where the launcher's log lines go: stderr, one line an event.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    format: Format,
    level: Level,
}

/// One named value of a log line.
pub type Field<'a> = (&'a str, &'a dyn Display);

impl Log {
    /// A log that writes lines up to `level` in `format`.
    pub fn new(format: Format, level: Level) -> Self {
        Self { format, level }
    }

    /// Logs what someone should look at.
    pub fn warn(&self, message: &str, fields: &[Field<'_>]) {
        self.write(Level::Warn, message, fields);
    }

    /// Logs a start, stop or restart.
    pub fn info(&self, message: &str, fields: &[Field<'_>]) {
        self.write(Level::Info, message, fields);
    }

    /// Logs what helps to find a fault.
    pub fn debug(&self, message: &str, fields: &[Field<'_>]) {
        self.write(Level::Debug, message, fields);
    }

    fn write(&self, level: Level, message: &str, fields: &[Field<'_>]) {
        if level <= self.level {
            write_line(render(self.format, SystemTime::now(), level, message, fields).as_bytes());
        }
    }
}

/// Writes one whole line, newline included, to stderr, never interleaved with another thread's line.
///
/// A stderr that nobody reads any more must not end the server, and there is no other place to say so: a failed write
/// is dropped.
pub fn write_line(line: &[u8]) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(line).and_then(|()| stderr.flush());
}

/// One log line, newline included.
pub fn render(format: Format, now: SystemTime, level: Level, message: &str, fields: &[Field<'_>]) -> String {
    let timestamp = humantime::format_rfc3339_millis(now).to_string();
    let name = level.as_flag().to_uppercase();
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

/// A value with blanks or quotes in quotes, so that a line of `key=value` can be taken apart again.
fn quoted(value: &str) -> String {
    let plain = !value.is_empty()
        && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '=' || c.is_control());
    if plain { value.to_owned() } else { Value::from(value).to_string() }
}
