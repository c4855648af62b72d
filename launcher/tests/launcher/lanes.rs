//! Lanes are drained, added again, and replaced one after the other, without a request that fails.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::support::{Bench, Running, is_alive, kill, pid, wait_for, wait_until_gone};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Returns the events of the shards of this lane.
fn of_lane(bench: &Bench, lane: &str, event: &str) -> Vec<Value> {
    bench.events("shard", event).into_iter().filter(|entry| entry["lane"] == lane).collect()
}

fn nth_of_lane(bench: &Bench, lane: &str, event: &str, nth: usize) -> u32 {
    let what = format!("{event} number {nth} of the shard of lane {lane}");
    pid(&wait_for(&what, || of_lane(bench, lane, event).into_iter().nth(nth - 1)))
}

/// Returns the states in the list of the lanes of a server of one model.
fn states(bench: &Bench) -> Vec<String> {
    column(bench, 2)
}

/// Returns the states in the list of the lanes of a server of several models.
fn states_of_models(bench: &Bench) -> Vec<String> {
    column(bench, 3)
}

fn column(bench: &Bench, number: usize) -> Vec<String> {
    let (code, table, _) = bench.run(&["lanes"]);
    assert_eq!(code, 0);
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).nth(number).map(str::to_owned)
    };
    table.lines().skip(1).filter_map(cells).collect()
}

/// Runs a command that fails, and returns the reason.
fn refused(bench: &Bench, args: &[&str]) -> String {
    let before = bench.stderr().len();
    let (code, stdout, stderr) = bench.run(args);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    stderr[before..].trim_end().to_owned()
}

fn ran(bench: &Bench, args: &[&str]) -> String {
    let (code, stdout, stderr) = bench.run(args);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

#[test]
fn a_drained_lane_has_no_shard_until_it_is_added() {
    let mut server = Bench::new().ready(&["--replicas", "2"]);
    let bench = &server.bench;
    let shards = ["0", "1"].map(|lane| nth_of_lane(bench, lane, "start", 1));
    let table = ran(bench, &["lanes", "list"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let pids = shards.map(|pid| pid.to_string());
    assert_eq!(rows[0], ["LANE", "PID", "STATE", "RUNNING"]);
    assert_eq!(rows[1], ["0", pids[0].as_str(), "serves", "3"]);
    assert_eq!(rows[2], ["1", pids[1].as_str(), "serves", "-"]);

    assert_eq!(ran(bench, &["lanes", "drain", "1"]), "lane 1 is drained\n");
    assert!(!is_alive(shards[1]) && is_alive(shards[0]));
    assert_eq!(states(bench), ["serves", "drained"]);
    assert_eq!(ran(bench, &["lanes", "drain", "1"]), "lane 1 is drained\n", "the second time, it is already");
    assert_eq!(
        refused(bench, &["lanes", "drain", "0"]),
        "error: cannot drain lane 0: no other lane serves; hint: \
         add another one first, or stop the server"
    );

    // A router that starts again knows it, too.
    let router = pid(&bench.nth("router", "start", 1));
    let num_orders = bench.events("router", "drain").len();
    kill(router, Signal::KILL);
    assert_ne!(pid(&bench.nth("router", "drain", num_orders + 1)), router);

    let launcher = server.pid().to_string();
    assert_eq!(ran(bench, &["lanes", "add", "1", "--pid", &launcher]), "lane 1 serves\n");
    assert!(is_alive(nth_of_lane(bench, "1", "start", 2)));
    assert_eq!(bench.events("router", "undrain").len(), 1);
    assert_eq!(states(bench), ["serves", "serves"]);
    assert_eq!(refused(bench, &["lanes", "add", "1"]), "error: cannot add lane 1: it serves already");
    assert_eq!(
        refused(bench, &["lanes", "drain", "2"]),
        "error: cannot drain lane 2: the model has the lanes 0 to 1"
    );
    server.stop();
}

#[test]
fn a_shard_that_crashes_while_it_drains_is_not_restarted() {
    let mut server = Bench::new().with("FAKE_ROUTER", "busy").ready(&["--replicas", "2"]);
    let bench = &server.bench;
    let mut drain = bench.command(&["lanes", "drain", "0"]).spawn().unwrap();
    bench.nth("router", "drain", 1);
    assert_eq!(states(bench), ["drains", "serves"]);
    kill(nth_of_lane(bench, "0", "start", 1), Signal::KILL);
    fs::write(bench.path("release"), "").unwrap();
    wait_for("the lane to be drained", || drain.try_wait().unwrap().map(|status| assert!(status.success())));
    assert_eq!(of_lane(bench, "0", "start").len(), 1);
    // Whoever waits for a lane that is added meanwhile hears of it.
    fs::remove_file(bench.path("release")).unwrap();
    ran(bench, &["lanes", "add", "0"]);
    let drain = bench.command(&["lanes", "drain", "0"]).spawn().unwrap();
    bench.nth("router", "drain", 2);
    ran(bench, &["lanes", "add", "0"]);
    assert_eq!(drain.wait_with_output().unwrap().status.code(), Some(1));
    assert!(bench.stderr().contains("cannot drain lane 0: the lane was added again meanwhile"));
    server.stop();
}

#[test]
fn a_lane_that_was_given_up_can_be_added() {
    let bench = Bench::new().with("FAKE_SHARD", "crash-later").with("FAKE_LANE", "1");
    let mut server = bench.ready(&["--replicas", "2"]);
    let bench = &server.bench;
    kill(nth_of_lane(bench, "1", "listen", 1), Signal::KILL);
    wait_for("the shard to be given up", || (states(bench) == ["serves", "given up"]).then_some(()));
    let reason = refused(bench, &["lanes", "add", "1"]);
    assert!(
        reason.ends_with("cannot add lane 1: its shard crashed too often; hint: see the log of the server"),
        "{reason}"
    );
    assert_eq!(of_lane(bench, "1", "start").len(), 1 + 5 + 6, "it had its whole budget again");
    server.stop();
}

#[test]
fn the_lane_of_a_shard_that_others_start_is_only_emptied() {
    let bench = Bench::new();
    let sockets = ["a.sock", "b.sock"].map(|name| bench.path(name));
    let _shards = sockets.each_ref().map(|path| UnixListener::bind(path).unwrap());
    let [first, second] = sockets.each_ref().map(|path| path.to_str().unwrap());
    let mut server = bench.ready(&["--shard-socket", first, "--shard-socket", second]);
    let bench = &server.bench;
    assert_eq!(states(bench), ["started by others"; 2]);
    ran(bench, &["lanes", "drain", "1"]);
    assert_eq!(bench.nth("router", "drain", 1)["socket"], second);
    assert_eq!(states(bench), ["started by others", "drained"]);
    ran(bench, &["lanes", "add", "1"]);
    assert_eq!(bench.nth("router", "undrain", 1)["socket"], second);
    server.stop();
}

/// Starts a server with this configuration file, and waits until it is ready.
fn serve(bench: Bench, text: &str) -> Running {
    fs::write(bench.path("trunkline.toml"), text).unwrap();
    let config = bench.path("trunkline.toml");
    bench.ready(&["--config", config.to_str().unwrap()])
}

#[test]
fn a_reload_replaces_one_shard_after_the_other() {
    let text =
        |bench: &Bench| format!("replicas = 3\nkv-disk-path = \"{}\"\n", Path::display(&bench.path("kv")));
    let bench = Bench::new().with("FAKE_ROUTER", "hold");
    let text = text(&bench);
    let mut server = serve(bench, &text);
    let bench = &server.bench;
    let old = ["0", "1", "2"].map(|lane| nth_of_lane(bench, lane, "start", 1));
    assert_eq!(ran(bench, &["reload"]), "reloaded\n");
    let new = ["0", "1"].map(|lane| nth_of_lane(bench, lane, "start", 2));
    // Each new shard starts after the end of the old one in its place, and the second pair after the first.
    let journal = bench.journal();
    let at = |pid_of: u32, event: &str| {
        let is_it = |entry: &Value| pid(entry) == pid_of && entry["event"] == event;
        journal.iter().position(is_it).unwrap_or_else(|| panic!("no {event} of {pid_of}: {journal:?}"))
    };
    let order = [at(old[0], "end"), at(new[0], "start"), at(new[0], "listen"), at(old[1], "sigterm")];
    assert!(order.is_sorted(), "{order:?}");
    let order = [at(old[1], "end"), at(new[1], "start"), at(pid(&bench.nth("router", "leave", 1)), "leave")];
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        journal.iter().all(|entry| entry["event"] != "gives-up-store"),
        "no shard finds its store locked"
    );

    // The old router keeps its last shard as long as it has open connections.
    assert_eq!(states(bench), ["serves", "serves", "waits for the old shard"]);
    assert!(is_alive(old[2]));
    let reason = refused(bench, &["lanes", "drain", "0"]);
    assert!(reason.ends_with("a reload is under way; hint: try again later"), "{reason}");
    let reason = refused(bench, &["reload"]);
    assert!(reason.ends_with("another reload is under way; hint: try again later"), "{reason}");
    fs::write(bench.path("release"), "").unwrap();
    wait_until_gone(old[2]);
    nth_of_lane(bench, "2", "start", 2);
    wait_for("all lanes to serve", || (states(bench) == ["serves"; 3]).then_some(()));
    server.stop();
}

#[test]
fn lanes_that_a_failed_reload_has_drained_serve_again() {
    let bench = Bench::new().with("FAKE_SHARD", "late").with("FAKE_LANE", "0");
    fs::write(bench.path("release"), "").unwrap();
    let mut server = serve(bench, "replicas = 2\nreload-timeout = 1\n");
    let bench = &server.bench;
    fs::remove_file(bench.path("release")).unwrap();
    let reason = refused(bench, &["reload"]);
    assert!(reason.contains("no new shard was ready within 1 s; hint: see the log of the shard"), "{reason}");
    let failed = nth_of_lane(bench, "0", "start", 2);
    fs::write(bench.path("release"), "").unwrap();
    let again = nth_of_lane(bench, "0", "start", 3);
    assert!(!is_alive(failed));
    wait_for("the lane to serve", || (states(bench) == ["serves"; 2]).then_some(()));
    assert!(is_alive(again) && is_alive(pid(&bench.nth("router", "start", 1))));
    server.stop();
}

#[test]
fn lanes_say_which_servers_there_are() {
    let bench = Bench::new();
    assert!(
        refused(&bench, &["lanes"]).starts_with("error: cannot list the lanes: no server of this user in `")
    );
    let reason = refused(&bench, &["lanes", "drain", "1", "--pid", "999999999"]);
    assert!(
        reason.starts_with("error: cannot drain lane 1: no server of this user with process id"),
        "{reason}"
    );
    let (code, _, stderr) = bench.run(&["lanes", "drain", "one"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn a_lane_of_another_model_stays_drained_while_its_model_leaves_the_memory_and_comes_back() {
    let mut server = Bench::new().ready(&["first", "other", "--replicas", "2"]);
    let bench = &server.bench;
    let drain = ["lanes", "drain", "1", "--model", "fake/other"];
    assert!(
        refused(bench, &drain)
            .ends_with("the model is not in memory; hint: load it before, for example with a request")
    );
    let reason = refused(bench, &["lanes", "drain", "1", "--model", "nobody"]);
    assert!(
        reason.ends_with("the server has no model of this name, only `fake/model`, `fake/other`"),
        "{reason}"
    );

    bench.report_of_models(json!({"load": {"model": 1}}));
    wait_for("both models to serve", || (states_of_models(bench) == ["serves"; 4]).then_some(()));
    assert_eq!(ran(bench, &drain), "lane 1 is drained\n");
    assert_eq!(states_of_models(bench), ["serves", "serves", "serves", "drained"]);
    for loaded in [["unloaded", "drained"], ["serves", "drained"]] {
        let word = if loaded[0] == "serves" { "load" } else { "unload" };
        bench.report_of_models(json!({word: {"model": 1}}));
        wait_for(word, || (states_of_models(bench)[2..] == loaded).then_some(()));
    }
    assert_eq!(ran(bench, &["lanes", "add", "1", "--model", "fake/other"]), "lane 1 serves\n");
    assert_eq!(states_of_models(bench), ["serves"; 4]);
    server.stop();
}
