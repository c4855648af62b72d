//! Several models under one router, which decides which of them are in memory.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_launcher::pace::Pace;

use crate::support::{Bench, assert_one_error, is_alive, kill, pid, wait_for, wait_until_gone};

/// Waits for the `nth` time that the shard of this model has recorded an event, and returns it.
fn of_model(bench: &Bench, model: u32, event: &str, nth: usize) -> Value {
    let name = if model == 0 { "shard.sock".to_owned() } else { format!("shard-m{model}.sock") };
    let of = |entry: &Value| entry["socket"].as_str().is_some_and(|socket| socket.ends_with(&name));
    wait_for(&format!("{event} {nth} of model {model}; stderr: {}", bench.stderr()), || {
        bench.events("shard", event).into_iter().filter(of).nth(nth - 1)
    })
}

#[test]
fn shards_start_and_stop_as_the_router_asks() {
    let mut server = Bench::new().ready(&["first", "other"]);
    let bench = &server.bench;
    let first = pid(&of_model(bench, 0, "listen", 1));
    let start = bench.nth("router", "start", 1);
    assert_eq!(start["settings"]["model_bytes"], 1000);
    assert_eq!(start["settings"]["residency"]["models_memory"], 5000 / 100 * 90);
    assert_eq!(bench.events("shard", "start").len(), 1, "the second model is not loaded");

    bench.report_of_models(json!({"load": {"model": 1}}));
    let second = of_model(bench, 1, "listen", 1);
    let loading = bench.nth("router", "loading", 2);
    assert_eq!(json!([loading["model"], loading["lane"], loading["percent"]]), json!([1, 0, 40]));
    assert_eq!(of_model(bench, 1, "start", 1)["settings"]["served_model_name"], "fake/other");
    let lanes = || bench.run(&["lanes"]).1;
    wait_for("the second model to serve", || (lanes().matches("serves").count() == 2).then_some(()));
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let listed: Vec<Vec<String>> = lanes().lines().map(cells).collect();
    let row = |model, shard: u32| cells(&format!("{model} 0 {shard} serves -"));
    let expected =
        [cells("MODEL LANE PID STATE RUNNING"), row("fake/model", first), row("fake/other", pid(&second))];
    assert_eq!(listed, expected);
    // A model that is in memory goes on.
    bench.report_of_models(json!({"load": {"model": 1}}));
    bench.report_of_models(json!({"unload": {"model": 0}}));
    wait_until_gone(first);
    assert_eq!(bench.nth("router", "unloaded", 1)["model"], 0);
    assert!(is_alive(pid(&second)));
    let unloaded = lanes().lines().any(|line| cells(line) == cells("fake/model 0 - unloaded -"));
    assert!(unloaded, "{}", lanes());
    bench.report_of_models(json!({"load": {"model": 0}}));
    of_model(bench, 0, "listen", 2);
    server.stop();
}

#[test]
fn a_model_that_cannot_be_loaded_is_reported_and_the_others_serve_on() {
    let mut server = Bench::new().with("FAKE_SHARD", "refuse-other").ready(&["first", "other"]);
    let bench = &server.bench;
    let first = pid(&of_model(bench, 0, "listen", 1));
    for nth in 1..3 {
        bench.report_of_models(json!({"load": {"model": 1}}));
        let failed = bench.nth("router", "failed", nth);
        assert_eq!(
            (failed["model"].as_u64(), failed["why"].as_str()),
            (Some(1), Some("tensor `x` is damaged"))
        );
    }
    assert!(is_alive(first));
    server.stop();
}

#[test]
fn a_shard_that_crashes_is_restarted_until_its_model_is_given_up_alone() {
    let mut server = Bench::new().ready(&["first", "other"]);
    let bench = &server.bench;
    let first = pid(&of_model(bench, 0, "listen", 1));
    bench.report_of_models(json!({"load": {"model": 1}}));
    for nth in 1..7 {
        let shard = pid(&of_model(bench, 1, "listen", nth));
        // A shard that was not ready yet would be given up at once.
        wait_for("the launcher to know that it is ready", || {
            (bench.stderr().matches("is ready process=shard-m1").count() >= nth).then_some(())
        });
        kill(shard, Signal::KILL);
    }
    let failed = bench.nth("router", "failed", 1);
    assert_eq!(failed["model"], 1);
    assert!(failed["why"].as_str().unwrap().contains("crashed 6 times within 60 s"), "{failed}");
    assert!(is_alive(first));
    // The router may ask for it again.
    bench.report_of_models(json!({"load": {"model": 1}}));
    of_model(bench, 1, "listen", 7);
    server.stop();
}

#[test]
fn a_shard_that_does_not_stop_is_killed() {
    let pace = Pace { shard_timeout: Duration::from_millis(50), ..Pace::default() };
    let server = Bench::new().with("FAKE_SHARD", "stubborn").supervise(&["--idle-unload", "1h"], pace);
    server.wait_ready();
    let shard = pid(&of_model(&server.bench, 0, "listen", 1));
    server.bench.report_of_models(json!({"unload": {"model": 0}}));
    wait_until_gone(shard);
    assert_eq!(server.bench.nth("router", "unloaded", 1)["model"], 0);
    server.signal(Signal::TERM);
    server.wait().1.unwrap();
}

#[test]
fn a_spare_process_becomes_the_next_shard() {
    let pace = Pace { spare_delay: Duration::ZERO, ..Pace::default() };
    let server = Bench::new().supervise(&["first", "other"], pace);
    server.wait_ready();
    let bench = &server.bench;
    for (model, nth) in [(1, 1), (0, 2), (1, 2)] {
        let spare = pid(&bench.nth("spare", "start", bench.events("shard", "start").len()));
        let other = 1 - model;
        bench.report_of_models(json!({"unload": {"model": other}}));
        wait_for("the unload", || {
            bench.events("router", "unloaded").iter().any(|order| order["model"] == other).then_some(())
        });
        bench.report_of_models(json!({"load": {"model": model}}));
        assert_eq!(pid(&of_model(bench, model, "listen", nth)), spare);
    }
    // A spare process that ends is missed by nobody.
    let spare = pid(&bench.nth("spare", "start", 4));
    kill(spare, Signal::KILL);
    wait_until_gone(spare);
    bench.report_of_models(json!({"load": {"model": 0}}));
    of_model(bench, 0, "listen", 3);
    server.signal(Signal::TERM);
    server.wait().1.unwrap();
}

#[test]
fn a_router_that_was_restarted_is_told_what_is_in_memory() {
    let mut server = Bench::new().ready(&["first", "other"]);
    let bench = &server.bench;
    bench.report_of_models(json!({"load": {"model": 1}}));
    of_model(bench, 1, "listen", 1);
    bench.end_router(3);
    bench.nth("router", "listen", 2);
    let loads = |nth: usize| -> Vec<String> {
        let flags = bench.nth("router", "start", nth)["flags"].clone();
        let flags: Vec<String> = serde_json::from_value(flags).unwrap();
        flags.windows(2).filter(|pair| pair[0] == "--load").map(|pair| pair[1].clone()).collect()
    };
    assert_eq!((loads(1), loads(2)), (vec!["0".to_owned()], vec!["0".to_owned(), "1".to_owned()]));
    assert_eq!(bench.events("shard", "start").len(), 2, "both go on");
    server.stop();
}

#[test]
fn what_several_models_cannot_have_is_one_line() {
    for (args, line) in [
        (
            &["first", "second"] as &[&str],
            "two models are called `fake/model`; hint: give one of them another",
        ),
        (&["first", "other", "--served-model-name", "x"], "two models are called `x`"),
        (
            &["first", "other", "--models-memory", "1GiB", "--model-memory", "2GiB"],
            "`--model-memory` of a model is 2147483648 bytes, but `--models-memory` is 1073741824; hint: lower",
        ),
        (
            &["first", "other", "--models-memory", "3GiB", "--model-memory", "2GiB", "--pin"],
            "`--model-memory` of all pinned models together is 4294967296 bytes",
        ),
    ] {
        let (code, _, stderr) = Bench::new().run(&[&["serve", "--port", "0"], args].concat());
        assert_eq!(code, 2, "{stderr}");
        assert_one_error(&stderr, line);
    }
}

/// Waits for the `nth` order of this name, and returns it with the settings of the model that it adds.
fn order(bench: &Bench, name: &str, nth: usize) -> (Value, Value) {
    let order = bench.nth("router", name, nth);
    let settings = order["settings"].as_str().map(|path| fs::read_to_string(path).unwrap());
    (order, settings.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap()))
}

#[test]
fn a_model_that_a_request_names_is_found_loaded_and_deleted() {
    let mut server = Bench::new().with("FAKE_LIBRARY", "0").ready(&["first", "--pull", "hub", "--pin"]);
    let bench = &server.bench;
    bench.report_of_models(json!({"find": {"model": "hub/new", "downloads": true}}));
    let (added, settings) = order(bench, "added", 1);
    assert_eq!((&added["found_as"], &added["replaces"]), (&"hub/new".into(), &Value::Null));
    assert_eq!((&settings["model_number"], &settings["served_model_name"]), (&1.into(), &"hub/new".into()));
    assert_eq!((&settings["model_bytes"], &settings["residency"]["pin"]), (&1000.into(), &false.into()));
    let (progress, _) = order(bench, "downloading", 1);
    assert_eq!((&progress["done_bytes"], &progress["total_bytes"]), (&1.into(), &2.into()));
    let resolver = bench.events("resolver", "start").pop().unwrap();
    assert!(!resolver["argv"].as_array().unwrap().contains(&"--local".into()), "{resolver}");
    assert!(resolver["argv"].as_array().unwrap().contains(&"--no-paths".into()), "{resolver}");
    bench.report_of_models(json!({"load": {"model": 1}}));
    let shard = pid(&of_model(bench, 1, "listen", 1));
    // It is there already.
    bench.report_of_models(json!({"find": {"model": "hub/new", "downloads": false}}));
    assert_eq!(order(bench, "added", 2).1["model_number"], 1);
    bench.report_of_models(json!({"find": {"model": "hub/new:second", "downloads": false}}));
    assert_eq!(order(bench, "added", 3).1["model_number"], 2);
    let resolver = bench.events("resolver", "start").pop().unwrap();
    assert!(resolver["argv"].as_array().unwrap().contains(&"--local".into()), "{resolver}");
    for (nth, (model, why)) in
        [(0, "the server was started with it"), (1, "model `hub/new:second` is of the same repository")]
            .into_iter()
            .enumerate()
    {
        bench.report_of_models(json!({"delete": {"model": model}}));
        let (kept, _) = order(bench, "not_deleted", nth + 1);
        assert!(kept["why"].as_str().unwrap().contains(why), "{kept}");
    }
    bench.report_of_models(json!({"find": {"model": "hub/lost", "downloads": true}}));
    assert_eq!(order(bench, "not_found", 1).0["why"], "nobody has `hub/lost`");
    bench.report_of_models(json!({"unload": {"model": 1}}));
    wait_until_gone(shard);
    server.stop();
}

#[test]
fn a_deleted_model_ends_with_its_last_request_and_its_number_is_not_used_again() {
    let mut server = Bench::new().with("FAKE_LIBRARY", "0").ready(&["first", "--pull", "hub"]);
    let bench = &server.bench;
    bench.report_of_models(json!({"find": {"model": "hub/new", "downloads": true}}));
    order(bench, "added", 1);
    bench.report_of_models(json!({"load": {"model": 1}}));
    let shard = pid(&of_model(bench, 1, "listen", 1));
    bench.report_of_models(json!({"delete": {"model": 1}}));
    assert_eq!(order(bench, "removed", 1).0["model"], 1);
    assert_eq!(bench.events("library", "start").len(), 1);
    // Its requests go on until the router says otherwise.
    assert!(is_alive(shard));
    bench.report_of_models(json!({"unload": {"model": 1}}));
    wait_until_gone(shard);
    assert_eq!(order(bench, "unloaded", 1).0["model"], 1);
    bench.report_of_models(json!({"load": {"model": 1}}));
    assert_eq!(order(bench, "failed", 1).0["why"], "it was removed");
    bench.report_of_models(json!({"find": {"model": "hub/new", "downloads": true}}));
    assert_eq!(order(bench, "added", 2).1["model_number"], 2);
    // A router that is started again gets the models that are there.
    bench.end_router(3);
    bench.nth("router", "listen", 2);
    let flags = bench.nth("router", "start", 2)["flags"].clone();
    let flags: Vec<String> = serde_json::from_value(flags).unwrap();
    let files: Vec<&String> = flags.iter().filter(|flag| flag.ends_with(".json")).collect();
    assert!(
        matches!(&files[..], [first, second] if first.ends_with("settings.json") && second.ends_with("-m2.json"))
    );
    server.stop();
}

#[test]
fn a_reload_adds_replaces_and_removes_models() {
    let bench = Bench::new();
    let config = bench.path("trunkline.toml");
    let write = |models: &[&str]| {
        let tables = models.iter().map(|model| format!("[[model]]\nmodel-id = {model}\n"));
        fs::write(&config, tables.collect::<String>()).unwrap();
    };
    let (first, other) = (r#""first""#, r#""other""#);
    write(&[first, other]);
    let mut server = bench.ready(&["--config", config.to_str().unwrap()]);
    let bench = &server.bench;
    assert_eq!(bench.run(&["reload"]).1, "reloaded\n", "nothing has changed");
    let third = "\"third\"\nserved-model-name = \"third\"";
    write(&[first, other, third]);
    assert_eq!(bench.run(&["reload"]).1, "reloaded\n");
    let (added, settings) = order(bench, "added", 1);
    assert_eq!((&added["replaces"], &settings["served_model_name"]), (&Value::Null, &"third".into()));
    // The router says whether the new one can be loaded, and until then both are there.
    for (nth, problem) in [(2, "no memory".into()), (3, Value::Null)] {
        let changed = format!("{third}\nmax-total-tokens = {}", 100 * nth);
        write(&[first, other, &changed]);
        let mut reload = bench.command(&["reload"]).stdout(Stdio::piped()).spawn().unwrap();
        let (added, settings) = order(bench, "added", nth);
        assert_eq!(added["replaces"], 2);
        let number = settings["model_number"].as_u64().unwrap();
        assert_eq!((number, &settings["limits"]["max_total_tokens"]), (nth as u64 + 1, &(100 * nth).into()));
        bench.report_of_models(json!({"replaced": {"model": number, "problem": problem}}));
        assert_eq!(reload.wait().unwrap().code(), Some(i32::from(!problem.is_null())));
    }
    assert!(bench.stderr().contains("`third` stays as it was: no memory"));
    write(&[first]);
    assert_eq!(bench.run(&["reload"]).1, "reloaded\n");
    assert_eq!([1, 2].map(|nth| order(bench, "removed", nth).0["model"].clone()), [1, 4]);
    write(&[first, r#""lost""#]);
    assert_eq!(bench.run(&["reload"]).0, 1);
    assert!(bench.stderr().contains("`lost`: nobody has `lost`"));
    server.stop();
}

#[test]
fn other_settings_of_the_server_replace_all_models_while_the_old_router_serves_its_streams() {
    let bench = Bench::new().with("FAKE_ROUTER", "hold");
    let (config, folder) = (bench.path("trunkline.toml"), bench.path("kv"));
    let write = |settings: &str| {
        let models = ["first", "other", "third"].map(|name| format!("[[model]]\nmodel-id = \"{name}\"\n"));
        let models = models.concat().replace("third\"", "third\"\nserved-model-name = \"third\"");
        fs::write(&config, format!("kv-disk-path = {folder:?}\n{settings}\n{models}")).unwrap();
    };
    write("");
    let mut server = bench.ready(&["--config", config.to_str().unwrap()]);
    let bench = &server.bench;
    bench.report_of_models(json!({"load": {"model": 1}}));
    let other = pid(&of_model(bench, 1, "listen", 1));
    wait_for("the second model to serve", || {
        bench.stderr().contains("is ready process=shard-m1").then_some(())
    });

    write("max-concurrent-requests = 7");
    assert_eq!(bench.run(&["reload"]).1, "reloaded\n", "{}", bench.stderr());
    let start = bench.nth("router", "start", 2);
    let flags: Vec<String> = serde_json::from_value(start["flags"].clone()).unwrap();
    for flag in ["--accept-when-ready", "--on-demand"] {
        assert!(flags.iter().any(|own| own == flag), "{flags:?}");
    }
    assert_eq!(start["settings"]["limits"]["max_concurrent_requests"], 7);
    let first = pid(&of_model(bench, 0, "listen", 1));
    assert_eq!(pid(&bench.nth("shard", "gives-up-store", 1)), first);
    // The new router loads what it is asked for, and that model takes its store on disk over.
    bench.report_of_models(json!({"load": {"model": 1}}));
    assert_eq!(pid(&bench.nth("shard", "gives-up-store", 2)), other);
    // The old one goes on with its open connections, on which other models may be asked for.
    bench.report_of_old_models(json!({"load": {"model": 2}}));
    let third = pid(&of_model(bench, 2, "listen", 1));
    bench.report_of_old_models(json!({"find": {"model": "hub/new", "downloads": true}}));
    assert_eq!(bench.nth("router", "not_found", 1)["model"], "hub/new");
    bench.report_of_old_models(json!({"unload": {"model": 2}}));
    wait_until_gone(third);
    assert_eq!(bench.nth("router", "unloaded", 1)["model"], 2);
    assert!(is_alive(first) && is_alive(other));
    fs::write(bench.path("release"), "").unwrap();
    [first, other].into_iter().for_each(wait_until_gone);
    server.stop();
}

#[test]
fn a_server_of_one_model_is_reloaded_as_one_of_several_and_back() {
    let bench = Bench::new();
    let config = bench.path("trunkline.toml");
    let write = |text: &str| fs::write(&config, text).unwrap();
    let (one, two) =
        ("model-id = \"first\"\n", "[[model]]\nmodel-id = \"first\"\n[[model]]\nmodel-id = \"other\"\n");
    write(one);
    let mut server = bench.ready(&["--config", config.to_str().unwrap()]);
    let bench = &server.bench;
    for (text, num_models) in [(two, 2), (one, 1)] {
        write(text);
        assert_eq!(bench.run(&["reload"]).1, "reloaded\n", "{}", bench.stderr());
        let listed = bench.run(&["lanes"]).1;
        assert_eq!(listed.lines().count(), 1 + num_models, "{listed}");
    }
    server.stop();
}

#[test]
fn models_of_a_folder_come_and_go_with_their_files() {
    let bench = Bench::new();
    let folder = bench.path("folder");
    fs::create_dir(&folder).unwrap();
    let mut server = bench.ready(&["first", "--models-folder", folder.to_str().unwrap()]);
    let bench = &server.bench;
    let path = folder.join("other.gguf");
    fs::write(&path, "one").unwrap();
    assert_eq!(order(bench, "added", 1).1["model_number"], 1);
    fs::write(&path, "another").unwrap();
    assert_eq!(order(bench, "removed", 1).0["model"], 1);
    assert_eq!(order(bench, "added", 2).1["model_number"], 2);
    fs::remove_file(&path).unwrap();
    assert_eq!(order(bench, "removed", 2).0["model"], 2);
    server.stop();
}

#[test]
fn the_models_of_a_server_are_listed_and_managed() {
    let mut server = Bench::new().ready(&["first", "other"]);
    let run = |args: &[&str]| {
        let output = server.bench.command(&[&["models"], args].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, table) = run(&[]);
    assert_eq!(code, Some(0), "{table}{}", server.bench.stderr());
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
        .collect();
    assert_eq!(lines[0], ["NAME", "STATE", "MEMORY"]);
    assert_eq!(lines[1], ["fake/model", "loaded, pinned", "1.0 GiB"]);
    assert_eq!(lines[2], ["fake/other", "failed: no such file", "-"]);
    assert_eq!(run(&["unload", "fake/model"]), (Some(0), "fake/model is unloaded\n".to_owned()));
    let asked = server.bench.nth("router", "request", 1);
    assert_eq!(asked["path"], "/v1/models/fake/model/unload");
    server.stop();
}
