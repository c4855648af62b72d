//! Log lines on stderr, in the format that all processes share.

use std::fmt;
use std::io::{IsTerminal as _, Write};
use std::time::SystemTime;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use trunkline_log::Line;
use trunkline_settings::{Choice as _, LogFormat, LogLevel};

use crate::repeats::{PERIOD, Repeats};

/// The prefix of the names of this project's crates.
const OWN_TARGETS: &str = "trunkline";
/// The name of this process in log lines.
const TARGET: &str = "router";

/// Starts logging up to `level`. Libraries log up to `info`, because their details, such as each frame of HTTP/2, would
/// hide everything else. The caller reports what `repeats` leaves out.
pub fn init(level: LogLevel, format: LogFormat, repeats: Repeats) -> anyhow::Result<()> {
    subscriber(level, format, repeats, std::io::stderr)?
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging is already started: {error}"))?;
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let message = payload.downcast_ref::<&str>().copied().map(str::to_owned);
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        // The messages of failed slicing quote the sliced text, possibly a prompt, after a backtick.
        let message = message.split('`').next().unwrap_or_default();
        tracing::error!(place, error = message, "panic");
    }));
    Ok(())
}

/// Returns what writes the lines of one thread, or of the process, to `writer`.
pub fn subscriber<W>(
    level: LogLevel,
    format: LogFormat,
    repeats: Repeats,
    writer: W,
) -> anyhow::Result<impl Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = match level {
        LogLevel::Debug | LogLevel::Trace => format!("info,{OWN_TARGETS}={}", level.name()),
        _ => level.name().to_owned(),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter)?)
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(LineFormat { format });
    Ok(subscriber.finish().with(repeats))
}

/// Reports to stderr, period by period, how many lines were left out.
pub async fn report_left_out(repeats: Repeats, format: LogFormat) {
    loop {
        tokio::time::sleep(PERIOD).await;
        write_left_out(&repeats, format, std::io::stderr());
    }
}

/// Ends a period and writes how many lines were left out in it.
pub fn write_left_out(repeats: &Repeats, format: LogFormat, mut out: impl Write) {
    for place in repeats.next_period() {
        let (message, left_out) = (&place.message, place.num_events);
        let line = Line {
            at: SystemTime::now(),
            level: place.metadata.level().as_str(),
            target: short_target(place.metadata.target()),
            message: &format!("{message} ... {left_out} more like this in the last {} s", PERIOD.as_secs()),
            fields: vec![("left_out", left_out.into())],
        };
        // There is no other place to report that stderr is closed.
        let _ = out.write_all((line.render(format) + "\n").as_bytes());
    }
}

struct LineFormat {
    format: LogFormat,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = Line {
            at: SystemTime::now(),
            level: event.metadata().level().as_str(),
            target: short_target(event.metadata().target()),
            message: &fields.message,
            fields: fields.values,
        };
        let line = line.render(self.format);
        writeln!(out, "{line}")
    }
}

/// Returns `router` for modules of the router's crates, and the crate's name for a library.
fn short_target(target: &str) -> &str {
    let name = target.split("::").next().unwrap_or_default();
    match name.strip_prefix("trunkline_") {
        Some("router" | "api" | "generation" | "engine" | "http" | "base") => TARGET,
        _ => name,
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// All fields except the message, in order.
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        } else {
            self.values.push((field.name(), value));
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
