//! A server's normal life: it starts, becomes ready, drains and leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::{Bench, Running, is_alive, kill, pid, wait_until_gone};
use rustix::process::Signal;
use serde_json::Value;
use trunkline_launcher::pace::Pace;
use trunkline_settings::{KvCacheDtype, KvWindows, Numerics, ServeSettings};

fn flag<'a>(argv: &'a Value, name: &str) -> Option<&'a str> {
    let argv = argv.as_array().unwrap();
    let at = argv.iter().position(|arg| arg == name)?;
    argv.get(at + 1)?.as_str()
}

/// Returns the target of a process's descriptor, such as `pipe:[1234]`.
fn open_file(pid: u32, descriptor: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap()
}

fn open_files(pid: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.unwrap().path()).ok()).collect()
}

#[test]
fn ready_is_said_once_and_sigterm_stops_the_router_before_the_shard() {
    let flags = "--threads 2 --max-total-tokens 64 --kv-cache-dtype f16 --kv-windows off --numerics fast";
    let mut server = Bench::new().serve(&flags.split(' ').collect::<Vec<_>>());
    let [address, curl] = server.wait_ready();
    let (shard, router) = (server.bench.nth("shard", "start", 1), server.bench.nth("router", "start", 1));
    let settings: ServeSettings = serde_json::from_value(router["settings"].clone()).unwrap();
    let port = settings.server.port;
    assert!(address.contains(&format!("http://127.0.0.1:{port}")), "{address}");
    assert!(curl.starts_with(&format!("curl http://127.0.0.1:{port}/v1/chat/completions ")), "{curl}");
    assert!(curl.contains(r#""model":"fake/model""#), "{curl}");

    let model = server.bench.path("model.gguf");
    assert_eq!(shard["settings"], router["settings"]);
    assert_eq!(settings.compute.threads, Some(2));
    assert_eq!(settings.compute.numerics, Numerics::Fast);
    assert_eq!(settings.shard_cache.kv_cache_dtype, KvCacheDtype::F16);
    assert_eq!(settings.shard_cache.kv_windows, KvWindows::Off);
    assert_eq!(settings.model_path, model);
    assert_eq!(settings.served_model_name, "fake/model");
    assert_eq!(settings.limits.max_total_tokens, Some(64));
    assert_eq!(settings.shard_sockets[0].to_str(), flag(&shard["argv"], "--socket"));
    assert_eq!(shard["folder_mode"], 0o700);
    assert_eq!(server.bench.nth("resolver", "start", 1)["safe_path"], "1");

    server.stop();
    assert_eq!(server.rest_of_stdout(), "");
    assert_eq!(ends(&server.bench), ["router sigterm", "router end", "shard sigterm", "shard end"]);
}

/// Returns the order in which the children ended and were told to.
fn ends(bench: &Bench) -> Vec<String> {
    let journal = bench.journal();
    let lines = journal
        .iter()
        .map(|entry| format!("{} {}", entry["role"].as_str().unwrap(), entry["event"].as_str().unwrap()));
    lines.filter(|line| line.ends_with("sigterm") || line.ends_with("end")).collect()
}

#[test]
fn two_lanes_have_a_socket_each_restart_alone_and_stop_after_the_router() {
    let server = Bench::new().supervise(&["--replicas", "2"], Pace::default());
    server.wait_ready();
    let socket = |start: &Value| PathBuf::from(flag(&start["argv"], "--socket").unwrap());
    let starts = [1, 2].map(|nth| server.bench.nth("shard", "start", nth));
    let mut names = starts.each_ref().map(|start| {
        (flag(&start["argv"], "--lane").unwrap(), socket(start).file_name().unwrap().to_owned())
    });
    names.sort();
    assert_eq!(names, [("0", "shard.sock".into()), ("1", "shard-l1.sock".into())]);
    let router = server.bench.nth("router", "start", 1);
    let settings: ServeSettings = serde_json::from_value(router["settings"].clone()).unwrap();
    assert_eq!(settings.compute.replicas, 2);
    let mut sockets = starts.each_ref().map(socket);
    sockets.sort();
    sockets.reverse();
    assert_eq!(settings.shard_sockets, sockets, "in the order of the lanes");

    server.bench.nth("shard", "listen", 2);
    kill(pid(&starts[0]), Signal::KILL);
    let again = server.bench.nth("shard", "start", 3);
    assert_eq!(socket(&again), socket(&starts[0]));
    assert!(is_alive(pid(&starts[1])));

    server.bench.nth("shard", "listen", 3);
    server.signal(Signal::TERM);
    let (bench, outcome) = server.wait();
    assert_eq!(outcome.unwrap(), 0);
    let ends = ends(&bench);
    assert_eq!(ends[..2], ["router sigterm", "router end"]);
    assert_eq!(ends[2..].iter().filter(|line| *line == "shard end").count(), 2, "{ends:?}");
}

#[test]
fn every_asking_signal_drains() {
    // Without a terminal, SIGHUP asks for a reload.
    let has_terminal = fs::File::open("/dev/tty").is_ok();
    for signal in [Signal::INT, Signal::HUP].into_iter().take(if has_terminal { 2 } else { 1 }) {
        if ignored_here(signal) {
            eprintln!("{signal:?} is ignored where this test runs (nohup does that), and so by the launcher");
            continue;
        }
        let mut server = Bench::new().ready(&[]);
        server.signal(signal);
        assert_eq!(server.wait(), 0, "{signal:?}");
        // The router takes SIGHUP as a request to read its keys again, so it must get SIGTERM instead.
        assert_eq!(server.bench.events("router", "sigterm").len(), 1, "{signal:?}");
        assert!(server.bench.events("router", "sighup").is_empty());
        server.assert_nothing_left();
    }
}

/// Returns true if this process and its children ignore `signal` (`SigIgn` in proc_pid_status(5)).
fn ignored_here(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn signal_while_loading_drains_too() {
    let mut server = Bench::new().with("FAKE_ROUTER", "never-ready").serve(&[]);
    server.bench.nth("shard", "listen", 1);
    server.bench.nth("router", "listen", 1);
    server.stop();
    assert_eq!(server.rest_of_stdout(), "");
}

#[test]
fn sighup_stays_ignored_under_nohup() {
    let bench = Bench::new();
    let program = bench.command(&[]);
    let mut nohup = Command::new("nohup");
    nohup.arg(program.get_program()).args(["serve", "--port", "0"]);
    nohup.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let stderr = fs::File::create(bench.path("stderr")).unwrap();
    nohup
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(stderr)
        .process_group(0);
    let mut server = Running::new(bench, nohup);
    server.wait_ready();
    server.signal(Signal::HUP);
    // Signals are handled in order. If SIGHUP counted, this would be the second signal and stop the server immediately.
    server.stop();
    assert!(server.bench.stderr().contains("signal=15"), "{}", server.bench.stderr());
}

#[test]
fn drain_waits_for_open_streams_while_the_shard_lives() {
    let mut server = Bench::new().with("FAKE_ROUTER", "hold").ready(&[]);
    server.signal(Signal::TERM);
    server.bench.nth("router", "sigterm", 1);
    let shard = pid(&server.bench.nth("shard", "start", 1));
    assert!(is_alive(shard) && server.bench.events("shard", "sigterm").is_empty());
    fs::write(server.bench.path("release"), "").unwrap();
    server.ends_with(0);
}

#[test]
fn second_signal_stops_at_once() {
    let mut server = Bench::new().with("FAKE_ROUTER", "hold").ready(&[]);
    server.signal(Signal::TERM);
    server.bench.nth("router", "sigterm", 1);
    server.signal(Signal::INT);
    server.ends_with(128 + 2);
}

#[test]
fn child_that_does_not_end_in_time_is_killed() {
    let pace = Pace { router_grace: Duration::from_millis(50), ..Pace::default() };
    let args = ["--graceful-termination-timeout", "0"];
    let server = Bench::new().with("FAKE_ROUTER", "hold").supervise(&args, pace);
    server.wait_ready();
    server.signal(Signal::TERM);
    let (bench, outcome) = server.wait();
    assert_eq!(outcome.unwrap(), 1);
    assert!(bench.events("router", "end").is_empty());
    assert_eq!(bench.events("shard", "end").len(), 1, "the shard still ended well");
}

#[test]
#[ignore = "make test-all: waits for the two seconds that the command gives the router"]
fn child_that_is_killed_is_told_of() {
    let mut server = Bench::new().with("FAKE_ROUTER", "hold").ready(&["--graceful-termination-timeout", "0"]);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), 1);
    assert!(server.bench.stderr().contains("was killed process=router"), "{}", server.bench.stderr());
    server.assert_nothing_left();
}

#[test]
fn killed_launcher_takes_each_child_along_by_its_own_lifeline() {
    let mut server = Bench::new().ready(&[]);
    let shard = pid(&server.bench.nth("shard", "start", 1));
    let router = pid(&server.bench.nth("router", "start", 1));
    // A child that held an end of the other child's lifeline would keep that child alive.
    assert!(!open_files(router).contains(&open_file(shard, "0")));
    assert!(!open_files(shard).contains(&open_file(router, "0")));
    server.signal(Signal::KILL);
    assert_eq!(server.wait(), 128 + 9);
    wait_until_gone(shard);
    wait_until_gone(router);
    assert_eq!(server.bench.events("shard", "lifeline").len(), 1);
    assert_eq!(server.bench.events("router", "lifeline").len(), 1);

    // The next launcher removes what this one left behind.
    let [left] = &server.bench.runtime_folders()[..] else { panic!("{:?}", server.bench.runtime_folders()) };
    assert!(left.join("shard.sock").exists());
    let again = server.bench.command(&["serve", "--port", "0"]);
    let mut again = Running::new(Bench::new(), again);
    again.wait_ready();
    let folders = server.bench.runtime_folders();
    assert!(folders.len() == 1 && folders[0] != *left, "{folders:?}");
    assert_eq!(fs::metadata(&folders[0]).unwrap().permissions().mode() & 0o777, 0o700);
    again.signal(Signal::TERM);
    assert_eq!(again.wait(), 0);
    server.assert_nothing_left();
}

#[test]
fn killed_launcher_takes_its_resolver_along() {
    let mut server = Bench::new().with("FAKE_RESOLVE", "hang").serve(&[]);
    let resolver = pid(&server.bench.nth("resolver", "start", 1));
    server.signal(Signal::KILL);
    server.wait();
    wait_until_gone(resolver);
}

#[test]
fn signal_while_resolving_ends_with_its_number() {
    let mut server = Bench::new().with("FAKE_RESOLVE", "hang").serve(&[]);
    server.bench.nth("resolver", "start", 1);
    server.signal(Signal::INT);
    server.ends_with(128 + 2);
}

#[test]
fn lines_of_all_children_stay_whole() {
    let mut server = Bench::new().with("FAKE_CHATTER", "300").ready(&[]);
    server.stop();
    let stderr = server.bench.stderr();
    for (word, copies) in [("shard", 2), ("router", 1)] {
        for number in 0..300 {
            let line = format!("{} {number}", word.repeat(200));
            assert_eq!(stderr.lines().filter(|other| *other == line).count(), copies, "{word} {number}");
        }
    }
    assert_eq!(server.rest_of_stdout(), "");
}

#[test]
fn long_temporary_folder_is_passed_over() {
    let bench = Bench::new();
    let long = bench.path("run").join("x".repeat(90));
    fs::create_dir(&long).unwrap();
    let mut server = bench.with("TMPDIR", &long).ready(&[]);
    let folder = server.bench.nth("shard", "start", 1)["folder"].as_str().unwrap().to_owned();
    assert!(folder.starts_with("/tmp/trunkline-"), "{folder}");
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), 0);
    assert!(!fs::exists(folder).unwrap());
    assert_eq!(fs::read_dir(long).unwrap().count(), 0);
}

#[test]
fn xdg_runtime_dir_comes_first() {
    let bench = Bench::new();
    let xdg = bench.path("xdg");
    fs::create_dir(&xdg).unwrap();
    let mut server = bench.with("XDG_RUNTIME_DIR", &xdg).ready(&[]);
    let folder = server.bench.nth("shard", "start", 1)["folder"].as_str().unwrap().to_owned();
    assert!(folder.starts_with(xdg.to_str().unwrap()), "{folder}");
    server.stop();
    assert_eq!(fs::read_dir(xdg).unwrap().count(), 0);
}

#[test]
fn output_that_nobody_reads_does_not_end_the_server() {
    // The output must fit into the pipe before it is closed.
    let bench = Bench::new().with("FAKE_CHATTER", "10");
    let mut command = bench.command(&["serve", "--port", "0"]);
    let (reader, writer) = std::io::pipe().unwrap();
    command.stderr(writer);
    let mut server = Running::new(bench, command);
    server.wait_ready();
    drop(reader);
    kill(pid(&server.bench.nth("shard", "start", 1)), Signal::KILL);
    server.bench.nth("shard", "listen", 2);
    server.stop();
}

#[test]
fn a_drain_that_cuts_requests_ends_with_three() {
    let mut server = Bench::new().with("FAKE_ROUTER", "hold").ready(&[]);
    server.signal(Signal::TERM);
    server.bench.nth("router", "sigterm", 1);
    server.bench.end_router(3);
    server.ends_with(3);
}
