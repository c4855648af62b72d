use std::ffi::OsString;

use clap::CommandFactory;
use trunkline_launcher::args::parsed::ParsedArgs;
use trunkline_launcher::args::resolved::{ModelRef, Request, ServeConfig, ServerConfig};
use trunkline_launcher::args::{ParseError, SERVE, parse};
use trunkline_settings::LogLevel;

fn serve(args: &[&str]) -> Result<ServeConfig, String> {
    serve_all(args).map(|config| config.first)
}

fn serve_all(args: &[&str]) -> Result<ServerConfig, String> {
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
    all_with_config(text, args).map(|config| config.first)
}

fn all_with_config(text: &str, args: &[&str]) -> Result<ServerConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trunkline.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    serve_all(&[&["--config", &path], args].concat()).map_err(|error| error.replace(&path, "FILE"))
}

type Shown<'a> = (&'a str, Option<u32>, Option<u64>, Option<&'a str>);

/// Returns the name of each model, the size of its KV pool, and the size and folder of its store.
fn models(config: &ServerConfig) -> Vec<Shown<'_>> {
    fn model(config: &ServeConfig) -> Shown<'_> {
        let ServeConfig { model, step_limits, shard_cache, .. } = config;
        let folder = shard_cache.kv_disk_path.as_deref().and_then(|path| path.to_str());
        let name = model.name.as_deref().unwrap_or("embedded");
        (name, step_limits.max_batch_total_tokens, shard_cache.kv_disk_size, folder)
    }
    config.models().map(model).collect()
}

#[test]
fn several_models_share_the_flags_and_divide_a_store() {
    let config =
        serve_all(&["a/b", "/c/d e.gguf", "--kv-disk-path", "/kv", "--kv-disk-size", "1GiB"]).unwrap();
    assert!(config.is_on_demand());
    let half = Some(1 << 29);
    assert_eq!(
        models(&config),
        [
            ("a/b", None, half, Some("/kv/b-3a8e75c1")),
            ("/c/d e.gguf", None, half, Some("/kv/d_e.gguf-d92fd00a")),
        ]
    );
    assert!(!serve_all(&["a/b"]).unwrap().is_on_demand());
    assert!(serve_all(&["a/b", "--idle-unload", "5m"]).unwrap().is_on_demand());
    for flags in [
        &["a/b", "c/d", "--shard-socket", "/x.sock"] as &[&str],
        &["a/b", "--idle-unload", "5m", "--shard-socket", "/x.sock"],
        &["a/b", "c/d", "--kv-disk-path", "/kv", "--kv-object-store", "file:///x"],
        &["a/b", "c/d", "--kv-events-endpoint", "tcp://*:5557"],
    ] {
        let error = serve_all(flags).unwrap_err();
        assert!(error.contains("is for a server of one model"), "{error}");
    }
}

#[test]
fn each_model_of_a_folder_is_served_after_those_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let add = |name: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    };
    let path = folder.path().to_str().unwrap();
    let error = serve_all(&["--models-folder", path]).unwrap_err();
    assert!(error.contains("has no model; expected `.gguf` files"), "{error}");
    for name in [
        "b.gguf",
        "a-00001-of-00002.gguf",
        "a-00002-of-00002.gguf",
        "mmproj-b.gguf",
        "notes.txt",
        "folder/config.json",
        "one/model.gguf",
        "two/x.gguf",
        "two/y.gguf",
        "empty/readme",
    ] {
        add(name);
    }
    let config = serve_all(&["org/named", "--models-folder", path]).unwrap();
    let names: Vec<&str> = config.models().filter_map(|model| model.model.name.as_deref()).collect();
    let own = ["a-00001-of-00002.gguf", "b.gguf", "folder", "one"].map(|name| format!("{path}/{name}"));
    assert_eq!(names[0], "org/named");
    assert_eq!(names[1..], own);
    assert!(serve_all(&["--models-folder", "/nowhere"]).unwrap_err().contains("cannot be read"));
    std::fs::remove_dir_all(folder.path().join("one")).unwrap();
    for name in ["b.gguf", "a-00001-of-00002.gguf"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert!(serve_all(&["--models-folder", path]).unwrap().is_on_demand(), "a folder may get more models");
}

#[test]
fn tables_of_the_file_have_the_settings_of_each_model() {
    let text = "port = 4000\nmax-batch-total-tokens = 500\n[[model]]\nmodel-id = \"a/b\"\nkv-disk-path = \"/x\"\n\
                [[model]]\nmodel-id = \"c/d\"\nmax-batch-total-tokens = 900\n";
    let config = all_with_config(text, &[]).unwrap();
    assert_eq!(config.first.server.port, 4000);
    let size = Some(10 << 30);
    assert_eq!(models(&config), [("a/b", Some(500), size, Some("/x")), ("c/d", Some(900), None, None)]);
    // A flag takes precedence over the tables.
    let config = all_with_config(text, &["--max-batch-total-tokens", "700"]).unwrap();
    assert!(models(&config).iter().all(|(_, tokens, ..)| *tokens == Some(700)));
    for (text, args, words) in [
        ("[[model]]\nport = 1\n", &[] as &[&str], "`port` in line 2 of `FILE` holds for the whole server"),
        (
            "[[model]]\nmodle-id = \"a\"\n",
            &[],
            "unknown key `modle-id` in `FILE`; hint: did you mean `model-id`?",
        ),
        ("model = 3\n", &[], "is not valid TOML"),
        ("[[model]]\nmodel-id = \"a/b\"\n", &["c/d"], "a model is named, but the file"),
        ("[[model]]\nmodel-id = \"a/b\"\n", &["--model-id", "c/d"], "a model is named, but the file"),
    ] {
        let error = all_with_config(text, args).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn command_line_definition_is_consistent() {
    ParsedArgs::command().debug_assert();
}

#[test]
fn defaults_bind_loopback_and_leave_the_rest_to_the_model() {
    let config = serve(&[]).unwrap();
    assert_eq!((config.server.hostname.as_str(), config.server.port), ("127.0.0.1", 3000));
    assert_eq!(config.model, ModelRef { name: None, revision: None });
    assert_eq!(config.limits.max_total_tokens, None);
    assert_eq!(config.logging.log_level, LogLevel::Info);
}

#[test]
fn file_errors_name_the_key_and_the_nearest() {
    for (text, wanted) in [
        ("prot = 1", "unknown key `prot` in `FILE`; hint: did you mean `port`?"),
        (
            "max_input_tokens = 1",
            "unknown key `max_input_tokens` in `FILE`; hint: did you mean `max-input-tokens`?",
        ),
        (
            "zzz = 1",
            "unknown key `zzz` in `FILE`; hint: valid keys are the long flags of `trunkline serve --help`",
        ),
        ("config = \"x\"", "unknown key `config`"),
        ("help = true", "unknown key `help`"),
        ("port = [1]", "`port` in `FILE` is an array; expected a string or a number"),
        ("threads = 1.5", "`threads` in `FILE` is `1.5`; expected a whole number from 1 to 1024"),
        ("json-output = 1", "`json-output` in `FILE` is an integer; expected `true` or `false`"),
        ("threads = \"many\"", "`threads` in `FILE` is `many`; expected a whole number from 1 to 1024"),
        (
            "backend = \"gpu\"",
            "`backend` in `FILE` is `gpu`; expected one of `cpu`, `cuda`, `reference`, `transformers`",
        ),
        ("\nport = ", "line 2 of `FILE` is not valid TOML: "),
        ("threads = 0", "`threads` in `FILE` is `0`; expected a whole number from 1 to 1024"),
    ] {
        let error = with_config(text, &[]).unwrap_err();
        assert!(error.starts_with(wanted), "{text:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_watermark_is_within_its_bounds() {
    let replies = serve(&["--watermark-gamma", "0.01", "--watermark-key-file", "some.key"]).unwrap().replies;
    assert_eq!((replies.watermark_gamma, replies.watermark_delta), (0.01, 2.0));
    assert!(replies.watermark_key_file.unwrap().is_absolute());
    assert_eq!(with_config("watermark-gamma = 0.25", &[]).unwrap().replies.watermark_gamma, 0.25);
    for (args, wanted) in [
        (["--watermark-gamma", "1"], "`--watermark-gamma` is `1`; expected a number from 0.01 to 0.99"),
        (["--watermark-gamma", "NaN"], "`--watermark-gamma` is `NaN`; expected a number from 0.01 to 0.99"),
        (["--watermark-delta", "0"], "`--watermark-delta` is `0`; expected a number above 0 and at most 100"),
        (
            ["--watermark-delta", "inf"],
            "`--watermark-delta` is `inf`; expected a number above 0 and at most 100",
        ),
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
    assert_eq!(error, "MODEL is `a/b`, but `--model-id` is `c/d`; hint: give only one of them");
    let config = with_config("model-id = \"c/d\"", &["a/b"]).unwrap();
    assert_eq!(config.model.name.as_deref(), Some("a/b"));
}

#[test]
fn invalid_values_name_flag_value_and_what_is_valid() {
    for (args, wanted) in [
        (&["--port", "65536"][..], "`--port` is `65536`; expected a whole number from 0 to 65535"),
        (&["--port", "tcp://10.0.0.1:3000"], "hint: Kubernetes sets `TRUNKLINE_PORT`"),
        (&["--hostname", " "], "`--hostname` is ` `; expected a host name or an address"),
        (&["--threads", "0"], "`--threads` is `0`; expected a whole number from 1 to 1024"),
        (&["--threads", "x"], "`--threads` is `x`; expected a whole number from 1 to 1024"),
        (
            &["--backend", "gpu"],
            "`--backend` is `gpu`; expected one of `cpu`, `cuda`, `reference`, `transformers`",
        ),
        (
            &["--request-timeout", "1500ms"],
            "`--request-timeout` is `1500ms`; expected a duration from 0 to 1d, such as `5m`, `90s` or a number of \
             seconds",
        ),
        (
            &["--max-concurrent-requests", "0"],
            "`--max-concurrent-requests` is `0`; expected a whole number from 1 to 65536",
        ),
        (
            &["--max-body-bytes", "1023"],
            "`--max-body-bytes` is `1023`; expected a size from 1KiB to 1GiB, such as `10GiB`, `10GB` or a number of bytes",
        ),
        (
            &["--max-total-tokens", "1"],
            "`--max-total-tokens` is `1`; expected a number of tokens from 2 to 2147483648",
        ),
        (&["--kv-disk-size", "1MB"], "`--kv-disk-size` is `1MB`; expected a size from 16MiB to 1024TiB"),
        (
            &["--kv-events-endpoint", "*:5557"],
            "`--kv-events-endpoint` is `*:5557`; expected `tcp://HOST:PORT`",
        ),
        (&["--api-keys", ""], "`--api-keys` is ``; expected a path to a file"),
        (&["--model-id="], "`--model-id` is ``; expected 1 to 4096 bytes of text"),
        (&["--model-id=-x"], "`--model-id` is `-x`; expected 1 to 4096 bytes of text"),
        (&["--", "-x"], "MODEL is `-x`; expected 1 to 4096 bytes of text"),
        (
            &["--served-model-name=a\nb"],
            "`--served-model-name` is `a\u{fffd}b`; expected 1 to 4096 bytes of text",
        ),
    ] {
        let error = serve(args).unwrap_err();
        assert!(error.contains(wanted), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
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
fn an_object_store_lies_below_a_store_on_disk() {
    let error = serve(&["--kv-object-store", "s3://bucket/a"]).unwrap_err();
    assert_eq!(error, "`--kv-object-store` needs `--kv-disk-path`");
    let error = serve(&["--kv-disk-size", "1GiB"]).unwrap_err();
    assert_eq!(error, "`--kv-disk-size` needs `--kv-disk-path`");
    let config = serve(&["--kv-object-store", "s3://bucket/a", "--kv-disk-path", "/srv/kv"]).unwrap();
    assert_eq!(config.router_cache.kv_object_store.as_deref(), Some("s3://bucket/a"));
    assert_eq!(config.shard_cache.kv_disk_size, Some(10 << 30));
}

#[test]
fn pinned_memory_has_a_size_with_and_without_a_disk() {
    assert_eq!(serve(&[]).unwrap().shard_cache.kv_host_size, None);
    let cache = serve(&["--kv-host-size", "64MiB"]).unwrap().shard_cache;
    assert_eq!((cache.kv_host_size, cache.kv_disk_size), (Some(64 << 20), None));
    let cache = serve(&["--kv-host-size", "1GiB", "--kv-disk-path", "/srv/kv"]).unwrap().shard_cache;
    assert_eq!((cache.kv_host_size, cache.kv_disk_path.is_some()), (Some(1 << 30), true));
    assert!(serve(&["--kv-host-size", "0"]).unwrap_err().contains("`--kv-host-size` is `0`"));
}

#[test]
fn certificate_and_key_come_together_and_origins_are_origins() {
    let config = serve(&["--tls-cert", "c.pem", "--tls-key", "/k.pem"]).unwrap();
    let (cert, key) = (config.server.tls_cert.unwrap(), config.server.tls_key.unwrap());
    assert!(cert.is_absolute() && cert.ends_with("c.pem") && key.ends_with("k.pem"));
    assert_eq!(serve(&["--tls-cert", "c.pem"]).unwrap_err(), "`--tls-cert` needs `--tls-key`");
    assert_eq!(serve(&["--tls-key", "k.pem"]).unwrap_err(), "`--tls-key` needs `--tls-cert`");
    let origins = ["--cors-allow-origin", "https://a.example,http://localhost:3", "--cors-allow-origin", "*"];
    let config = serve(&origins).unwrap();
    assert_eq!(config.server.cors_allow_origin, ["https://a.example", "http://localhost:3", "*"]);
    let config = with_config("cors-allow-origin = \"https://a.example,*\"", &[]).unwrap();
    assert_eq!(config.server.cors_allow_origin, ["https://a.example", "*"]);
    for origin in ["a.example", "https://a.example/", "https://", "", "HTTPS://a"] {
        let error = serve(&["--cors-allow-origin", origin]).unwrap_err();
        assert!(
            error.contains(&format!("`--cors-allow-origin` is `{origin}`; expected origins without a path")),
            "{error}"
        );
    }
}
