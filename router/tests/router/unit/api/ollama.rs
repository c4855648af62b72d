use std::time::Duration;

use trunkline_api::ollama::keep_alive::KeepAlive;
use trunkline_api::ollama::think::Think;

#[test]
fn times_to_stay_loaded_are_seconds_or_durations() {
    let seconds = |seconds| KeepAlive::For(Duration::from_secs_f64(seconds));
    for (text, expected) in [
        ("300", seconds(300.0)),
        ("0", seconds(0.0)),
        ("1.5", seconds(1.5)),
        ("-1", KeepAlive::Forever),
        ("-0.5", KeepAlive::Forever),
        ("\"5m\"", seconds(300.0)),
        ("\"1h30m\"", seconds(5400.0)),
        ("\"+1.5h0.5s\"", seconds(5400.5)),
        ("\"250ms\"", seconds(0.25)),
        ("\"2µs\"", seconds(2e-6)),
        ("\"0\"", seconds(0.0)),
        ("\"-1m\"", KeepAlive::Forever),
    ] {
        assert_eq!(serde_json::from_str::<KeepAlive>(text).unwrap(), expected, "{text}");
    }
    for text in [
        "\"\"",
        "\"-\"",
        "\"5\"",
        "\"-1\"",
        "\"m\"",
        "\"5 m\"",
        "\"5d\"",
        "\"5m3\"",
        "\"1.2.3s\"",
        "\".s\"",
        "\"forever\"",
        "true",
        "null",
        "[]",
        "1e300",
        "\"99999999999999999999h\"",
    ] {
        let error = serde_json::from_str::<KeepAlive>(text).unwrap_err().to_string();
        assert!(error.contains("a number of seconds, or a duration such as `5m`"), "{text}: {error}");
    }
}

#[test]
fn think_is_a_switch_or_an_effort() {
    let parse = serde_json::from_str::<Think>;
    assert_eq!(parse("true").unwrap(), Think::Switch(true));
    assert_eq!(parse("\"max\"").unwrap(), Think::Effort("max"));
    for text in ["\"\"", "\"none\"", "1", "{}"] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("expected true, false, `low`, `medium`, `high` or `max`"), "{error}");
    }
}
