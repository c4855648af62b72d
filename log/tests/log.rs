//! Lines in both formats.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use trunkline_log::{Format, Line};

fn line<'a>(level: &'a str, message: &'a str, fields: Vec<(&'a str, Value)>) -> Line<'a> {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_007);
    Line { at, level, target: "router", message, fields }
}

#[test]
fn lines_have_the_shared_format() {
    let fields = || vec![("port", json!(3000)), ("device", json!("cpu avx2")), ("version", json!("0.1.0"))];
    assert_eq!(
        line("INFO", "shard is ready", fields()).render(Format::Text),
        r#"2026-01-31T12:00:00.007Z  INFO router: shard is ready port=3000 device="cpu avx2" version=0.1.0"#
    );
    let fields = [fields(), vec![("level", json!("not the line's"))]].concat();
    assert_eq!(
        line("WARN", "a\nb", fields).render(Format::Json),
        concat!(
            r#"{"timestamp":"2026-01-31T12:00:00.007Z","level":"WARN","target":"router","message":"a\nb","#,
            r#""port":3000,"device":"cpu avx2","version":"0.1.0"}"#
        )
    );
}

#[test]
fn an_event_is_one_line_and_its_fields_can_be_told_apart() {
    let fields = vec![("x", json!("c\nd")), ("y", json!("")), ("z", json!("a=b")), ("path", json!("/a/b*"))];
    let text = line("INFO", "a\r\nb", fields).render(Format::Text);
    assert_eq!(text.split_once(": ").unwrap().1, r#"a\r\nb x="c\nd" y="" z="a=b" path=/a/b*"#);
}
