//! Every setting of `trunkline serve` reaches the right child, whether set by flag, variable or file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::{Arg, CommandFactory};
use rustix::process::Signal;
use serde_json::Value;
use trunkline_launcher::args::parsed::ParsedArgs;
use trunkline_launcher::args::resolved::{Request, ServerConfig};
use trunkline_launcher::args::{ParseError, SERVE, parse};
use trunkline_launcher::child::ChildId;
use trunkline_launcher::listen::Listener;
use trunkline_launcher::pace::Pace;
use trunkline_launcher::plan::{Base, Other, Plan};
use trunkline_launcher::resolve::ResolvedModel;
use trunkline_launcher::runtime_dir::RuntimeDir;
use trunkline_settings::{Form, Group, LogFormat, ServeSettings};

use crate::support::Bench;

/// Flags as typed, and the words that they add to each child's command line or settings. All values differ, so that
/// swapped values are found.
struct Case {
    typed: &'static str,
    resolver: &'static [&'static str],
    shard: &'static [&'static str],
    router: &'static [&'static str],
}

const NOTHING: &[&str] = &[];

/// Returns a case in which the router gets the flag as typed.
const fn router(typed: &'static [&'static str; 1]) -> Case {
    Case { typed: typed[0], resolver: NOTHING, shard: NOTHING, router: typed }
}

/// Returns a case in which the shard gets the flag as typed.
const fn shard(typed: &'static [&'static str; 1]) -> Case {
    Case { typed: typed[0], resolver: NOTHING, shard: typed, router: NOTHING }
}

/// Returns a case in which both get the flag as typed.
const fn both(typed: &'static [&'static str; 1]) -> Case {
    Case { typed: typed[0], resolver: NOTHING, shard: typed, router: typed }
}

const CASES: &[Case] = &[
    Case { typed: "--model-id a/b", resolver: &["a/b"], shard: NOTHING, router: NOTHING },
    Case { typed: "--revision v1", resolver: &["--revision v1"], shard: NOTHING, router: NOTHING },
    router(&["--served-model-name shown"]),
    router(&["--models-memory 12345678901"]),
    router(&["--idle-unload 97"]),
    router(&["--pin"]),
    router(&["--model-priority 98"]),
    router(&["--model-alias nick,other"]),
    router(&["--hostname localhost"]),
    router(&["--port 4567"]),
    router(&["--metrics-port 4568"]),
    router(&["--metrics-hostname ::1"]),
    router(&["--api-keys /keys.toml"]),
    Case {
        typed: "--tls-cert /cert.pem --tls-key /key.pem",
        resolver: NOTHING,
        shard: NOTHING,
        router: &["--tls-cert /cert.pem", "--tls-key /key.pem"],
    },
    router(&["--cors-allow-origin https://a.example,https://b.example"]),
    router(&["--graceful-termination-timeout 11"]),
    router(&["--reload-timeout 10"]),
    router(&["--max-concurrent-requests 12"]),
    router(&["--max-queued-requests 13"]),
    router(&["--max-input-tokens 101"]),
    router(&["--max-total-tokens 102"]),
    shard(&["--max-batch-prefill-tokens 103"]),
    shard(&["--max-batch-total-tokens 204"]),
    shard(&["--max-step-sequences 14"]),
    shard(&["--model-memory 1073741824"]),
    shard(&["--overcommit"]),
    shard(&["--weights-memory 536870912"]),
    shard(&["--kv-memory 268435456"]),
    router(&["--max-best-of 15"]),
    router(&["--max-messages 16"]),
    router(&["--max-message-parts 17"]),
    router(&["--max-tools 18"]),
    router(&["--max-response-store-bytes 2001"]),
    router(&["--max-stop-sequences 19"]),
    router(&["--max-schema-bytes 2002"]),
    router(&["--max-schema-depth 20"]),
    router(&["--max-schema-properties 21"]),
    router(&["--max-body-bytes 2003"]),
    router(&["--max-header-bytes 2004"]),
    router(&["--client-stall-timeout 22"]),
    router(&["--request-timeout 23"]),
    router(&["--shard-restart-timeout 25"]),
    router(&["--target-itl-ms 26"]),
    router(&["--target-ttft-ms 900"]),
    router(&["--speculate 4"]),
    router(&["--prefill-replicas 1"]),
    router(&["--history-path /history"]),
    router(&["--max-history-bytes 300000000"]),
    router(&["--no-web"]),
    router(&["--otlp-endpoint http://collector:4317"]),
    router(&["--stuck-step-timeout 24"]),
    router(&["--hung-shard-factor 25"]),
    router(&["--chat-template /t.jinja"]),
    router(&["--tool-call-parser hermes"]),
    router(&["--reasoning-parser think"]),
    router(&["--watermark-gamma 0.25"]),
    router(&["--watermark-delta 3.5"]),
    router(&["--watermark-key-file /watermark.key"]),
    shard(&["--backend reference"]),
    shard(&["--numerics fast"]),
    shard(&["--replicas 2"]),
    shard(&["--threads 3"]),
    shard(&["--quantize int8"]),
    shard(&["--pooling mean"]),
    shard(&["--speculative-model /draft.gguf"]),
    shard(&["--pin-threads on"]),
    shard(&["--weights-cache /weights"]),
    shard(&["--kv-cache-dtype f16"]),
    shard(&["--kv-windows off"]),
    router(&["--eviction-policy lru"]),
    router(&["--max-pinned-share 26"]),
    Case {
        typed: "--kv-disk-path /kv --kv-disk-size 32MiB --kv-disk-optional --kv-object-store file:///objects",
        resolver: NOTHING,
        shard: &["--kv-disk-path /kv", "--kv-disk-size 33554432", "--kv-disk-optional"],
        router: &["--kv-object-store file:///objects"],
    },
    Case {
        typed: "--kv-host-size 64MiB",
        resolver: NOTHING,
        shard: &["--kv-host-size 67108864"],
        router: NOTHING,
    },
    router(&["--kv-events-endpoint tcp://*:5557"]),
    router(&["--kv-events-replay-endpoint tcp://*:5558"]),
    Case {
        typed: "--lora sql=/sql,org/chat --lora-folder /adapters --max-loras 27 --max-lora-rank 28 --enable-lora",
        resolver: NOTHING,
        shard: &["--max-loras 27", "--max-lora-rank 28"],
        router: &["--lora sql=/sql,org/chat", "--lora-folder /adapters"],
    },
    Case {
        typed: "--json-output --log-format json",
        resolver: NOTHING,
        shard: &["--log-format json"],
        router: &["--log-format json"],
    },
    both(&["--log-level debug"]),
];

/// The flag of the configuration file, which `a_file_sets_every_other_flag` uses.
const CONFIG: &str = "config";
/// The flag with which the launcher starts no shard.
const SHARD_SOCKET: &str = "shard-socket";
/// The hidden flag, with which the launcher ends with its standard input. Its test is in `terminal`.
const LIFELINE: &str = "lifeline";
/// It is read with the command line. Its test is in `parts::args`.
const MODELS_FOLDER: &str = "models-folder";
/// It does not go with flags for a server of one model. Its test is in `models`.
const PULL: &str = "pull";

/// Returns flag and value of everything in `CASES`. The value of a switch is empty; ports are 0, since others may be in
/// use.
fn typed() -> Vec<(String, String)> {
    let words = CASES.iter().flat_map(|case| with_values(case.typed.split(' ')));
    let pairs = words.map(|words| match words.split_once(' ') {
        Some((flag @ ("--port" | "--metrics-port"), _)) => (flag.to_owned(), "0".to_owned()),
        Some((flag, value)) => (flag.to_owned(), value.to_owned()),
        None => (words, String::new()),
    });
    pairs.map(|(flag, value)| (flag["--".len()..].to_owned(), value)).collect()
}

/// Joins each flag with its value: `--threads 3`.
fn with_values<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(flag) if flag.starts_with("--") && !flag.contains(' ') && !word.starts_with("--") => {
                write!(flag, " {word}").unwrap();
            }
            _ => joined.push(word.to_owned()),
        }
    }
    joined
}

fn serve(typed: &str) -> Box<ServerConfig> {
    let argv: Vec<OsString> =
        ["trunkline", SERVE].into_iter().chain(typed.split_terminator(' ')).map(Into::into).collect();
    match parse(&argv) {
        Ok(Request::Serve(config)) => config,
        other => panic!("{typed}: {other:?}"),
    }
}

/// Returns the settings of shard and router as the flags that would set them.
fn settings_as_words(settings: &ServeSettings) -> [Vec<String>; 2] {
    fn add<G: Group>(words: &mut Vec<String>, group: &G) {
        for (setting, text) in G::SETTINGS.iter().zip(group.texts()) {
            match (&setting.form, text.as_deref()) {
                (Form::Switch, Some("true")) => words.push(setting.flag()),
                (Form::Switch, _) | (_, None) => {}
                (_, Some(text)) => words.push(format!("{} {text}", setting.flag())),
            }
        }
    }
    let mut shard = Vec::new();
    add(&mut shard, &settings.compute);
    add(&mut shard, &settings.step_limits);
    add(&mut shard, &settings.shard_cache);
    add(&mut shard, &settings.adapter_slots);
    add(&mut shard, &settings.logging);
    let mut router = vec![format!("--served-model-name {}", settings.served_model_name)];
    add(&mut router, &settings.residency);
    add(&mut router, &settings.server);
    add(&mut router, &settings.limits);
    add(&mut router, &settings.replies);
    add(&mut router, &settings.cache);
    add(&mut router, &settings.adapters);
    add(&mut router, &settings.logging);
    [shard, router]
}

fn words(command: &Command) -> Vec<String> {
    with_values(command.get_args().map(|word| word.to_str().unwrap()))
}

/// Returns the command line of the resolver and the settings of shard and router as words.
fn command_lines(config: Box<ServerConfig>) -> [Vec<String>; 3] {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::open(&config.first.server.hostname, 0).unwrap();
    listener.port = config.first.server.port;
    let runtime_dir = RuntimeDir::create(&[folder.path().into()], &config.first.log()).unwrap();
    let model =
        ResolvedModel { path: "/m.gguf".into(), model_id: "fake/model".into(), ..ResolvedModel::default() };
    let programs = ("python".into(), "trunkline-router".into());
    let base = Arc::new(Base { listener, metrics_listener: None, runtime_dir, pace: Pace::default() });
    let plan = Plan::new(*config, vec![model], programs, 0, base);
    let resolver = words(&plan.command(ChildId::Resolver, Other::None));
    let [shard, router] = settings_as_words(&plan.settings().next().unwrap());
    [resolver, shard, router]
}

#[test]
fn every_flag_has_a_case() {
    let mut command = ParsedArgs::command();
    command.build();
    let arguments = command.find_subcommand(SERVE).unwrap().get_arguments();
    let is_setting = |arg: &&Arg| {
        arg.get_long().is_some_and(|flag| {
            !["help", LIFELINE, CONFIG, SHARD_SOCKET, MODELS_FOLDER, PULL].contains(&flag)
        })
    };
    let settings: Vec<&Arg> = arguments.filter(is_setting).collect();
    assert!(settings.iter().all(|arg| arg.is_hide_env_values_set()), "the help shows a variable's value");
    let flags: BTreeSet<&str> = settings.iter().filter_map(|arg| arg.get_long()).collect();
    let typed = typed();
    let cases: BTreeSet<&str> = typed.iter().map(|(flag, _)| flag.as_str()).collect();
    assert_eq!(flags, cases);
    assert_eq!(cases.len(), typed.len(), "a flag has two cases");
}

#[test]
fn each_flag_reaches_its_child_and_no_other() {
    let without = command_lines(serve(""));
    for case in CASES {
        let with = command_lines(serve(case.typed));
        let gained: Vec<Vec<&String>> = with
            .iter()
            .zip(&without)
            .map(|(with, without)| with.iter().filter(|words| !without.contains(words)).collect())
            .collect();
        assert_eq!(gained, [case.resolver, case.shard, case.router], "{}", case.typed);
    }
}

#[test]
fn the_alias_of_a_log_format_yields_to_a_closer_place_and_must_agree_with_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let format = |lines: &str, typed: &str| {
        std::fs::write(&file, lines).unwrap();
        let argv = format!("trunkline {SERVE} --config {} {typed}", path(file.path()));
        match parse(&argv.split_whitespace().map(Into::into).collect::<Vec<OsString>>()) {
            Ok(Request::Serve(config)) => Ok(config.first.logging.format()),
            Err(ParseError::Launcher(error)) => Err(error.to_string()),
            other => panic!("{typed}: {other:?}"),
        }
    };
    let [alias, ecs] = ["json-output = true", "log-format = \"ecs\""];
    for (lines, typed, wanted) in [
        ("", "", LogFormat::Text),
        (alias, "", LogFormat::Json),
        (alias, "--log-format ecs", LogFormat::Ecs),
        (ecs, "--json-output", LogFormat::Json),
        ("json-output = false", "--log-format ecs", LogFormat::Ecs),
    ] {
        assert_eq!(format(lines, typed), Ok(wanted), "{lines} {typed}");
    }
    let error =
        "`--json-output` means `--log-format json`, but `--log-format` is `ecs`; hint: give only one of them";
    assert_eq!(format("", "--json-output --log-format ecs"), Err(error.into()));
    assert_eq!(format(&format!("{alias}\n{ecs}"), ""), Err(error.into()));
}

#[test]
fn adapters_get_places_where_they_are_asked_for() {
    let places = |typed| serve(typed).first.adapter_slots.max_loras;
    assert_eq!(places(""), Some(0));
    for typed in ["--lora a=/a", "--lora-modules a=/a", "--lora-folder /l", "--enable-lora"] {
        assert_eq!(places(typed), Some(32), "{typed}");
    }
    assert_eq!(places("--max-loras 2"), Some(2));
    let here = std::env::current_dir().unwrap();
    let lora = serve("--lora a=./a --lora b/c").first.adapters.lora;
    assert_eq!(lora, [format!("a={}", here.join("a").display()), "b/c".to_owned()]);
    for (typed, expected) in [
        ("--lora a=/a --max-loras 0", "`--lora` needs `--max-loras` of at least 1"),
        ("--lora a:b=/a", "`--lora` is `a:b=/a`; expected `NAME=PATH_OR_HUB_ID`"),
        ("--lora a=", "`--lora` is `a=`; expected "),
        ("--max-lora-rank 257", "expected a whole number from 1 to 256"),
    ] {
        let argv: Vec<OsString> =
            ["trunkline", SERVE].into_iter().chain(typed.split(' ')).map(Into::into).collect();
        match parse(&argv) {
            Err(ParseError::Launcher(error)) => assert!(error.to_string().contains(expected), "{error}"),
            other => panic!("{typed}: {other:?}"),
        }
    }
}

/// Runs the launcher and compares the children's arguments, and the variables with secrets that they inherit.
fn assert_all_arrives(bench: Bench, args: &[&str]) {
    let mut command = bench.command(&[&[SERVE], args].concat());
    let keys = ["TRUNKLINE_API_KEY", "TRUNKLINE_WATERMARK_KEY"];
    let cloud = ["AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"];
    let collector = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"];
    let hub = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    for name in keys.iter().chain(&cloud).chain(&collector).chain(&hub).chain(&["HF_HOME"]) {
        command.env(name, "7");
    }
    let mut server = crate::support::Running::new(bench, command);
    server.bench.nth("router", "listen", 1);
    server.bench.nth("shard", "listen", 1);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), 0, "{}", server.bench.stderr());
    let routers = [&keys[..], &cloud, &collector, &["TRUNKLINE_LAUNCHER_SPAN"]].concat();
    for (role, secrets) in [("resolver", hub.to_vec()), ("shard", collector.to_vec()), ("router", routers)] {
        let child = server.bench.nth(role, "start", 1);
        let settings = || settings_as_words(&serde_json::from_value(child["settings"].clone()).unwrap());
        let given = match role {
            "resolver" => with_values(child["argv"].as_array().unwrap().iter().filter_map(Value::as_str)),
            "shard" => settings()[0].clone(),
            _ => settings()[1].clone(),
        };
        for case in CASES {
            let wanted = match role {
                "resolver" => case.resolver,
                "shard" => case.shard,
                _ => case.router,
            };
            for words in wanted.iter().filter(|words| !words.contains("port ")) {
                assert!(given.iter().any(|given| given == words), "{role}: {words} is not in {given:?}");
            }
        }
        assert!(!given.contains(&"--port 3000".to_owned()), "{given:?}");
        let variables = [&secrets[..], &["HF_HOME", "TRUNKLINE_PYTHON", "TRUNKLINE_ROUTER"]].concat();
        let seen: BTreeSet<&str> =
            child["variables"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(seen, BTreeSet::from_iter(variables), "{role}");
    }
}

#[test]
fn flags_set_everything_at_once() {
    let args: Vec<String> = typed()
        .into_iter()
        .flat_map(|(flag, value)| [format!("--{flag}"), value])
        .filter(|word| !word.is_empty())
        .collect();
    assert_all_arrives(Bench::new(), &args.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn variables_set_every_flag() {
    let mut bench = Bench::new();
    for (flag, value) in typed() {
        let variable = format!("TRUNKLINE_{}", flag.to_uppercase().replace('-', "_"));
        let value = if value.is_empty() { "true" } else { &value };
        bench = bench.with(&variable, value);
    }
    assert_all_arrives(bench, &[]);
}

#[test]
fn a_file_sets_every_other_flag() {
    let mut text = String::new();
    for (flag, value) in typed() {
        let is_bare = value.parse::<f64>().is_ok() || value.is_empty();
        let quotes = if is_bare { "" } else { "\"" };
        let value = if value.is_empty() { "true" } else { &value };
        writeln!(text, "{flag} = {quotes}{value}{quotes}").unwrap();
    }
    let bench = Bench::new();
    let file = bench.path("trunkline.toml");
    std::fs::write(&file, text).unwrap();
    assert_all_arrives(bench, &[&format!("--{CONFIG}"), path(&file)]);
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
