//! The launcher's own log lines.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::time::SystemTime;

use serde_json::Value;
use trunkline_log::Line;
use trunkline_settings::{Choice, LogFormat, LogLevel};

const TARGET: &str = "launcher";

/// The launcher's log, which writes one line per event to stderr.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    format: LogFormat,
    level: LogLevel,
}

/// A named value in a log line.
pub type Field<'a> = (&'a str, &'a dyn Display);

impl Log {
    /// Creates a log that writes lines up to `level`.
    pub fn new(format: LogFormat, level: LogLevel) -> Self {
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

/// The place of the level in a line of the text format, behind a timestamp of 24 characters and a blank.
const LEVEL: std::ops::Range<usize> = 25..30;
const RED: &str = "31";
const YELLOW: &str = "33";
const GREEN: &str = "32";
const GREY: &str = "90";

/// Writes a line, including its newline, to stderr without interleaving it with other threads' lines. On a terminal,
/// its level has a colour.
///
/// A failed write is ignored: a closed stderr must not end the server, and there is no other place to report it.
pub fn write_line(line: &[u8]) {
    static HAS_COLOURS: LazyLock<bool> = LazyLock::new(|| {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        io::stderr().is_terminal()
            && !is_set("NO_COLOR")
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    });
    let coloured = if *HAS_COLOURS { coloured(line) } else { None };
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(coloured.as_deref().unwrap_or(line)).and_then(|()| stderr.flush());
}

/// Colours the level of a line in the text format, or the word `error` of a final line; `None` if it has neither.
pub fn coloured(line: &[u8]) -> Option<Vec<u8>> {
    let (word, colour) = if line.starts_with(b"error: ") {
        (0..5, RED)
    } else {
        let colour = match line.get(LEVEL)? {
            b"ERROR" => RED,
            b" WARN" => YELLOW,
            b" INFO" => GREEN,
            b"DEBUG" | b"TRACE" => GREY,
            _ => return None,
        };
        (LEVEL, colour)
    };
    let [start, end] = [format!("\x1b[{colour}m"), "\x1b[0m".to_owned()];
    Some(
        [&line[..word.start], start.as_bytes(), &line[word.clone()], end.as_bytes(), &line[word.end..]]
            .concat(),
    )
}

/// Renders a log line, including its newline.
pub fn render(
    format: LogFormat,
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
