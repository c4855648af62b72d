//! One line of a log, in the format that all processes share. The shard's formatters are in
//! `server/trunkline_server/logs.py`.
//!
//! Router and launcher collect the fields of an event and write them as a [`Line`]; `ecs.rs` has the names of the
//! Elastic Common Schema. The crate writes nowhere and reads no clock. It uses only the settings.

mod ecs;

use std::fmt::Write as _;
use std::time::SystemTime;

use serde_json::{Map, Value};
use trunkline_settings::LogFormat;

/// An event of a log.
#[derive(Debug)]
pub struct Line<'a> {
    pub at: SystemTime,
    /// The level's name in upper case, such as `INFO`.
    pub level: &'a str,
    /// The process or library that the line is from.
    pub target: &'a str,
    pub message: &'a str,
    pub fields: Vec<(&'a str, Value)>,
}

impl Line<'_> {
    /// Renders the line without a newline at its end. It contains none either.
    pub fn render(self, format: LogFormat) -> String {
        match format {
            LogFormat::Text => self.text(),
            LogFormat::Json => self.json(),
            LogFormat::Ecs => self.ecs(),
        }
    }

    fn text(self) -> String {
        let message = self.message.replace('\r', "\\r").replace('\n', "\\n");
        let mut line = format!("{} {:>5} {}: {message}", self.timestamp(), self.level, self.target);
        for (key, value) in self.fields {
            // Writing to a string cannot fail.
            let _ = match value {
                Value::String(text) if is_plain(&text) => write!(line, " {key}={text}"),
                value => write!(line, " {key}={value}"),
            };
        }
        line
    }

    fn json(self) -> String {
        let mut object = Map::new();
        object.insert("timestamp".into(), self.timestamp().into());
        object.insert("level".into(), self.level.into());
        object.insert("target".into(), self.target.into());
        object.insert("message".into(), self.message.into());
        for (key, value) in self.fields {
            object.entry(key).or_insert(value);
        }
        Value::Object(object).to_string()
    }

    fn timestamp(&self) -> String {
        humantime::format_rfc3339_millis(self.at).to_string()
    }
}

/// Returns false for a value that needs quotes, so that lines of `key=value` can be parsed.
fn is_plain(value: &str) -> bool {
    !value.is_empty()
        && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '=' || c.is_control())
}
