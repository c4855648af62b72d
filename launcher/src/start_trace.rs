//! The trace of a start (W3C Trace Context): one over launcher, router and shards.

use std::env;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::child::ChildId;

/// The variable by which processes inherit the span that they belong to, as OpenTelemetry names it.
pub(crate) const TRACEPARENT: &str = "TRACEPARENT";
/// The router alone exports what the launcher did: the id of the span that the launcher belongs to or `-`, and the
/// nanoseconds since 1970 at which it began and had resolved the models or `-`.
pub(crate) const LAUNCHER_SPAN: &str = "TRUNKLINE_LAUNCHER_SPAN";

/// The span of a launcher that starts a router and shards.
#[derive(Debug)]
pub(crate) struct StartTrace {
    traceparent: String,
    launcher_span: String,
}

impl StartTrace {
    /// Begins a span in the trace of this process's `TRACEPARENT`, or in a new one.
    ///
    /// resolved: when the launcher began to resolve the models, and when it was done.
    pub(crate) fn begin(resolved: Option<(SystemTime, SystemTime)>) -> Self {
        let inherited = env::var(TRACEPARENT).ok();
        let (trace, parent, flags) = match inherited.as_deref().and_then(parse) {
            Some((trace, span, flags)) => (trace.to_owned(), span.to_owned(), flags.to_owned()),
            None => (format!("{:016x}{:016x}", random(), random()), "-".to_owned(), "01".to_owned()),
        };
        let began = nanoseconds(resolved.map_or_else(SystemTime::now, |(began, _)| began));
        let resolved = resolved.map_or_else(|| "-".to_owned(), |(_, ended)| nanoseconds(ended).to_string());
        Self {
            traceparent: format!("00-{trace}-{:016x}-{flags}", random()),
            launcher_span: format!("{parent} {began} {resolved}"),
        }
    }

    /// Makes a child that is about to start a part of the trace.
    pub(crate) fn pass_to(&self, child: ChildId, command: &mut Command) {
        command.env(TRACEPARENT, &self.traceparent);
        if child == ChildId::Router {
            command.env(LAUNCHER_SPAN, &self.launcher_span);
        }
    }
}

/// Returns the ids of trace and span, and the flags, of a `traceparent`.
fn parse(traceparent: &str) -> Option<(&str, &str, &str)> {
    let mut fields = traceparent.split('-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_valid = version == "00" && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    let is_given = |id: &str| id.bytes().any(|byte| byte != b'0');
    (is_valid && is_given(trace) && is_given(span)).then_some((trace, span, flags))
}

/// Returns a random number that is not 0. The standard library draws the keys of its hashers at random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

fn nanoseconds(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
