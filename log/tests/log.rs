//! Lines in each format.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use trunkline_log::Line;
use trunkline_settings::LogFormat;

fn line<'a>(level: &'a str, message: &'a str, fields: Vec<(&'a str, Value)>) -> Line<'a> {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_007);
    Line { at, level, target: "router", message, fields }
}

#[test]
fn lines_have_the_shared_format() {
    let fields = || vec![("port", json!(3000)), ("device", json!("cpu avx2")), ("version", json!("0.1.0"))];
    assert_eq!(
        line("INFO", "shard is ready", fields()).render(LogFormat::Text),
        r#"2026-01-31T12:00:00.007Z  INFO router: shard is ready port=3000 device="cpu avx2" version=0.1.0"#
    );
    let fields = [fields(), vec![("level", json!("not the line's"))]].concat();
    assert_eq!(
        line("WARN", "a\nb", fields).render(LogFormat::Json),
        concat!(
            r#"{"timestamp":"2026-01-31T12:00:00.007Z","level":"WARN","target":"router","message":"a\nb","#,
            r#""port":3000,"device":"cpu avx2","version":"0.1.0"}"#
        )
    );
}

#[test]
fn an_event_is_one_line_and_its_fields_can_be_told_apart() {
    let fields = vec![("x", json!("c\nd")), ("y", json!("")), ("z", json!("a=b")), ("path", json!("/a/b*"))];
    let text = line("INFO", "a\r\nb", fields).render(LogFormat::Text);
    assert_eq!(text.split_once(": ").unwrap().1, r#"a\r\nb x="c\nd" y="" z="a=b" path=/a/b*"#);
}

#[test]
fn ecs_lines_have_the_names_of_the_schema() {
    let ecs = |level, message, fields| -> Value {
        serde_json::from_str(&line(level, message, fields).render(LogFormat::Ecs)).unwrap()
    };
    let ended = vec![
        ("request_id", json!("a-1")),
        ("trace_id", json!("4bf92f3577b34da6a3ce929d0e0e4736")),
        ("span_id", json!("00f067aa0ba902b7")),
        ("status", json!(200)),
        ("tenant", json!("one")),
        ("outcome", json!("stop")),
        ("prompt_tokens", json!(4)),
        ("cached_tokens", json!(3)),
        ("output_tokens", json!(5)),
        ("ms", json!(12)),
        ("message", json!("not the line's")),
    ];
    let wanted = json!({
        "@timestamp": "2026-01-31T12:00:00.007Z",
        "log.level": "info",
        "message": "request ended",
        "ecs.version": "9.1.0",
        "log.logger": "router",
        "process.pid": std::process::id(),
        "service.name": "trunkline",
        "event.outcome": "success",
        "http.request.id": "a-1",
        "trace.id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span.id": "00f067aa0ba902b7",
        "http.response.status_code": 200,
        "trunkline.tenant": "one",
        "trunkline.outcome": "stop",
        "gen_ai.usage.input_tokens": 4,
        "trunkline.cached_tokens": 3,
        "gen_ai.usage.output_tokens": 5,
        "event.duration": 12_000_000,
        "trunkline.message": "not the line's",
    });
    let line = ecs("INFO", "request ended", ended);
    // The texts are compared, since the order counts as well.
    assert_eq!(line.to_string(), wanted.to_string());
    let left = ecs("INFO", "request ended", vec![("outcome", json!("aborted"))]);
    assert_eq!(left["event.outcome"], "unknown");
    let failed =
        vec![("outcome", json!("shard_lost")), ("code", json!("shard_lost")), ("error", json!("gone"))];
    let failed = ecs("ERROR", "request ended", failed);
    let names = ["log.level", "event.outcome", "error.code", "error.message", "trunkline.outcome"];
    assert_eq!(names.map(|name| &failed[name]), ["error", "failure", "shard_lost", "gone", "shard_lost"]);
    assert_eq!(ecs("INFO", "starting", vec![]).get("event.outcome"), None);
}
