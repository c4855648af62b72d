//! A reload replaces router and shard without closing the port; a reload that fails changes nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::support::{Bench, Running, is_alive, kill, pid, wait_for, wait_until_gone};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a server with a configuration file of this text, and waits until it is ready.
fn serve(bench: Bench, text: &str) -> Running {
    configure(&bench, text);
    let config = bench.path("trunkline.toml");
    bench.ready(&["--config", config.to_str().unwrap()])
}

fn configure(bench: &Bench, text: &str) {
    fs::write(bench.path("trunkline.toml"), text).unwrap();
}

/// Returns the process ids of the shard and router that started `nth`.
fn pids(bench: &Bench, nth: usize) -> [u32; 2] {
    ["shard", "router"].map(|role| pid(&bench.nth(role, "start", nth)))
}

fn port(bench: &Bench) -> u16 {
    let port = bench.nth("router", "start", 1)["settings"]["server"]["port"].as_u64().unwrap();
    u16::try_from(port).unwrap()
}

/// Returns the process id of the router that answers a new connection.
fn answering(port: u16) -> u32 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.rsplit("\r\n").next().unwrap().parse().unwrap()
}

fn stop(mut server: Running) {
    server.stop();
}

fn is_given(start: &Value, flag: &str) -> bool {
    start["flags"].as_array().unwrap().iter().any(|given| given == flag)
}

#[test]
fn new_settings_are_used_on_the_same_port() {
    let server = serve(Bench::new(), "max-tools = 1\n");
    let bench = &server.bench;
    let (old, port) = (pids(bench, 1), port(bench));
    configure(bench, "max-tools = 2\nlog-level = \"debug\"\n");
    assert_eq!(bench.run(&["reload"]).1, "reloaded\n");
    let new = pids(bench, 2);
    assert_eq!(bench.nth("router", "start", 2)["settings"]["limits"]["max_tools"], 2);
    assert!(is_given(&bench.nth("router", "start", 2), "--accept-when-ready"));
    assert!(!is_given(&bench.nth("router", "start", 1), "--accept-when-ready"));
    old.into_iter().for_each(wait_until_gone);
    assert_eq!(bench.events("router", "leave").len(), 1);
    assert_eq!(bench.events("router", "sigterm").len(), 0);
    assert_eq!(answering(port), new[1]);

    // A crash of the new pair is one like any other.
    kill(new[1], Signal::KILL);
    let third = pid(&bench.nth("router", "start", 3));
    assert!(!is_given(&bench.nth("router", "start", 3), "--accept-when-ready"));
    bench.nth("router", "listen", 3);
    assert_eq!(answering(port), third);

    let pid = server.pid().to_string();
    assert_eq!(bench.run(&["reload", &pid]).0, 0);
    let [folder] = &bench.runtime_folders()[..] else { panic!("{:?}", bench.runtime_folders()) };
    wait_for("the old files to be removed", || {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        (names == ["control.sock", "launcher.lock", "settings.2.json", "shard.2.sock"]).then_some(())
    });
    stop(server);
}

#[test]
fn connections_wait_while_a_crashed_router_restarts() {
    let server = serve(Bench::new(), "");
    let (bench, port) = (&server.bench, port(&server.bench));
    let router = pids(bench, 1)[1];
    kill(router, Signal::STOP);
    let mut waiting = TcpStream::connect(("127.0.0.1", port)).unwrap();
    waiting.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    kill(router, Signal::KILL);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    let again = pid(&bench.nth("router", "start", 2));
    assert!(answer.ends_with(&again.to_string()), "{answer}");
    stop(server);
}

#[test]
fn the_socket_is_inherited_by_the_router_only() {
    let server = serve(Bench::new(), "");
    let sockets = |pid: u32| -> Vec<_> {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let files = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        files.filter(|file| file.to_str().unwrap().starts_with("socket:")).collect()
    };
    let [shard, router] = pids(&server.bench, 1);
    server.bench.nth("shard", "listen", 1);
    let launchers = sockets(server.pid());
    assert!(sockets(router).iter().any(|socket| launchers.contains(socket)));
    assert!(!sockets(shard).iter().any(|socket| launchers.contains(socket)));
    stop(server);
}

#[test]
fn signals_reload_too() {
    let server = serve(Bench::new(), "");
    server.signal(Signal::USR2);
    let [shard, router] = pids(&server.bench, 2);
    pids(&server.bench, 1).into_iter().for_each(wait_until_gone);
    assert!(is_alive(shard) && is_alive(router));
    stop(server);
}

/// Asks for a reload, which fails for this reason and leaves the children of the first start alone.
fn assert_refused(server: Running, reason: &str) {
    let bench = &server.bench;
    let port = port(bench);
    let (code, stdout, stderr) = bench.run(&["reload"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains(&format!("error: cannot reload: {reason}")), "{stderr}");
    let logged = stderr.matches("cannot reload; the server goes on as before reason=").count();
    assert_eq!(logged, 1, "{stderr}");
    assert_eq!(answering(port), pids(bench, 1)[1]);
    assert!(is_alive(pids(bench, 1)[0]));
    assert!(bench.events("router", "leave").is_empty());
    if let Some(second) = bench.events("router", "start").get(1) {
        wait_until_gone(pid(second));
    }
    stop(server);
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let end = "the shard ended with exit code 3 before the server was ready; its last line was: ";
    for (shard, text, reason) in [
        ("serve", "max-tools = \"many\"\n", "`max-tools` in `"),
        ("refuse-later", "", "the model is gone"),
        ("crash-later", "", end),
    ] {
        let server = serve(Bench::new().with("FAKE_SHARD", shard), "");
        configure(&server.bench, text);
        assert_refused(server, reason);
    }
}

#[test]
fn another_port_changes_nothing() {
    let bench = Bench::new();
    configure(&bench, "port = 0\n");
    let config = bench.path("trunkline.toml");
    let command = bench.command(&["serve", "--config", config.to_str().unwrap()]);
    let mut server = Running::new(bench, command);
    server.wait_ready();
    configure(&server.bench, "port = 1234\n");
    let reason =
        "`--port` is now `1234`, but the server listens on `0`; hint: restart the server to change it";
    assert_refused(server, reason);
}

#[test]
fn a_new_shard_that_hangs_is_ended_after_the_time_limit() {
    let server = serve(Bench::new().with("FAKE_SHARD", "hang-later"), "reload-timeout = 2\n");
    let bench = &server.bench;
    let reason =
        "no new shard was ready within 2 s; hint: see the log of the shard, or raise `--reload-timeout`";
    for run in 2..=3 {
        let (code, _, stderr) = bench.run(&["reload", &server.pid().to_string()]);
        assert_eq!(code, 1);
        assert!(stderr.contains(&format!("error: cannot reload: {reason}")), "{stderr}");
        pids(bench, run).into_iter().for_each(wait_until_gone);
    }
    assert_eq!(answering(port(bench)), pids(bench, 1)[1]);
    stop(server);
}

#[test]
fn a_download_that_hangs_is_ended_after_the_time_limit() {
    let server = serve(Bench::new().with("FAKE_RESOLVE", "hang-later"), "reload-timeout = 1\n");
    let bench = &server.bench;
    for run in 2..=3 {
        let (code, _, stderr) = bench.run(&["reload", &server.pid().to_string()]);
        assert_eq!(code, 1);
        let reason =
            "the model was not found or downloaded within 1 s; hint: download it with `trunkline download`";
        assert!(stderr.contains(&format!("error: cannot reload: {reason}")), "{stderr}");
        wait_until_gone(pid(&bench.nth("resolver", "start", run)));
    }
    assert_eq!(bench.events("shard", "start").len(), 1);
    stop(server);
}

/// Starts a server with a store on disk, and reloads it with a shard that fails once it has taken the store.
fn serve_and_fail_late(behaviour: &str) -> Running {
    let bench = Bench::new().with("FAKE_SHARD", behaviour);
    let text = format!("kv-disk-path = \"{}\"\nreload-timeout = 2\n", Path::display(&bench.path("kv")));
    let server = serve(bench, &text);
    assert_eq!(server.bench.run(&["reload", &server.pid().to_string()]).0, 1);
    server
}

#[test]
fn the_old_shard_takes_its_store_back_after_a_reload_that_fails_late() {
    for behaviour in ["crash-with-store", "hang-with-store"] {
        let server = serve_and_fail_late(behaviour);
        let bench = &server.bench;
        let shard = pids(bench, 1)[0];
        assert_eq!(pid(&bench.nth("shard", "gives-up-store", 1)), shard);
        assert_eq!(pid(&bench.nth("shard", "takes-store-back", 1)), shard);
        let events: Vec<Value> = bench.journal();
        let back = events.iter().position(|entry| entry["event"] == "takes-store-back").unwrap();
        let new = pid(&bench.nth("shard", "start", 2));
        assert!(!is_alive(new), "no other process has the store any more: {:?}", &events[back..]);

        // The same again.
        assert_eq!(bench.run(&["reload", &server.pid().to_string()]).0, 1);
        assert_eq!(pid(&bench.nth("shard", "takes-store-back", 2)), shard);
        assert!(is_alive(shard));
        stop(server);
    }
}

#[test]
fn a_shard_that_was_restarted_meanwhile_has_no_store_to_take_back() {
    let bench = Bench::new().with("FAKE_SHARD", "hang-with-store");
    let text = format!("kv-disk-path = \"{}\"\nreload-timeout = 3\n", Path::display(&bench.path("kv")));
    let server = serve(bench, &text);
    let bench = &server.bench;
    server.signal(Signal::USR2);
    bench.nth("shard", "gives-up-store", 1);
    kill(pids(bench, 1)[0], Signal::KILL);
    // It starts without the store, which the new shard has.
    let again = bench.nth("shard", "start", 3);
    assert_eq!(again["settings"]["shard_cache"]["kv_disk_optional"], true);
    bench.nth("shard", "listen", 2);
    let [folder] = &bench.runtime_folders()[..] else { panic!("{:?}", bench.runtime_folders()) };
    wait_for("the new pair to be forgotten", || (!folder.join("settings.1.json").exists()).then_some(()));
    assert!(is_alive(pid(&again)));
    assert!(bench.events("shard", "takes-store-back").is_empty());
    stop(server);
}

#[test]
fn a_second_reload_is_refused_and_sigterm_ends_the_first() {
    let server = serve(Bench::new().with("FAKE_SHARD", "hang-later"), "");
    server.signal(Signal::USR2);
    let new = pids(&server.bench, 2);
    let (code, _, stderr) = server.bench.run(&["reload"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("cannot reload: another reload is under way; hint: try again later"), "{stderr}");
    server.bench.nth("router", "listen", 2);
    stop(server);
    assert!(!new.into_iter().any(is_alive));
}

#[test]
fn the_old_pair_lives_as_long_as_its_streams_and_the_store_is_handed_over() {
    let bench = Bench::new().with("FAKE_ROUTER", "hold");
    let folder = bench.path("kv");
    let text = format!("kv-disk-path = \"{}\"\n", Path::display(&folder));
    let server = serve(bench, &text);
    let bench = &server.bench;
    assert_eq!(bench.run(&["reload"]).0, 0, "{}", bench.stderr());
    let [shard, router] = pids(bench, 1);
    assert_eq!(pid(&bench.nth("shard", "gives-up-store", 1)), shard);
    bench.nth("router", "leave", 1);
    assert!(is_alive(shard) && is_alive(router));
    fs::write(bench.path("release"), "").unwrap();
    wait_until_gone(router);
    wait_until_gone(shard);
    stop(server);
}

#[test]
fn a_shard_that_crashes_while_its_router_leaves_is_not_restarted() {
    let server = serve(Bench::new().with("FAKE_ROUTER", "hold"), "");
    let bench = &server.bench;
    assert_eq!(bench.run(&["reload"]).0, 0);
    let [shard, router] = pids(bench, 1);
    kill(shard, Signal::KILL);
    assert_eq!(pid(&bench.nth("router", "sigterm", 1)), router);
    fs::write(bench.path("release"), "").unwrap();
    wait_until_gone(router);
    assert_eq!(bench.events("shard", "start").len(), 2);
    stop(server);
}

#[test]
fn reload_says_which_servers_there_are() {
    let bench = Bench::new();
    let (code, _, stderr) = bench.run(&["reload"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("error: cannot reload: no server of this user in `"), "{stderr}");
    let (_, _, stderr) = bench.run(&["reload", "999999999"]);
    assert!(stderr.contains("no server of this user with process id 999999999 in `"), "{stderr}");

    let server = serve(bench, "");
    let mut other = Running::new(Bench::new(), server.bench.command(&["serve", "--port", "0"]));
    other.wait_ready();
    let (code, _, stderr) = server.bench.run(&["reload"]);
    assert_eq!(code, 1);
    let both = [server.pid(), other.pid()].map(|pid| pid.to_string());
    assert!(both.iter().all(|pid| stderr.contains(pid)), "{stderr}");
    assert!(stderr.contains("several servers run, with the process ids "), "{stderr}");
    assert_eq!(server.bench.run(&["reload", &both[0]]).0, 0);
    other.signal(Signal::TERM);
    assert_eq!(other.wait(), 0);
    stop(server);
}
