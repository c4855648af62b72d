//! Help, errors and precedence of the command line.

use std::collections::BTreeMap;

use crate::support::Bench;
use serde_json::Value;
use trunkline_settings::{LogFormat, ServeSettings};

fn help(args: &[&str]) -> String {
    let bench = Bench::new();
    let output = bench.command(args).env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_of_trunkline() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn help_of_serve() {
    insta::assert_snapshot!(help(&["serve", "--help"]));
}

#[test]
fn help_of_download() {
    insta::assert_snapshot!(help(&["download", "--help"]));
}

#[test]
fn help_of_the_commands_for_models() {
    let texts = ["list", "show", "fit", "rm", "quantize"].map(|command| help(&[command, "--help"]));
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn help_of_cache() {
    let commands = ["ls", "show", "pin", "verify", "repair", "rm", "export", "import"];
    let texts = commands.map(|command| help(&["cache", command, "--help"]));
    insta::assert_snapshot!([&[help(&["cache", "--help"])], &texts[..]].concat().join("\n"));
}

#[test]
fn help_of_config() {
    let check = help(&["config", "check", "--help"]);
    // The rest is the help of `serve`.
    let own = check.split_once("\n\nModel:").unwrap().0;
    insta::assert_snapshot!([&help(&["config", "--help"]), own].join("\n"));
}

#[test]
fn help_of_chat_run_and_top() {
    let texts = [["chat"], ["run"], ["top"], ["man"]].map(|command| help(&[command[0], "--help"]));
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn help_of_status() {
    insta::assert_snapshot!(help(&["status", "--help"]));
}

#[test]
fn help_of_bench() {
    insta::assert_snapshot!(help(&["bench", "--help"]));
}

#[test]
fn help_of_reload() {
    insta::assert_snapshot!(help(&["reload", "--help"]));
}

#[test]
fn help_of_lanes() {
    let texts =
        [&["lanes", "--help"][..], &["lanes", "drain", "--help"], &["lanes", "add", "--help"]].map(help);
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn version_is_the_crate_version() {
    let (code, stdout, _) = Bench::new().run(&["--version"]);
    assert_eq!((code, stdout), (0, format!("trunkline {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn typing_errors_end_with_two() {
    for args in [&["serve", "--prot", "1"][..], &["serv"], &[], &["serve", "--threads", "x"], &["download"]] {
        let bench = Bench::new();
        let (code, stdout, _) = bench.run(args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(bench.journal().is_empty());
    }
}

#[test]
fn flag_outranks_variable_and_variable_outranks_file() {
    let bench = Bench::new();
    let file = bench.path("trunkline.toml");
    std::fs::write(
        &file,
        "max-queued-requests = 3\nmax-stop-sequences = 3\nmax-concurrent-requests = 3\njson-output = true\n",
    )
    .unwrap();
    let bench = bench
        .with("TRUNKLINE_CONFIG", &file)
        .with("TRUNKLINE_MAX_QUEUED_REQUESTS", "")
        .with("TRUNKLINE_MAX_INPUT_TOKENS", "")
        .with("TRUNKLINE_MAX_STOP_SEQUENCES", "2")
        .with("TRUNKLINE_MAX_CONCURRENT_REQUESTS", "2");
    let mut server = bench.ready(&["--max-concurrent-requests", "1"]);
    let router = server.bench.nth("router", "start", 1);
    server.stop();

    let settings: ServeSettings = serde_json::from_value(router["settings"].clone()).unwrap();
    assert_eq!(settings.limits.max_concurrent_requests, Some(1));
    assert_eq!(settings.limits.max_stop_sequences, 2);
    assert_eq!(settings.limits.max_queued_requests, Some(3));
    assert_eq!(settings.logging.log_format, Some(LogFormat::Json));
    assert_eq!(
        router["variables"],
        serde_json::json!(["TRUNKLINE_LAUNCHER_SPAN", "TRUNKLINE_PYTHON", "TRUNKLINE_ROUTER"]),
        "the settings contain the others"
    );
    for line in server.bench.stderr().lines().filter(|line| line.contains("launcher")) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["target"], "launcher");
        assert!(line["timestamp"].is_string() && line["level"].is_string() && line["message"].is_string());
    }
    assert!(server.bench.stderr().contains(r#""message":"stopped""#));
}

#[test]
fn config_check_says_where_each_setting_comes_from() {
    let bench = Bench::new();
    let file = bench.path("trunkline.toml");
    std::fs::write(&file, "# comment\nthreads = 3\n\n\"port\" = 1\nhostname = \"::1\"\njson-output = true\n")
        .unwrap();
    let bench = bench
        .with("TRUNKLINE_PORT", "4000")
        .with("TRUNKLINE_MODEL_ID", "")
        .with("TRUNKLINE_API_KEY", "secret-1")
        .with("TRUNKLINE_KV_OBJECT_STORE", "s3://me:secret-2@bucket/a");
    let path = file.display().to_string();
    let args = ["config", "check", &path, "--hostname", "localhost", "--kv-disk-path", "/srv/../kv"];
    let (code, stdout, stderr) = bench.run(&args);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let rows: BTreeMap<&str, Vec<&str>> = stdout
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>())
        .map(|cells| (cells[0], cells[1..].to_vec()))
        .collect();
    // One more for the headings, and one for the key.
    assert_eq!(rows.len(), trunkline_settings::all().len() + 2, "{stdout}");
    let (line_2, line_6) = (format!("line 2 of `{path}`"), format!("line 6 of `{path}`"));
    for (setting, value, source) in [
        ("model-id", "the embedded model", "default"),
        ("hostname", "localhost", "--hostname"),
        ("port", "4000", "TRUNKLINE_PORT"),
        ("threads", "3", &line_2),
        ("json-output", "true", &line_6),
        ("max-queued-requests", "`--max-concurrent-requests`", "default"),
        ("tls-cert", "none", "default"),
        ("kv-object-store", "(not shown)", "TRUNKLINE_KV_OBJECT_STORE"),
        ("API key", "(not shown)", "TRUNKLINE_API_KEY"),
    ] {
        assert_eq!(rows[setting], [value, source], "{stdout}");
    }
    assert!(!stdout.contains("secret"), "{stdout}");
    // The variable of the file yields to the argument, and the flag must agree with it.
    let bench = bench.with("TRUNKLINE_CONFIG", "none.toml");
    assert_eq!(bench.run(&args).1, stdout);
    let (code, _, stderr) = bench.run(&["config", "check", &path, "--config", "other.toml"]);
    let hint = "hint: give only one of them";
    assert_eq!(
        (code, stderr),
        (2, format!("error: FILE is `{path}`, but `--config` is `other.toml`; {hint}\n"))
    );
}

#[test]
fn config_check_refuses_what_serve_refuses() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (text, args) in [
        ("prot = 1", &[][..]),
        ("port = ", &[]),
        ("port = 70000", &[]),
        ("", &["--threads", "x"]),
        ("tls-cert = \"c.pem\"", &[]),
        ("", &["--unknown"]),
    ] {
        std::fs::write(path, text).unwrap();
        let check = Bench::new().run(&[&["config", "check", path], args].concat());
        let serve = Bench::new().run(&[&["serve", "--config", path], args].concat());
        assert_eq!((check.0, check.1.as_str()), (2, ""));
        let lines = [check.2, serve.2].map(|text| text.lines().next().unwrap().to_owned());
        assert_eq!(lines[0], lines[1]);
    }
}

/// Asks bash itself what it would offer.
#[test]
fn bash_completes_commands_flags_and_values() {
    let script = Bench::new().run(&["completions", "bash"]).1;
    let offered = |words: &str| {
        let count = words.split(' ').count() - 1;
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={count}\n\
             _trunkline trunkline \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             printf '%s ' \"${{COMPREPLY[@]}}\""
        );
        let output = std::process::Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(offered("trunkline comp"), "completions");
    assert_eq!(offered("trunkline serve --kv-disk-p"), "--kv-disk-path");
    assert_eq!(offered("trunkline serve --backend c"), "cpu cuda");
    assert_eq!(offered("trunkline config check --log-l"), "--log-level");
}

#[test]
fn completions_exist_for_three_shells() {
    let bench = Bench::new();
    assert!(bench.run(&["completions", "zsh"]).1.starts_with("#compdef trunkline\n"));
    assert!(bench.run(&["completions", "fish"]).1.contains("complete -c trunkline "));
    assert_eq!(bench.run(&["completions", "nushell"]).0, 2);
}

#[test]
fn download_prints_the_path_alone() {
    let bench = Bench::new();
    let (code, stdout, stderr) = bench.run(&["download", "a/b", "--revision", "main"]);
    assert_eq!((code, stdout), (0, format!("{}\n", bench.path("model.gguf").display())));
    assert_eq!(stderr, "Fetching: 100%\n");
    let argv = &bench.events("resolver", "start")[0]["argv"];
    assert_eq!(*argv, serde_json::json!(["resolve", "a/b", "--revision", "main"]));
}

#[test]
fn commands_for_models_are_those_of_the_server_package() {
    let bench = Bench::new().with("TRUNKLINE_REVISION", "v1").with("TRUNKLINE_API_KEY", "secret");
    for (given, expected) in [
        (&["list"][..], &["list"][..]),
        (&["rm", "a/b"], &["rm", "a/b"]),
        (&["show"], &["show"]),
        (&["show", "a/b"], &["show", "--revision=v1", "a/b"]),
        (&["show", "a/b", "--revision", "v2"], &["show", "--revision=v2", "a/b"]),
        (&["fit"], &["fit", "--streams=1"]),
        (
            &["fit", "a/b", "--context", "4096", "--streams", "8", "--available", "16GiB", "--json"],
            &[
                "fit",
                "--revision=v1",
                "--context=4096",
                "--streams=8",
                "--available=17179869184",
                "--json",
                "a/b",
            ],
        ),
        (
            &["fit", "--quantize", "int4", "--kv-cache-dtype", "f16"],
            &["fit", "--streams=1", "--quantize=int4", "--kv-cache-dtype=f16"],
        ),
    ] {
        assert_eq!(bench.run(given), (7, format!("{}\n", expected.join(" ")), String::new()));
    }
    let (code, _, stderr) = bench.run(&["fit", "--available", "much"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("`--available` is `much`; expected a size"), "{stderr}");
    let (code, _, stderr) = bench.run(&["fit", "--quantize", "int3"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("`--quantize` is `int3`"), "{stderr}");
    let started = bench.events("library", "start");
    assert!(!started[0]["variables"].to_string().contains("API_KEY"), "{started:?}");
}

#[test]
fn env_names_what_a_bug_report_needs_and_no_secret() {
    let bench = Bench::new().with("HF_TOKEN", "hf_secret").with("TRUNKLINE_THREADS", "7777");
    let (code, stdout, _) = bench.run(&["env"]);
    assert_eq!(code, 0);
    for wanted in [
        &format!("trunkline: {}\n", env!("CARGO_PKG_VERSION")),
        "cpu features: ",
        "cores: ",
        " MiB total",
        "router version: trunkline-router 0.fake\n",
        "packages: python 3.fake\n",
        &format!("embedded model: fake/model ({})\n", bench.path("model.gguf").display()),
        "HF_TOKEN ",
        "TRUNKLINE_THREADS",
    ] {
        assert!(stdout.contains(wanted), "{wanted}: {stdout}");
    }
    assert!(!stdout.contains("hf_secret") && !stdout.contains("7777"), "{stdout}");
}

#[test]
fn env_says_what_it_cannot_find() {
    let bench = Bench::new().with("TRUNKLINE_ROUTER", "").with("FAKE_RESOLVE", "refuse");
    let (code, stdout, _) = bench.run_alone(&["env"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("router: not found: `trunkline-router` is not installed beside "), "{stdout}");
    assert!(stdout.contains("embedded model: not found: error: no model `x`\n"), "{stdout}");
}
