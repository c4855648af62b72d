//! Log lines on stderr, in the format that all processes share.
//!
//! `2026-01-31T12:00:00.000Z  INFO router: message key=value`, or with `--json-output` one JSON object per line.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use trunkline_settings::{Choice as _, LogLevel};

/// The name of this process in log lines.
const TARGET: &str = "router";

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogForm {
    /// Lines of text for human readers.
    Text,
    /// One JSON object on each line.
    Json,
}

/// Starts logging up to `level`.
pub fn init(level: LogLevel, form: LogForm) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(level.name())?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(LineFormat { form })
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging is already started: {error}"))?;
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let message = payload.downcast_ref::<&str>().copied().map(str::to_owned);
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        // The messages of failed slicing quote the sliced text, possibly a prompt, after a backtick.
        let message = message.split('`').next().unwrap_or_default();
        tracing::error!(place, message, "panic");
    }));
    Ok(())
}

struct LineFormat {
    form: LogForm,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = timestamp(since.as_secs(), since.subsec_millis());
        let level = *event.metadata().level();
        let target = short_target(event.metadata().target());
        let line = match self.form {
            LogForm::Text => text_line(&time, level, target, &fields),
            LogForm::Json => json_line(time, level, target, fields),
        };
        writeln!(out, "{line}")
    }
}

/// Returns `router` for this crate's modules, and the crate's name for a library.
fn short_target(target: &str) -> &str {
    match target.split("::").next() {
        Some("trunkline_router") | None => TARGET,
        Some(name) => name,
    }
}

#[doc(hidden)]
pub fn text_line(time: &str, level: Level, target: &str, fields: &Fields) -> String {
    let mut line = format!("{time} {level:>5} {target}: {}", one_line(&fields.message));
    for (key, value) in &fields.values {
        let text = match value {
            Value::String(text) if is_plain(text) => text.clone(),
            value => value.to_string(),
        };
        // Writing to a string cannot fail.
        let _ = write!(line, " {key}={text}");
    }
    line
}

fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_./:,+<>()[]{}@%".contains(c))
}

#[doc(hidden)]
pub fn json_line(time: String, level: Level, target: &str, fields: Fields) -> String {
    let mut object = Map::new();
    object.insert("timestamp".into(), time.into());
    object.insert("level".into(), level.as_str().into());
    object.insert("target".into(), target.into());
    object.insert("message".into(), fields.message.into());
    for (key, value) in fields.values {
        object.entry(key).or_insert(value);
    }
    Value::Object(object).to_string()
}

/// The message and the fields of an event.
#[doc(hidden)]
#[derive(Default)]
pub struct Fields {
    pub message: String,
    /// All fields except the message, in order.
    pub values: Vec<(String, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        } else {
            self.values.push((field.name().to_owned(), value));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

/// Formats a time since 1970 as RFC 3339 in UTC with milliseconds. Times after the year 9999 are shown as its end.
#[doc(hidden)]
pub fn timestamp(unix_s: u64, ms: u32) -> String {
    const END_OF_9999: u64 = 253_402_300_799;
    let since = Duration::from_secs(unix_s.min(END_OF_9999)) + Duration::from_millis(u64::from(ms));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}
