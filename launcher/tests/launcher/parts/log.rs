use std::time::{Duration, SystemTime};

use trunkline_launcher::log::{Format, render};
use trunkline_settings::LogLevel;

fn at_2026() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_007)
}

#[test]
fn text_line_has_the_shape_of_the_page() {
    let line = render(
        Format::Text,
        at_2026(),
        LogLevel::Info,
        "shard ended",
        &[("exit", &"exit code 3"), ("pid", &7)],
    );
    assert_eq!(line, "2026-01-31T12:00:00.007Z  INFO launcher: shard ended exit=\"exit code 3\" pid=7\n");
}

#[test]
fn json_line_is_one_object_with_numbers_as_numbers() {
    let line = render(Format::Json, at_2026(), LogLevel::Warn, "a\nb", &[("pid", &7), ("path", &"/x y")]);
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(
        line.trim_end(),
        concat!(
            r#"{"timestamp":"2026-01-31T12:00:00.007Z","level":"WARN","target":"launcher","#,
            r#""message":"a\nb","pid":7,"path":"/x y"}"#
        )
    );
}

#[test]
fn levels_order_from_quiet_to_loud() {
    assert!(
        LogLevel::Error < LogLevel::Warn
            && LogLevel::Info < LogLevel::Debug
            && LogLevel::Debug < LogLevel::Trace
    );
}
