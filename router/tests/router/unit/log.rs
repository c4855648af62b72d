use tracing::Level;
use trunkline_router::log::{Fields, json_line, text_line, timestamp};

#[test]
fn timestamps_are_utc_dates() {
    assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
    assert_eq!(timestamp(951_782_400, 7), "2000-02-29T00:00:00.007Z");
    assert_eq!(timestamp(1_769_860_800, 0), "2026-01-31T12:00:00.000Z");
    assert_eq!(timestamp(4_107_542_399, 999), "2100-02-28T23:59:59.999Z");
    assert_eq!(timestamp(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    assert_eq!(timestamp(u64::MAX, 0), "9999-12-31T23:59:59.000Z");
}

#[test]
fn lines_have_the_shared_format() {
    let fields = || Fields {
        message: "shard is ready".into(),
        values: vec![("port".into(), 3000.into()), ("device".into(), "cpu avx2".into())],
    };
    assert_eq!(
        text_line("T", Level::INFO, "router", &fields()),
        "T  INFO router: shard is ready port=3000 device=\"cpu avx2\""
    );
    assert_eq!(
        json_line("T".into(), Level::WARN, "router", fields()),
        r#"{"timestamp":"T","level":"WARN","target":"router","message":"shard is ready","port":3000,"device":"cpu avx2"}"#
    );
}

#[test]
fn line_breaks_in_messages_are_escaped() {
    let fields = Fields { message: "a\nb".into(), values: vec![("x".into(), "c\nd".into())] };
    assert!(!text_line("T", Level::INFO, "router", &fields).contains('\n'));
}
