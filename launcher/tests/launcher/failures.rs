//! Each failure is reported in one line.

use std::net::TcpListener;
use std::time::Duration;

use crate::support::{Bench, InProcess, ROUTER, assert_one_error, is_alive, kill, pid, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use trunkline_launcher::pace::Pace;

#[test]
fn port_in_use_is_known_before_anything_starts() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let bench = Bench::new();
    let (code, stdout, stderr) = bench.run(&["serve", "--port", &port]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_one_error(&stderr, &format!("port {port} of `127.0.0.1` is in use; hint: "));
    assert_eq!(stderr.lines().count(), 1);
    assert!(bench.journal().is_empty(), "{:?}", bench.journal());
    let bench = Bench::new();
    let (code, _, stderr) = bench.run(&["serve", "--port", "0", "--metrics-port", &port]);
    assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
    assert_one_error(&stderr, "choose another `--metrics-port`");
    assert!(bench.journal().is_empty(), "{:?}", bench.journal());
}

#[test]
fn resolver_that_refuses_has_the_last_word() {
    let bench = Bench::new().with("FAKE_RESOLVE", "refuse");
    let (code, _, stderr) = bench.run(&["serve", "--port", "0", "some/model"]);
    assert_eq!((code, stderr.as_str()), (2, "error: no model `x`\n"));
    assert_eq!(bench.events("resolver", "start")[0]["argv"], serde_json::json!(["resolve", "some/model"]));
    assert_eq!(bench.journal().len(), 1, "nothing else was started");
}

#[test]
fn resolver_that_crashes_or_babbles_is_reported() {
    let (code, _, stderr) = Bench::new().with("FAKE_RESOLVE", "crash").run(&["serve", "--port", "0"]);
    assert_eq!(code, 1);
    assert_one_error(&stderr, "the resolver ended with exit code 3");
    let (code, _, stderr) = Bench::new().with("FAKE_RESOLVE", "babble").run(&["download", "a/b"]);
    assert_eq!(code, 1);
    assert_one_error(&stderr, "the resolver printed no valid model");
}

#[test]
fn shard_that_refuses_has_the_last_word_and_the_router_goes() {
    let mut server = Bench::new().with("FAKE_SHARD", "refuse").serve(&[]);
    server.fails(2, "error: tensor `x` is damaged");
    assert_eq!(server.rest_of_stdout(), "");
}

#[test]
fn mistake_that_both_find_is_told_once_and_by_the_shard() {
    let mut server = Bench::new().with("FAKE_SHARD", "refuse").with("FAKE_ROUTER", "refuse").serve(&[]);
    server.fails(2, "error: tensor `x` is damaged");
}

/// SIGTERM ends a router that has reported a mistake but not exited, so its exit code does not show the mistake.
#[test]
fn mistake_is_told_once_if_the_router_is_stopped_between_its_word_and_its_end() {
    let bench =
        Bench::new().with("FAKE_SHARD", "refuse-after-router").with("FAKE_ROUTER", "refuse-and-linger");
    let mut server = bench.serve(&[]);
    server.fails(2, "error: tensor `x` is damaged");
}

/// The shard has time to refuse the model too, but does not.
#[test]
fn router_that_refuses_alone_is_heard() {
    let pace = Pace { second_verdict_timeout: Duration::from_millis(50), ..Pace::default() };
    let (_, outcome) = Bench::new().with("FAKE_ROUTER", "refuse").supervise(&[], pace).wait();
    let error = outcome.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert_eq!(String::from_utf8(error.line().unwrap()).unwrap(), "error: no tokenizer\n");
}

#[test]
fn crash_before_ready_ends_with_the_last_line() {
    let mut server = Bench::new().with("FAKE_SHARD", "crash").serve(&[]);
    server.fails(
        1,
        "the shard ended with exit code 3 before the server was ready; its last line was: about to fall over",
    );

    let mut server = Bench::new().with("FAKE_ROUTER", "crash").serve(&[]);
    server.fails(1, "the router ended with exit code 101 before the server was ready; its last line was: router fell over");
}

#[test]
fn killed_before_ready_hints_at_memory() {
    let mut server = Bench::new().with("FAKE_ROUTER", "never-ready").serve(&[]);
    kill(pid(&server.bench.nth("shard", "listen", 1)), Signal::KILL);
    server.fails(
        1,
        "signal 9 (SIGKILL) before the server was ready; hint: the system probably ran out of memory",
    );
}

#[test]
fn crashed_shard_is_started_again_beside_the_same_router() {
    let mut server = Bench::new().ready(&[]);
    let router = pid(&server.bench.nth("router", "start", 1));
    for run in 1..=3 {
        kill(pid(&server.bench.nth("shard", "listen", run)), Signal::KILL);
        let again = server.bench.nth("shard", "listen", run + 1);
        assert!(is_alive(pid(&again)) && is_alive(router));
    }
    let traces: Vec<Value> =
        (1..=4).map(|run| server.bench.nth("shard", "start", run)["traceparent"].clone()).collect();
    let routers = server.bench.nth("router", "start", 1)["trace"].clone();
    assert_eq!(traces[0], routers[0], "a start is one trace");
    let (id, told) = (traces[0].as_str().unwrap(), routers[1].as_str().unwrap());
    assert!(id.len() == 55 && id.starts_with("00-") && id.ends_with("-01"), "{id}");
    let times: Vec<u64> = told.split(' ').skip(1).map(|time| time.parse().unwrap()).collect();
    assert!(told.starts_with("- ") && times.len() == 2 && times[0] <= times[1], "{told}");
    assert!(traces[1..].iter().all(Value::is_null), "later starts have traces of their own: {traces:?}");
    server.stop();
    assert_eq!(server.bench.events("router", "start").len(), 1);
    assert_eq!(server.rest_of_stdout(), "", "ready is said once");
    let stderr = server.bench.stderr();
    assert!(
        stderr.contains(" WARN launcher: exited unexpectedly; restarting process=shard pid="),
        "{stderr}"
    );
}

/// The router exits with 70 if its driving task panics, with 0 unexpectedly, and with 2 for a user's mistake, such as a
/// certificate that has expired.
#[test]
fn router_is_started_again_beside_the_same_shard_whatever_its_end() {
    let mut server = Bench::new().ready(&[]);
    kill(pid(&server.bench.nth("router", "start", 1)), Signal::SEGV);
    server.bench.nth("router", "listen", 2);
    for (run, code) in [(3, 70), (4, 0), (5, 2)] {
        server.bench.end_router(code);
        server.bench.nth("router", "listen", run);
    }
    server.stop();
    let stderr = server.bench.stderr();
    for exit in ["signal 11 (SIGSEGV)", "exit code 70", "exit code 0", "exit code 2"] {
        assert!(stderr.contains("restarting process=router"), "{stderr}");
        assert!(stderr.contains(&format!("exit=\"{exit}\"")), "{exit}: {stderr}");
    }
    assert_eq!(server.bench.events("router", "start").len(), 5);
    assert_eq!(server.bench.events("shard", "start").len(), 1);
}

#[test]
fn child_that_cannot_be_started_again_at_once_is_started_later() {
    let mut server = Bench::new().ready(&[]);
    let (program, hidden) = (server.bench.path(ROUTER), server.bench.path("hidden"));
    std::fs::rename(&program, &hidden).unwrap();
    kill(pid(&server.bench.nth("router", "start", 1)), Signal::KILL);
    wait_for("a failed start", || {
        server.bench.stderr().contains("failed to restart; trying again").then_some(())
    });
    std::fs::rename(&hidden, &program).unwrap();
    server.bench.nth("router", "listen", 2);
    server.stop();
}

/// Runs the supervisor with short pauses between restarts, and waits until it is ready.
fn supervise(bench: Bench) -> InProcess {
    let pace = Pace { base_pause: Duration::from_millis(5), ..Pace::default() };
    let server = bench.supervise(&[], pace);
    server.wait_ready();
    server
}

/// A restarted shard that keeps refusing is a crash loop, too.
#[test]
fn crash_loop_gives_up_and_stops_the_router() {
    for (behaviour, end) in [
        ("crash-later", "exit code 3; its last line was: about to fall over"),
        ("refuse-later", "exit code 2; its last line was: error: the model is gone"),
    ] {
        let server = supervise(Bench::new().with("FAKE_SHARD", behaviour));
        kill(pid(&server.bench.nth("shard", "listen", 1)), Signal::KILL);
        let (bench, outcome) = server.wait();
        let error = outcome.unwrap_err();
        assert_eq!(error.exit_code(), 1);
        let wanted = format!("the shard crashed 6 times within 60 s, most recently with {end}");
        assert_eq!(error.to_string(), wanted);
        assert_eq!(bench.events("shard", "start").len(), 6, "the first start and five restarts");
        // SIGTERM is sent twice, to all children and then to each; two pending signals arrive as one.
        assert!(!bench.events("router", "sigterm").is_empty());
    }
}

#[test]
fn hung_shard_is_killed_and_started_again_beside_the_same_router() {
    let mut server = Bench::new().ready(&[]);
    let shard = pid(&server.bench.nth("shard", "listen", 1));
    kill(shard, Signal::STOP);
    server.bench.report_hang("shard.sock", 120);
    let again = pid(&server.bench.nth("shard", "listen", 2));
    assert!(is_alive(again) && !is_alive(shard));
    server.stop();
    assert_eq!(server.bench.events("router", "start").len(), 1);
    let stderr = server.bench.stderr();
    assert!(
        stderr.contains(&format!("hangs; killing it process=shard pid={shard} hung_s=120\n")),
        "{stderr}"
    );
    assert!(stderr.contains("exit=\"signal 9 (SIGKILL) after hanging for 120 s\""), "{stderr}");
    assert!(!stderr.contains("hung_shard"), "the report itself is not shown: {stderr}");
}

#[test]
fn shard_that_hangs_after_each_start_is_given_up() {
    let server = supervise(Bench::new());
    for run in 1..=6 {
        kill(pid(&server.bench.nth("shard", "listen", run)), Signal::STOP);
        server.bench.report_hang("shard.sock", 3600);
    }
    let (_, outcome) = server.wait();
    let error = outcome.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert_eq!(
        error.to_string(),
        "the shard crashed 6 times within 60 s, most recently with signal 9 (SIGKILL) after hanging for 3600 s"
    );
}

/// The report reaches the launcher before the next crash does, because the next shard starts only after it.
#[test]
fn shard_that_requests_crash_again_and_again_is_restarted_each_time() {
    let server = supervise(Bench::new());
    for run in 1..=20 {
        kill(pid(&server.bench.nth("shard", "listen", run)), Signal::KILL);
        if run % 2 == 0 {
            server.bench.report_excused(2);
            server.bench.nth("router", "excuses", run / 2);
        }
    }
    server.bench.nth("shard", "listen", 21);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().1.unwrap(), 0);
}

#[test]
fn shard_that_hangs_before_the_server_was_ready_ends_it() {
    let mut server = Bench::new().with("FAKE_ROUTER", "never-ready").serve(&[]);
    kill(pid(&server.bench.nth("shard", "listen", 1)), Signal::STOP);
    server.bench.report_hang("shard.sock", 120);
    server.fails(
        1,
        "the shard ended with signal 9 (SIGKILL) after hanging for 120 s before the server was ready",
    );
}

#[test]
fn missing_program_names_its_variable() {
    let bench = Bench::new().with("TRUNKLINE_ROUTER", "");
    let (code, _, stderr) = bench.run_alone(&["serve", "--port", "0"]);
    assert_eq!(code, 1);
    assert_one_error(&stderr, "`trunkline-router` is not installed beside `");
    assert!(stderr.contains("`TRUNKLINE_ROUTER`"), "{stderr}");
    let bench = Bench::new().with("TRUNKLINE_PYTHON", "/nonexistent/python");
    let (code, _, stderr) = bench.run(&["serve", "--port", "0"]);
    assert_eq!(code, 1);
    assert_one_error(&stderr, "cannot start the resolver (`/nonexistent/python`): ");
}

#[test]
fn a_restarted_shard_may_do_without_its_disk() {
    let server = Bench::new().ready(&["--kv-disk-path", "/kv"]);
    let first = server.bench.nth("shard", "start", 1);
    kill(pid(&first), Signal::KILL);
    let second = server.bench.nth("shard", "start", 2);
    let is_optional = |start: &Value| start["settings"]["shard_cache"]["kv_disk_optional"].as_bool();
    assert_eq!((is_optional(&first), is_optional(&second)), (Some(false), Some(true)));
}
