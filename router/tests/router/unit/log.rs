use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};
use tracing_subscriber::fmt::MakeWriter;
use trunkline_base::log::{subscriber, write_left_out};
use trunkline_base::repeats::{MAX_LINES, Repeats};
use trunkline_base::trace::{
    ACCESS_LOG, Record, RequestSpan, RequestTrace, SpanIds, StepRecord, Telemetry, TelemetrySlot, Timeline,
    TokenCounts,
};
use trunkline_settings::{LogFormat, LogLevel};

/// Keeps what is written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Written {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Samples every request, with the ids of W3C's example.
struct Sampler;

impl Telemetry for Sampler {
    fn begin(&self, _: &HeaderMap, _: &Record) -> Option<Box<dyn RequestSpan>> {
        Some(Box::new(Sampler))
    }

    fn measure(&self, _: &Record) {}

    fn step(&self, _: &StepRecord) {}
}

impl RequestSpan for Sampler {
    fn ids(&self) -> SpanIds {
        SpanIds {
            trace_id: 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes(),
            span_id: 0x00f067aa0ba902b7_u64.to_be_bytes(),
        }
    }

    fn end(self: Box<Self>, _: &Record) {}
}

/// Returns the record of a request that has just ended.
fn record(error: Option<&'static str>) -> Record {
    let arrived = SystemTime::now() - Duration::from_secs(60);
    let tokens = TokenCounts { prompt: 4, cached: 3, output: 5 };
    let at = |ms| arrived + Duration::from_millis(ms);
    Record {
        request_id: "a-1".into(),
        operation: "chat",
        route: "/v1/chat/completions".into(),
        model: "m".into(),
        adapter: None,
        arrived,
        status: Some(200),
        tenant: Some("one".into()),
        error,
        is_aborted: false,
        tokens: Some(tokens),
        finish_reasons: vec!["stop", "stop"],
        grammar: None,
        sequences: vec![Timeline {
            submitted: at(1),
            started: Some(at(20)),
            restored: None,
            first_token: Some(at(30)),
            last_token: Some(at(40)),
            ended: at(40),
            tokens,
        }],
    }
}

/// Returns the line at the end of a request.
fn line_of(record: Record, format: LogFormat) -> String {
    let written = Written::default();
    let telemetry: TelemetrySlot = Arc::new(OnceLock::from(Arc::new(Sampler) as Arc<dyn Telemetry>));
    tracing::subscriber::with_default(
        subscriber(LogLevel::Info, format, Repeats::default(), written.clone()).unwrap(),
        || {
            drop(RequestTrace::begin(record, &HeaderMap::new(), telemetry));
        },
    );
    written.take()
}

#[test]
fn a_request_ends_with_one_line_in_each_format() {
    let text = line_of(record(None), LogFormat::Text);
    let (_, text) = text.split_once("  INFO router: ").expect(&text);
    let (fields, ms) = text.trim_end().rsplit_once(" ms=").expect(text);
    assert_eq!(
        fields,
        "request ended request_id=a-1 trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7 \
         route=/v1/chat/completions status=200 tenant=one outcome=stop prompt_tokens=4 cached_tokens=3 \
         output_tokens=5 queue_ms=20 ttft_ms=30"
    );
    assert!((60_000..70_000).contains(&ms.parse::<u64>().unwrap()), "{text}");

    let object = |format| -> Map<String, Value> {
        let mut object: Map<String, Value> = serde_json::from_str(&line_of(record(None), format)).unwrap();
        // They differ from run to run.
        for name in ["timestamp", "@timestamp", "ms", "event.duration", "process.pid"] {
            object.remove(name);
        }
        object
    };
    let json = json!({
        "level": "INFO", "target": "router", "message": "request ended",
        "request_id": "a-1", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
        "route": "/v1/chat/completions", "status": 200, "tenant": "one", "outcome": "stop",
        "prompt_tokens": 4, "cached_tokens": 3, "output_tokens": 5, "queue_ms": 20, "ttft_ms": 30,
    });
    assert_eq!(Value::Object(object(LogFormat::Json)), json);
    let ecs = json!({
        "log.level": "info", "log.logger": "router", "message": "request ended",
        "ecs.version": "9.1.0", "service.name": "trunkline", "event.outcome": "success",
        "http.request.id": "a-1", "trace.id": "4bf92f3577b34da6a3ce929d0e0e4736", "span.id": "00f067aa0ba902b7",
        "trunkline.route": "/v1/chat/completions", "http.response.status_code": 200,
        "trunkline.tenant": "one", "trunkline.outcome": "stop",
        "gen_ai.usage.input_tokens": 4, "trunkline.cached_tokens": 3, "gen_ai.usage.output_tokens": 5,
        "trunkline.queue_ms": 20, "trunkline.ttft_ms": 30,
    });
    assert_eq!(Value::Object(object(LogFormat::Ecs)), ecs);
}

#[test]
fn the_line_of_a_failed_request_has_the_errors_code() {
    let text = line_of(record(Some("shard_lost")), LogFormat::Text);
    assert!(text.contains(" outcome=shard_lost code=shard_lost "), "{text}");
    let ecs: Value = serde_json::from_str(&line_of(record(Some("shard_lost")), LogFormat::Ecs)).unwrap();
    assert_eq!([&ecs["event.outcome"], &ecs["error.code"]], ["failure", "shard_lost"]);
    let refused = Record { tokens: None, ..record(Some("queue_full")) };
    assert_eq!(line_of(refused, LogFormat::Json), "", "the middleware logs it");
}

/// Runs `log` with a subscriber in the text format, and returns the lines that it writes.
fn lines_of(repeats: &Repeats, log: impl FnOnce()) -> Vec<String> {
    let written = Written::default();
    let subscriber = subscriber(LogLevel::Info, LogFormat::Text, repeats.clone(), written.clone());
    tracing::subscriber::with_default(subscriber.unwrap(), log);
    written.take().lines().map(str::to_owned).collect()
}

/// Returns the lines about what was left out, without their times.
fn left_out(repeats: &Repeats) -> Vec<String> {
    let mut written = Written::default();
    write_left_out(repeats, LogFormat::Text, &mut written);
    let text = written.take();
    let mut lines: Vec<String> =
        text.lines().map(|line| line.split_once("Z ").expect("a time").1.to_owned()).collect();
    lines.sort();
    lines
}

fn warn(id: u64) {
    tracing::warn!(id, "the client of request {id} is slow");
}

#[test]
fn a_warning_that_repeats_is_counted_until_the_next_period() {
    let repeats = Repeats::default();
    let written = lines_of(&repeats, || {
        (0..1234).for_each(warn);
        (0..MAX_LINES).for_each(|_| tracing::error!("another place"));
        tracing::error!(reason = 7, "cannot listen");
    });
    assert_eq!(written.len() as u64, 2 * MAX_LINES + 1, "the texts differ, but their place does not");
    assert!(written[4].ends_with(" WARN router: the client of request 4 is slow id=4"), "{written:?}");
    let line = "the client of request 0 is slow ... 1229 more like this in the last 10 s left_out=1229";
    assert_eq!(left_out(&repeats), [format!(" WARN router: {line}")]);
    assert!(left_out(&repeats).is_empty(), "they are reported once");
    assert_eq!(lines_of(&repeats, || warn(5)).len(), 1, "a new period has begun");
    assert!(left_out(&repeats).is_empty());
}

#[test]
fn lines_of_requests_and_lines_below_a_warning_are_never_left_out() {
    let repeats = Repeats::default();
    let written = lines_of(&repeats, || {
        for id in 0..100 {
            tracing::info!(id, "request ended");
            tracing::error!(target: ACCESS_LOG, id, "request failed");
        }
    });
    assert_eq!(written.len(), 200);
    assert!(left_out(&repeats).is_empty());
}

#[test]
fn threads_that_warn_at_once_are_all_counted() {
    let repeats = Repeats::default();
    let written: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| lines_of(&repeats, || (0..1000).for_each(warn)).len())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let counted: u64 = repeats.next_period().iter().map(|place| place.num_events).sum();
    assert_eq!((written as u64, counted), (MAX_LINES, 4000 - MAX_LINES));
}
