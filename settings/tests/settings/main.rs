//! The tables are consistent, and values are parsed, checked and written as users and the router expect.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use trunkline_settings::{
    Compute, Group, Limits, Model, Replies, ServeSettings, Server, ShardCache, all, check,
};

/// Reads a group in which one setting is given.
fn with<G: Group>(name: &str, text: &str) -> Result<G, String> {
    let group = G::read(|setting| (setting.name == name).then(|| text.to_owned()));
    group.map_err(|error| error.to_string())
}

#[test]
fn names_are_unique_and_defaults_are_valid() {
    let settings = all();
    let names: BTreeSet<&str> = settings.iter().map(|(setting, _)| setting.name).collect();
    assert_eq!(names.len(), settings.len());
    for (setting, default) in settings {
        if let Some(default) = default {
            assert_eq!(setting.check(&default), Ok(()), "{}", setting.flag());
        }
        let help = setting.help_text();
        assert!(!help.is_empty() && !help.ends_with('.') && !help.contains("  "), "{help}");
        assert_eq!(
            setting.variable(),
            format!("TRUNKLINE_{}", setting.key().to_uppercase().replace('-', "_"))
        );
    }
}

/// Writes and reads back a group in which one setting is given.
fn assert_survives<G: Group + Debug + PartialEq>(name: &str, text: &str) {
    let group: G = with(name, text).unwrap();
    assert_ne!(group, G::default(), "{name}");
    let json = serde_json::to_string(&group).unwrap();
    assert_eq!(serde_json::from_str::<G>(&json).unwrap(), group, "{json}");
    let texts = group.texts();
    let at = G::SETTINGS.iter().position(|setting| setting.name == name).unwrap();
    assert_eq!(with::<G>(name, texts[at].as_ref().unwrap()).unwrap(), group);
    check(&group).unwrap();
}

#[test]
fn values_survive_the_way_to_the_router() {
    assert_survives::<Server>("port", "0");
    assert_survives::<Server>("api_keys", "keys.toml");
    assert_survives::<Server>("cors_allow_origin", "https://a.example,*");
    assert_survives::<Limits>("max_queued_requests", "7");
    assert_survives::<Limits>("request_timeout", "600");
    assert_survives::<Replies>("watermark_gamma", "0.3");
    assert_survives::<Replies>("tool_call_parser", "llama3_json");
    assert_survives::<Compute>("weights_cache", "off");
    assert_survives::<Compute>("weights_cache", "/weights");
    assert_survives::<ShardCache>("kv_disk_size", "3T");
    assert_eq!(with::<Limits>("request_timeout", "600").unwrap().request_timeout, Duration::from_secs(600));
}

#[test]
fn sizes_are_read_or_refused() {
    let size = |text: &str| with::<ShardCache>("kv_disk_size", text).map(|cache| cache.kv_disk_size.unwrap());
    for (text, bytes) in [
        ("16MiB", 16 << 20),
        ("2 GiB", 2 << 30),
        ("3T", 3 << 40),
        ("10GB", 10_000_000_000),
        ("20000kB", 20_000_000),
        ("20000000B", 20_000_000),
        ("20000000", 20_000_000),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in
        ["", "GiB", "-1GiB", "1.5GiB", "1KiB", "9999999TiB", "99999999999999999TiB", "1MB", "5m", "many"]
    {
        assert_eq!(
            size(text).unwrap_err(),
            format!(
                "`--kv-disk-size` is `{text}`; expected a size from 16MiB to 1024TiB, such as `10GiB`, `10GB` or a number \
                 of bytes"
            )
        );
    }
    assert_eq!(with::<Limits>("max_body_bytes", "1MiB").unwrap().max_body_bytes, 1 << 20);
}

#[test]
fn durations_are_read_or_refused() {
    let limit =
        |text: &str| with::<Limits>("request_timeout", text).map(|limits| limits.request_timeout.as_secs());
    for (text, seconds) in [("0", 0), ("300", 300), ("90s", 90), ("5m", 300), ("2 h", 7200), ("1d", 86_400)] {
        assert_eq!(limit(text), Ok(seconds), "{text}");
    }
    for text in ["", "m", "1.5h", "25h", "500ms", "5M", "5min", "-1s", "1h30m"] {
        let expected = "a duration from 0 to 1d, such as `5m`, `90s` or a number of seconds";
        assert_eq!(limit(text).unwrap_err(), format!("`--request-timeout` is `{text}`; expected {expected}"));
    }
    let target = |text: &str| with::<Limits>("target_itl_ms", text).map(|limits| limits.target_itl_ms);
    assert_eq!((target("45"), target("45ms"), target("2s")), (Ok(45), Ok(45), Ok(2000)));
    assert!(
        target("11s")
            .unwrap_err()
            .contains("expected a duration from 0 to 10000ms, such as `2s`, `45ms` or ")
    );
}

#[test]
fn defaults_are_shown_with_units() {
    let default = |name: &str| all().into_iter().find(|(setting, _)| setting.name == name).unwrap().1;
    for (name, shown) in [
        ("max_body_bytes", "8MiB"),
        ("max_schema_bytes", "128KiB"),
        ("graceful_termination_timeout", "90s"),
        ("shard_restart_timeout", "2m"),
        ("request_timeout", "0"),
        ("target_itl_ms", "45ms"),
        ("max_tools", "128"),
    ] {
        assert_eq!(default(name).as_deref(), Some(shown), "{name}");
    }
}

#[test]
fn endpoints_have_a_host_and_a_port() {
    let endpoint = |text: &str| with::<trunkline_settings::RouterCache>("kv_events_endpoint", text);
    for text in ["tcp://*:5557", "tcp://indexer:5557", "tcp://[::]:5557"] {
        assert_eq!(endpoint(text).unwrap().kv_events_endpoint.as_deref(), Some(text));
    }
    for text in ["", "*:5557", "tcp://*", "tcp://:5557", "tcp://*:70000", "ipc:///events"] {
        let error = endpoint(text).unwrap_err();
        assert!(error.contains("expected `tcp://HOST:PORT`; hint: "), "{text}: {error}");
    }
}

#[test]
fn limits_are_inclusive() {
    for (text, is_valid) in [("0", true), ("256", true), ("257", false), ("-1", false), ("1e2", false)] {
        assert_eq!(with::<Limits>("max_stop_sequences", text).is_ok(), is_valid, "{text}");
    }
    for (text, is_valid) in [("0.01", true), ("0.99", true), ("0", false), ("1", false), ("NaN", false)] {
        assert_eq!(with::<Replies>("watermark_gamma", text).is_ok(), is_valid, "{text}");
    }
    for (text, is_valid) in [("1e-3", true), ("100", true), ("0", false), ("1e-60", false), ("inf", false)] {
        assert_eq!(with::<Replies>("watermark_delta", text).is_ok(), is_valid, "{text}");
    }
}

#[test]
fn errors_show_little_of_what_was_given() {
    let error = with::<Model>("revision", &"x".repeat(5_000)).unwrap_err();
    assert!(error.len() < 300 && error.contains("x…`"), "{error}");
    assert!(!with::<Model>("revision", "a\u{1b}[2J").unwrap_err().contains('\u{1b}'));
}

#[test]
fn a_settings_file_is_checked() {
    let needed = r#"{"shard_sockets": ["/s"], "model_path": "/m", "served_model_name": "n""#;
    let read = |rest: &str| serde_json::from_str::<ServeSettings>(&format!("{needed}{rest}}}"));
    let defaults = ServeSettings::new("/s".into(), "/m".into(), "n".into());
    assert_eq!(read("").unwrap(), defaults);
    assert_eq!(defaults.check(), Ok(()));
    assert_eq!(read(r#", "limits": {"max_tools": 7}"#).unwrap().limits.max_tools, 7);
    for unknown in [r#", "limit": {}"#, r#", "limits": {"max_tool": 7}"#] {
        assert!(read(unknown).unwrap_err().to_string().contains("unknown field"), "{unknown}");
    }
    let error = read(r#", "limits": {"max_tools": 70000}"#).unwrap().check().unwrap_err().to_string();
    assert_eq!(error, "`--max-tools` is `70000`; expected a whole number from 0 to 4096");
}

#[test]
fn the_recorded_file_holds_every_setting_with_its_default() {
    let settings = ServeSettings::new("shard.sock".into(), "model.gguf".into(), "model".into());
    let written = serde_json::to_string_pretty(&settings).unwrap();
    let recorded = include_str!("../serve.json").trim_end();
    assert_eq!(recorded, written, "settings/tests/serve.json should be:\n{written}");
}
