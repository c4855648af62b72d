//! Several shards under one router, which the launcher starts, supervises and replaces, or which others start.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trunkline_launcher::pace::Pace;

use crate::support::{Bench, Running, assert_one_error, is_alive, kill, pid, wait_for, wait_until_gone};

/// Waits for the `nth` time that the shard of this lane has recorded an event, and returns it.
fn of_lane(bench: &Bench, lane: &str, event: &str, nth: usize) -> Value {
    let of = |entry: &Value| entry["lane"] == lane;
    wait_for(&format!("{event} {nth} of lane {lane}; stderr: {}", bench.stderr()), || {
        bench.events("shard", event).into_iter().filter(of).nth(nth - 1)
    })
}

#[test]
fn the_server_is_ready_when_every_shard_is() {
    let late = || Bench::new().with("FAKE_SHARD", "late").with("FAKE_LANE", "1");
    let mut server = late().serve(&["--replicas", "3"]);
    server.bench.nth("router", "ready", 2);
    let late_one = pid(&of_lane(&server.bench, "1", "start", 1));
    kill(late_one, Signal::TERM);
    // A server that is ready would start it again.
    server.fails(1, "the shard-l1 ended with exit code 0 before the server was ready");

    let mut server = late().serve(&["--replicas", "2"]);
    server.bench.nth("router", "ready", 1);
    fs::write(server.bench.path("release"), "").unwrap();
    server.wait_ready();
    // The router notes each report after it has sent it.
    server.bench.nth("router", "ready", 2);
    server.stop();
}

#[test]
fn each_shard_with_a_gpu_has_one_of_the_launchers() {
    let devices = |bench: Bench| {
        let mut server = bench.ready(&["--replicas", "2", "--backend", "cuda"]);
        let devices = ["0", "1"].map(|lane| of_lane(&server.bench, lane, "start", 1)["device"].clone());
        server.stop();
        devices
    };
    assert_eq!(devices(Bench::new()), ["0", "1"].map(Value::from));
    let named = Bench::new().with("CUDA_VISIBLE_DEVICES", "GPU-8a, 5,6");
    assert_eq!(devices(named), ["GPU-8a", "5"].map(Value::from));
    let mut server = Bench::new().with("CUDA_VISIBLE_DEVICES", "5,6").ready(&["--backend", "cuda"]);
    assert_eq!(
        of_lane(&server.bench, "0", "start", 1)["device"],
        "5,6",
        "one shard sees what the launcher sees"
    );
    server.stop();
}

#[test]
fn impossible_numbers_of_shards_are_one_line() {
    for (devices, args, line) in [
        (
            "0",
            &["--backend", "cuda", "--replicas", "2"][..],
            "`--replicas` is 2, but the number of GPUs in `CUDA_VISIBLE_DEVICES` is 1; hint: each replica needs a GPU",
        ),
        ("", &["--replicas", "65"], "`--replicas` is `65`; expected a whole number from 1 to 64"),
        (
            "",
            &["--replicas", "2", "--shard-socket", "/a"],
            "`--replicas` is 2, but `--shard-socket` names shards that others start; hint: give only one of them",
        ),
        ("", &["--shard-socket", "/a,/b", "--shard-socket", "/a"], "`--shard-socket` names `/a` twice"),
        (
            "",
            &["--shard-socket", "/a,"],
            "`--shard-socket` is `/a,`; expected paths of at most 64 Unix sockets",
        ),
        (
            "",
            &["--replicas", "2", "--max-batch-total-tokens", "100", "--max-total-tokens", "51"],
            "`--max-total-tokens` is 51, but `--max-batch-total-tokens` divided by `--replicas` is 50: no request",
        ),
    ] {
        let bench = Bench::new().with("CUDA_VISIBLE_DEVICES", devices);
        let (code, _, stderr) = bench.run(&[&["serve", "--port", "0"], args].concat());
        assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
        assert_one_error(&stderr, line);
        assert!(bench.journal().is_empty());
    }
}

#[test]
fn a_shard_that_keeps_crashing_is_given_up_alone() {
    let bench = Bench::new().with("FAKE_SHARD", "crash-later").with("FAKE_LANE", "1");
    let mut server = bench.ready(&["--replicas", "2"]);
    let bench = &server.bench;
    kill(pid(&of_lane(bench, "1", "listen", 1)), Signal::KILL);
    wait_for("the shard to be given up", || {
        let line = "crashed too often and is given up; the server goes on with the others process=shard-l1 \
                    shards_left=1 crashes=6 within_s=60 exit=\"exit code 3\"";
        bench.stderr().contains(line).then_some(())
    });
    let status = bench.command(&["status"]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("  1/2  ") && status.contains("  ready"), "{status}");

    let router = pid(&bench.nth("router", "start", 1));
    kill(pid(&of_lane(bench, "0", "listen", 1)), Signal::KILL);
    of_lane(bench, "0", "listen", 2);
    assert!(is_alive(router));
    assert_eq!(bench.events("shard", "start").len(), 1 + 6 + 1);
    server.stop();
}

#[test]
fn the_last_shard_that_keeps_crashing_ends_the_server() {
    let pace = Pace { base_pause: Duration::from_millis(5), ..Pace::default() };
    let bench = Bench::new().with("FAKE_SHARD", "crash-later");
    let server = bench.supervise(&["--replicas", "2"], pace);
    server.wait_ready();
    for lane in ["1", "0"] {
        kill(pid(&of_lane(&server.bench, lane, "listen", 1)), Signal::KILL);
        of_lane(&server.bench, lane, "start", 6);
    }
    let (_, outcome) = server.wait();
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the shard") && error.contains(" crashed 6 times within 60 s"), "{error}");
}

/// Starts a server with this configuration file, and waits until it is ready.
fn serve(bench: Bench, text: &str) -> Running {
    fs::write(bench.path("trunkline.toml"), text).unwrap();
    let config = bench.path("trunkline.toml");
    bench.ready(&["--config", config.to_str().unwrap()])
}

#[test]
fn a_reload_may_change_the_number_of_shards() {
    let mut server = serve(Bench::new(), "");
    let bench = &server.bench;
    let old = ["shard", "router"].map(|role| pid(&bench.nth(role, "start", 1)));
    fs::write(bench.path("trunkline.toml"), "replicas = 2\n").unwrap();
    assert_eq!(bench.run(&["reload"]).0, 0);
    // The one whose place is free comes first, and the other one after the old shard.
    assert_eq!(bench.nth("shard", "start", 2)["lane"], "1");
    old.into_iter().for_each(wait_until_gone);
    assert_eq!(bench.nth("shard", "start", 3)["lane"], "0");
    bench.nth("router", "ready", 3);

    let both = ["1", "0"].map(|lane| pid(&of_lane(bench, lane, "listen", if lane == "0" { 2 } else { 1 })));
    fs::write(bench.path("trunkline.toml"), "").unwrap();
    assert_eq!(bench.run(&["reload"]).0, 0);
    both.into_iter().for_each(wait_until_gone);
    assert_eq!(bench.nth("shard", "start", 4)["lane"], "0");
    assert_eq!(bench.events("shard", "start").len(), 4);
    server.stop();
}

#[test]
fn a_shard_of_two_that_hangs_is_the_only_one_to_be_killed() {
    let mut server = serve(Bench::new().with("FAKE_ROUTER", "hold"), "replicas = 2\n");
    let bench = &server.bench;
    let router = pid(&bench.nth("router", "start", 1));
    let shards = ["0", "1"].map(|lane| pid(&of_lane(bench, lane, "start", 1)));
    kill(shards[1], Signal::STOP);
    bench.report_hang("shard-l1.sock", 120);
    wait_until_gone(shards[1]);
    let again = pid(&of_lane(bench, "1", "listen", 2));
    assert!(is_alive(shards[0]));

    // The same in a pair that was replaced, whose router keeps the last shard, and cannot go on without it.
    assert_eq!(bench.run(&["reload"]).0, 0);
    kill(again, Signal::STOP);
    bench.report_hang("shard-l1.sock", 120);
    wait_until_gone(again);
    wait_for("the end to be noticed", || {
        let line = format!("exited unexpectedly; it was replaced process=shard-l1 pid={again}");
        bench.stderr().contains(&line).then_some(())
    });
    assert_eq!(pid(&bench.nth("router", "sigterm", 1)), router);
    fs::write(bench.path("release"), "").unwrap();
    wait_until_gone(router);
    wait_until_gone(shards[0]);
    server.stop();
}

#[test]
fn a_new_shard_that_hangs_is_named() {
    let mut server = serve(Bench::new().with("FAKE_SHARD", "late").with("FAKE_LANE", "1"), "");
    fs::write(server.bench.path("trunkline.toml"), "replicas = 2\n").unwrap();
    server.signal(Signal::USR2);
    server.bench.nth("router", "listen", 2);
    server.bench.report_hang("shard-l1.1.sock", 120);
    wait_for("the reload to fail", || {
        let reason =
            "the shard-l1 ended with signal 9 (SIGKILL) after hanging for 120 s before the server was ready";
        server.bench.stderr().contains(reason).then_some(())
    });
    server.stop();
}

#[test]
fn shards_that_others_start_are_used_as_they_come() {
    let bench = Bench::new();
    let sockets = ["absent.sock", "present.sock"].map(|name| bench.path(name));
    let _shard = UnixListener::bind(&sockets[1]).unwrap();
    let named = sockets.each_ref().map(|path| path.to_str().unwrap());
    let mut server = bench.ready(&["--shard-socket", named[0], "--shard-socket", named[1]]);
    let settings = server.bench.nth("router", "start", 1)["settings"].clone();
    let given: Vec<PathBuf> = serde_json::from_value(settings["shard_sockets"].clone()).unwrap();
    assert_eq!(given, sockets);

    // The old router would lose the shard to the new one.
    let (code, _, stderr) = server.bench.run(&["reload"]);
    assert_eq!(code, 1);
    let reason =
        format!("`--shard-socket` still names `{}`, but a shard serves one router at a time", named[0]);
    assert!(stderr.contains(&reason), "{stderr}");

    // A router that crashes is started again; shards are nobody's here.
    kill(pid(&server.bench.nth("router", "start", 1)), Signal::KILL);
    server.bench.nth("router", "ready", 2);
    assert!(server.bench.events("shard", "start").is_empty());
    server.stop();
}
