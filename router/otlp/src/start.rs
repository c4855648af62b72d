//! The spans of a start: the launcher's, which has no exporter, and the router's own.

use std::env;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer};

/// A launcher's span, as it tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherSpan {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
    parent: Option<SpanId>,
    began: SystemTime,
    resolved: Option<SystemTime>,
}

impl LauncherSpan {
    /// Reads the variables that the launcher sets for a router that is part of a start.
    pub(crate) fn from_environment() -> Option<Self> {
        Self::parse(&env::var("TRACEPARENT").ok()?, &env::var("TRUNKLINE_LAUNCHER_SPAN").ok()?)
    }

    /// Parses W3C's `traceparent`, and `PARENT BEGAN RESOLVED`: the id of the parent or `-`, and nanoseconds since
    /// 1970, the second of which may be `-`.
    pub fn parse(traceparent: &str, times: &str) -> Option<Self> {
        let mut ids = traceparent.split('-').skip(1);
        let mut times = times.split(' ');
        let parent = SpanId::from_hex(times.next()?).ok();
        let (began, resolved) = (time(times.next()?)?, time(times.next()?));
        Some(Self {
            trace: TraceId::from_hex(ids.next()?).ok()?,
            span: SpanId::from_hex(ids.next()?).ok()?,
            flags: TraceFlags::new(u8::from_str_radix(ids.next()?, 16).ok()?),
            parent,
            began,
            resolved,
        })
    }
}

fn time(nanoseconds: &str) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds.parse().ok()?))
}

/// Gives the first span and trace the ids that the launcher chose, and random ones to all others.
#[derive(Debug)]
pub(crate) struct Ids {
    launchers: Mutex<(Option<TraceId>, Option<SpanId>)>,
    random: RandomIdGenerator,
}

impl Ids {
    pub(crate) fn of(launcher: Option<&LauncherSpan>) -> Self {
        let launchers = Mutex::new((launcher.map(|own| own.trace), launcher.map(|own| own.span)));
        Self { launchers, random: RandomIdGenerator::default() }
    }
}

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        let own = self.launchers.lock().unwrap_or_else(PoisonError::into_inner).0.take();
        own.unwrap_or_else(|| self.random.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        let own = self.launchers.lock().unwrap_or_else(PoisonError::into_inner).1.take();
        own.unwrap_or_else(|| self.random.new_span_id())
    }
}

/// Begins the spans of a start, and returns what ends them in order. They must be the first ones of an exporter with
/// [`Ids`].
pub(crate) fn begin(tracer: &SdkTracer, launcher: LauncherSpan) -> Vec<Box<dyn FnOnce() + Send>> {
    let LauncherSpan { trace, flags, parent, began, resolved, .. } = launcher;
    let outside = parent.map_or_else(Context::new, |parent| {
        let context = SpanContext::new(trace, parent, flags, true, TraceState::NONE);
        Context::new().with_remote_span_context(context)
    });
    let span = |name: &'static str, began, context: &Context| {
        let builder = tracer.span_builder(name).with_kind(SpanKind::Internal).with_start_time(began);
        tracer.build_with_context(builder, context)
    };
    let mut whole = span("start", began, &outside);
    whole.set_attribute(KeyValue::new("trunkline.process", "launcher"));
    let inside = Context::new().with_remote_span_context(whole.span_context().clone());
    if let Some(resolved) = resolved {
        span("resolve", began, &inside).end_with_timestamp(resolved);
    }
    let mut router = span("start router", SystemTime::now(), &inside);
    router.set_attribute(KeyValue::new("trunkline.process", "router"));
    vec![Box::new(move || router.end()), Box::new(move || whole.end())]
}
