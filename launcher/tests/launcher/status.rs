//! `trunkline status` finds the servers of this user and says whether they are ready.

use rustix::process::Signal;

use crate::support::{Bench, Running};

/// Runs `trunkline status ARGS` beside a server; returns the exit code and the cells of each line below the head.
fn status(server: &Running, args: &[&str]) -> (i32, Vec<Vec<String>>) {
    let output = server.bench.command(&[&["status"], args].concat()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    (output.status.code().unwrap(), text.lines().skip(1).map(cells).collect())
}

#[test]
fn a_ready_server_is_listed_with_its_numbers() {
    let mut server = Bench::new().serve(&[]);
    let ready = server.wait_ready();
    let url = ready[0].split_whitespace().nth(4).unwrap();
    let (code, rows) = status(&server, &[]);
    assert_eq!(code, 0);
    let pid = server.pid().to_string();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][..6], [&pid, "fake/model", url, "1/1", "3", "1"]);
    assert_eq!(rows[0][7], "ready");
    let (code, rows) = status(&server, &["--url", url]);
    assert_eq!(
        (code, &rows[0][..]),
        (0, ["-", "fake/model", url, "-", "3", "1", "-", "ready"].map(str::to_owned).as_slice())
    );
}

#[test]
fn adapters_are_listed_with_their_state() {
    let mut server = Bench::new().serve(&[]);
    let ready = server.wait_ready();
    let url = ready[0].split_whitespace().nth(4).unwrap();
    let table =
        "NAME  RANK  SIZE     STATE\nsql   8     3.0 MiB  open\nold   -     -        unusable: gone\n";
    for args in [&["adapters"][..], &["adapters", "--url", url]] {
        let output = server.bench.command(args).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), table, "{args:?}");
    }
}

/// Anybody may make folders in the folder for temporary files, as many as the file system has room for.
#[test]
fn folders_of_other_users_hide_no_server() {
    let bench = Bench::new();
    // A folder may be listed in the order of its entries or in any other.
    let make = |bench: &Bench, random: &str| {
        for number in 1..=5_000 {
            std::fs::write(bench.path(&format!("run/trunkline-{number}-{random}")), "").unwrap();
        }
    };
    make(&bench, "0000000a");
    let server = bench.ready(&[]);
    make(&server.bench, "0000000b");
    let pid = server.pid().to_string();
    let (_, rows) = status(&server, &[]);
    assert_eq!(rows.iter().filter(|row| row[0] == pid).count(), 1, "{rows:?}");
    assert_eq!(server.bench.run(&["reload", &pid]).1, "reloaded\n");
}

#[test]
fn a_server_that_is_not_ready_says_why() {
    let server = Bench::new().with("FAKE_ROUTER", "never-ready").serve(&[]);
    server.bench.nth("router", "listen", 1);
    let (code, rows) = status(&server, &[]);
    assert_eq!((code, rows[0][7].as_str()), (1, "model_loading: no shard yet"));
}

#[test]
fn a_server_that_drains_is_stopping() {
    let mut server = Bench::new().with("FAKE_ROUTER", "hold").ready(&[]);
    server.signal(Signal::TERM);
    server.bench.nth("router", "sigterm", 1);
    let (code, rows) = status(&server, &[]);
    assert_eq!(
        (code, rows[0][0].as_str(), rows[0][7].as_str()),
        (1, server.pid().to_string().as_str(), "stopping")
    );
    std::fs::write(server.bench.path("release"), "").unwrap();
    assert_eq!(server.wait(), 0);
    let (code, _, stderr) = server.bench.run(&["ps"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("error: no server of this user in `"), "{stderr}");
}
