use std::ffi::OsString;

use clap::CommandFactory;
use trunkline_launcher::args::high::{ModelRef, Request, ServeConfig};
use trunkline_launcher::args::low::LowArgs;
use trunkline_launcher::args::{ParseError, SERVE, parse};
use trunkline_launcher::log::{Format, Level};

fn serve(args: &[&str]) -> Result<ServeConfig, String> {
    let argv: Vec<OsString> = ["trunkline", SERVE].iter().chain(args).map(Into::into).collect();
    match parse(&argv) {
        Ok(Request::Serve(config)) => Ok(*config),
        Ok(other) => panic!("not serve: {other:?}"),
        Err(ParseError::Clap(error)) => Err(error.to_string()),
        Err(ParseError::Launcher(error)) => {
            assert_eq!(error.exit_code(), 2);
            Err(error.to_string())
        }
    }
}

fn with_config(text: &str, args: &[&str]) -> Result<ServeConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trunkline.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    serve(&[&["--config", &path], args].concat()).map_err(|error| error.replace(&path, "FILE"))
}

#[test]
fn command_line_definition_is_consistent() {
    LowArgs::command().debug_assert();
}

#[test]
fn defaults_bind_loopback_and_leave_the_rest_to_the_model() {
    let config = serve(&[]).unwrap();
    assert_eq!((config.hostname.as_str(), config.port), ("127.0.0.1", 3000));
    assert_eq!(config.model, ModelRef { name: None, revision: None });
    assert_eq!(config.limits.max_total_tokens, None);
    assert_eq!(config.log_level, Level::Info);
}

#[test]
fn flag_outranks_file_and_file_outranks_default() {
    let text =
        "port = 4000\nhostname = \"::1\"\njson-output = true\nmax-input-tokens = 7\nlog-level = \"warn\"";
    let config = with_config(text, &["--port", "5000"]).unwrap();
    assert_eq!((config.port, config.hostname.as_str()), (5000, "::1"));
    assert_eq!(config.limits.max_input_tokens, Some(7));
    assert_eq!(config.log_format, Format::Json);
    assert_eq!(config.log_level, Level::Warn);
}

#[test]
fn file_errors_name_the_key_and_the_nearest() {
    for (text, wanted) in [
        ("prot = 1", "unknown key `prot` in `FILE`; hint: `port` is the nearest known one"),
        (
            "max_input_tokens = 1",
            "unknown key `max_input_tokens` in `FILE`; hint: `max-input-tokens` is the nearest known one",
        ),
        ("zzz = 1", "unknown key `zzz` in `FILE`; hint: keys are the long flags of `trunkline serve --help`"),
        ("config = \"x\"", "unknown key `config`"),
        ("help = true", "unknown key `help`"),
        ("port = [1]", "`port` in `FILE` is array, expected a string or a number"),
        ("threads = 1.5", "`threads` in `FILE` is `1.5`: invalid digit found in string"),
        ("json-output = 1", "`json-output` in `FILE` is integer, expected `true` or `false`"),
        ("threads = \"many\"", "`threads` in `FILE` is `many`: invalid digit found in string"),
        ("backend = \"gpu\"", "`backend` in `FILE` is `gpu`: expected one of cpu, cuda, reference"),
        ("\nport = ", "`FILE` line 2 is not TOML: "),
        ("threads = 0", "`--threads` is 0, expected 1 to 1024"),
    ] {
        let error = with_config(text, &[]).unwrap_err();
        assert!(error.starts_with(wanted), "{text:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_watermark_is_within_its_bounds() {
    let config = serve(&["--watermark-gamma", "0.01", "--watermark-key-file", "some.key"]).unwrap();
    assert_eq!((config.watermark.gamma, config.watermark.delta), (0.01, 2.0));
    assert!(config.watermark.key_file.unwrap().is_absolute());
    assert_eq!(with_config("watermark-gamma = 0.25", &[]).unwrap().watermark.gamma, 0.25);
    for (args, wanted) in [
        (["--watermark-gamma", "1"], "`--watermark-gamma` is 1, expected 0.01 to 0.99"),
        (["--watermark-gamma", "NaN"], "`--watermark-gamma` is NaN, expected 0.01 to 0.99"),
        (["--watermark-delta", "0"], "`--watermark-delta` is 0, expected above 0 and at most 100"),
        (["--watermark-delta", "inf"], "`--watermark-delta` is inf, expected above 0 and at most 100"),
    ] {
        assert_eq!(serve(&args).unwrap_err(), wanted);
    }
}

#[test]
fn missing_config_file_is_named() {
    let error = serve(&["--config", "none.toml"]).unwrap_err();
    assert!(error.starts_with("cannot read the configuration file `none.toml`: "), "{error}");
}

#[test]
fn model_may_come_from_either_place_but_not_from_both() {
    assert_eq!(serve(&["a/b"]).unwrap().model.name.as_deref(), Some("a/b"));
    assert_eq!(serve(&["--model-id", "a/b"]).unwrap().model.name.as_deref(), Some("a/b"));
    assert_eq!(serve(&["a/b", "--model-id", "a/b"]).unwrap().model.name.as_deref(), Some("a/b"));
    let error = serve(&["a/b", "--model-id", "c/d"]).unwrap_err();
    assert_eq!(error, "MODEL is `a/b`, but `--model-id` is `c/d`; hint: give one of them");
    let config = with_config("model-id = \"c/d\"", &["a/b"]).unwrap();
    assert_eq!(config.model.name.as_deref(), Some("a/b"));
}

#[test]
fn values_out_of_range_name_flag_value_and_limit() {
    for (args, wanted) in [
        (&["--port", "65536"][..], "`--port` is `65536`, expected 0 to 65535"),
        (&["--port", "tcp://10.0.0.1:3000"], "hint: Kubernetes sets `TRUNKLINE_PORT`"),
        (&["--hostname", " "], "`--hostname` is empty"),
        (&["--threads", "0"], "`--threads` is 0, expected 1 to 1024"),
        (&["--max-concurrent-requests", "0"], "`--max-concurrent-requests` is 0, expected 1 to 65536"),
        (&["--max-body-bytes", "1023"], "`--max-body-bytes` is 1023, expected 1024 to 1073741824"),
        (&["--max-total-tokens", "1"], "`--max-total-tokens` is 1, expected 2 to 2147483648"),
        (&["--model-id="], "`MODEL` is empty"),
        (&["--model-id=-x"], "`MODEL` is `-x`, which begins with a dash"),
        (&["--served-model-name=a\nb"], "`--served-model-name` is a text with control characters"),
    ] {
        let error = serve(args).unwrap_err();
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn limits_are_checked_against_each_other_at_the_boundary() {
    let refused = |args: &[&str], wanted: &str| {
        let error = serve(args).unwrap_err();
        assert!(error.starts_with(wanted), "{args:?}: {error}");
    };
    assert!(serve(&["--max-input-tokens", "7", "--max-total-tokens", "8"]).is_ok());
    refused(
        &["--max-input-tokens", "8", "--max-total-tokens", "8"],
        "`--max-input-tokens` is 8, but must be less than",
    );
    assert!(serve(&["--max-total-tokens", "8", "--max-batch-total-tokens", "8"]).is_ok());
    refused(&["--max-total-tokens", "9", "--max-batch-total-tokens", "8"], "`--max-total-tokens` is 9, but");
    refused(&["--max-input-tokens", "9", "--max-batch-total-tokens", "8"], "`--max-input-tokens` is 9, but");
    assert!(serve(&["--max-step-sequences", "8", "--max-batch-prefill-tokens", "8"]).is_ok());
    refused(
        &["--max-step-sequences", "9", "--max-batch-prefill-tokens", "8"],
        "`--max-step-sequences` is 9, but",
    );
}

#[test]
fn every_flag_of_serve_has_its_variable() {
    let mut command = LowArgs::command();
    command.build();
    for arg in command.find_subcommand(SERVE).unwrap().get_arguments() {
        let Some(long) = arg.get_long().filter(|long| *long != "help") else { continue };
        let wanted = format!("TRUNKLINE_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(wanted.as_str()), "--{long}");
        assert!(arg.is_hide_env_values_set(), "--{long} shows its variable's value in the help");
    }
}

#[test]
fn an_object_store_lies_below_a_store_on_disk() {
    let error = serve(&["--kv-object-store", "s3://bucket/a"]).unwrap_err();
    let wanted = "`--kv-object-store` needs a store on disk above it; hint: give `--kv-disk-path`";
    assert_eq!(error, wanted);
    let config = serve(&["--kv-object-store", "s3://bucket/a", "--kv-disk-path", "/srv/kv"]).unwrap();
    assert_eq!(config.cache.disk.unwrap().object_store.as_deref(), Some("s3://bucket/a"));
}

#[test]
fn pinned_memory_has_a_size_with_and_without_a_disk() {
    assert_eq!(serve(&[]).unwrap().cache.host_bytes, None);
    assert_eq!(serve(&["--kv-host-size", "64MiB"]).unwrap().cache.host_bytes, Some(64 << 20));
    let config = serve(&["--kv-host-size", "1GiB", "--kv-disk-path", "/srv/kv"]).unwrap();
    assert_eq!((config.cache.host_bytes, config.cache.disk.is_some()), (Some(1 << 30), true));
    assert!(serve(&["--kv-host-size", "0"]).unwrap_err().contains("`--kv-host-size` is `0`"));
}

#[test]
fn certificate_and_key_come_together_and_origins_are_origins() {
    let config = serve(&["--tls-cert", "c.pem", "--tls-key", "/k.pem"]).unwrap();
    let (cert, key) = config.tls.unwrap();
    assert!(cert.is_absolute() && cert.ends_with("c.pem") && key.ends_with("k.pem"));
    assert_eq!(serve(&["--tls-cert", "c.pem"]).unwrap_err(), "`--tls-cert` needs `--tls-key`");
    assert_eq!(serve(&["--tls-key", "k.pem"]).unwrap_err(), "`--tls-key` needs `--tls-cert`");
    let origins = ["--cors-allow-origin", "https://a.example,http://localhost:3", "--cors-allow-origin", "*"];
    let config = serve(&origins).unwrap();
    assert_eq!(config.cors_allow_origin, ["https://a.example", "http://localhost:3", "*"]);
    let config = with_config("cors-allow-origin = \"https://a.example,*\"", &[]).unwrap();
    assert_eq!(config.cors_allow_origin, ["https://a.example", "*"]);
    for origin in ["a.example", "https://a.example/", "https://", "", "HTTPS://a"] {
        let error = serve(&["--cors-allow-origin", origin]).unwrap_err();
        assert!(
            error.contains(&format!("`--cors-allow-origin` is `{origin}`, which is no origin")),
            "{error}"
        );
    }
}
