use std::time::{Duration, SystemTime};

use trunkline_launcher::log::{coloured, render};
use trunkline_settings::{LogFormat, LogLevel};

fn at_2026() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_007)
}

#[test]
fn text_line_has_the_shape_of_the_page() {
    let line = render(
        LogFormat::Text,
        at_2026(),
        LogLevel::Info,
        "shard ended",
        &[("exit", &"exit code 3"), ("pid", &7)],
    );
    assert_eq!(line, "2026-01-31T12:00:00.007Z  INFO launcher: shard ended exit=\"exit code 3\" pid=7\n");
}

#[test]
fn json_line_is_one_object_with_numbers_as_numbers() {
    let line = render(LogFormat::Json, at_2026(), LogLevel::Warn, "a\nb", &[("pid", &7), ("path", &"/x y")]);
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

#[test]
fn levels_have_colours() {
    let at = at_2026();
    for (level, colour) in [(LogLevel::Warn, "33"), (LogLevel::Info, "32"), (LogLevel::Error, "31")] {
        let line = render(LogFormat::Text, at, level, "message", &[]);
        let name = format!("{:>5}", level.to_string().to_uppercase());
        let wanted = line.replacen(&name, &format!("\x1b[{colour}m{name}\x1b[0m"), 1);
        assert_eq!(coloured(line.as_bytes()), Some(wanted.into_bytes()));
    }
    assert_eq!(coloured(b"error: no model\n"), Some(b"\x1b[31merror\x1b[0m: no model\n".to_vec()));
    for line in [&b"short\n"[..], b"", render(LogFormat::Json, at, LogLevel::Warn, "message", &[]).as_bytes()]
    {
        assert_eq!(coloured(line), None);
    }
}
