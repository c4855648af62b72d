//! The launcher's own log lines.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::SystemTime;

use serde_json::Value;
pub use trunkline_log::Format;
use trunkline_log::Line;
use trunkline_settings::{Choice, LogLevel};

const TARGET: &str = "launcher";

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
    let fields = fields.iter().map(|(key, field)| (*key, value(field.to_string()))).collect();
    let line = Line { at: now, level: &level.name().to_uppercase(), target: TARGET, message, fields };
    line.render(format) + "\n"
}

/// Turns the text of a number into a number.
fn value(text: String) -> Value {
    match text.parse::<u64>() {
        Ok(number) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}
