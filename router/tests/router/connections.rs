//! Timeouts of connections, and the limit of their number.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use trunkline_base::limits::{Limits, ServerLimits, Timeouts, UNCOUNTED_REQUEST_BYTES};
use trunkline_base::tenants::Access;
use trunkline_http::tls::Tls;
use trunkline_router::server::Front;

use crate::support::process::{PROGRAM, Process, WithSettings, settings};
use crate::support::{Connection, DEADLINE, Router, ShardPlan, eventually, user, write_model};

/// Long enough to be distinguished from no wait.
const LIMIT: Duration = Duration::from_millis(60);

fn limits(timeouts: Timeouts) -> ServerLimits {
    ServerLimits { timeouts, ..ServerLimits::default() }
}

/// Returns the bytes that the server sends until it closes the connection, and the time that passes.
async fn until_closed(stream: &mut TcpStream) -> (Vec<u8>, Duration) {
    let (begin, mut received) = (Instant::now(), Vec::new());
    let read = stream.read_to_end(&mut received);
    // A reset also ends the connection.
    let _ = tokio::time::timeout(DEADLINE, read).await.expect("the connection is closed");
    (received, begin.elapsed())
}

#[test]
fn the_defaults_bound_every_wait() {
    let seconds = Duration::from_secs;
    let wanted = Timeouts {
        body: seconds(30),
        body_grace: seconds(10),
        header: seconds(30),
        handshake: seconds(10),
        keep_alive: seconds(10),
        health_interval: seconds(1),
        health: seconds(2),
    };
    assert_eq!(ServerLimits::default().timeouts, wanted, "docs/api/README.md has the same numbers");
}

#[tokio::test]
async fn a_late_body_gets_408_and_frees_its_memory() {
    let timeouts = Timeouts { body: LIMIT, ..Timeouts::default() };
    let router = Router::start(ShardPlan::default(), limits(timeouts)).await;
    let all = router.app.admission.requests.free.available_permits();
    let mut connection = router.connect().await;
    let begin = Instant::now();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500000\r\n\r\n";
    let part = format!("{head}{{\"prompt\": \"{}", "x".repeat(2 * UNCOUNTED_REQUEST_BYTES));
    connection.stream.write_all(part.as_bytes()).await.unwrap();
    let answer = connection.answer().await;
    assert!(begin.elapsed() >= LIMIT);
    assert_eq!(answer.fails(408, "body_timeout"), "body did not arrive within 0 s");
    assert_eq!(router.app.admission.requests.free.available_permits(), all);
    router.wait_places().await;
}

#[tokio::test]
async fn a_body_that_stalls_gets_408_before_its_time_is_over() {
    let timeouts = Timeouts { body_grace: LIMIT, ..Timeouts::default() };
    let router = Router::start(ShardPlan::default(), limits(timeouts)).await;
    let mut connection = router.connect().await;
    let part = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{\"prompt\": [1";
    connection.stream.write_all(part).await.unwrap();
    let answer = connection.answer().await;
    assert_eq!(answer.fails(408, "body_timeout"), "body arrived more slowly than 4096 bytes/s for 0 s");
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn a_late_header_closes_the_connection() {
    let timeouts = Timeouts { header: LIMIT, ..Timeouts::default() };
    let router = Router::start(ShardPlan::default(), limits(timeouts)).await;
    for part in [&b""[..], b"GET /livez HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(router.address).await.unwrap();
        stream.write_all(part).await.unwrap();
        let (received, elapsed) = until_closed(&mut stream).await;
        assert_eq!(String::from_utf8_lossy(&received), "");
        assert!(elapsed >= LIMIT, "{elapsed:?}");
    }
    // A connection that waits too long for its next request is closed too.
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (received, elapsed) = until_closed(&mut stream).await;
    assert!(received.starts_with(b"HTTP/1.1 200"));
    assert!(elapsed >= LIMIT, "{elapsed:?}");
}

#[tokio::test]
async fn a_late_handshake_closes_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, include_str!("certificates/first.cert.pem")).unwrap();
    std::fs::write(&key, include_str!("certificates/first.key.pem")).unwrap();
    let front = Front { tls: Some(Arc::new(Tls::load(cert, key).unwrap())), ..Front::default() };
    let timeouts = Timeouts { handshake: LIMIT, ..Timeouts::default() };
    let router = Router::start_behind(front, limits(timeouts), Access::open()).await;
    // The client sends nothing, or the start of a ClientHello (a record of 512 bytes).
    for part in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(router.address).await.unwrap();
        stream.write_all(part).await.unwrap();
        let (received, elapsed) = until_closed(&mut stream).await;
        assert_eq!(received, b"");
        assert!(elapsed >= LIMIT, "{elapsed:?}");
    }
}

#[tokio::test]
async fn silent_streams_are_kept_open_by_comments() {
    let timeouts = Timeouts { keep_alive: LIMIT, ..Timeouts::default() };
    let router = Router::start(ShardPlan::default().held(), limits(timeouts)).await;
    let num_comments = |bytes: &[u8]| bytes.windows(5).filter(|window| window == b"\r\n:\n\n").count();
    let body = json!({"messages": user("x"), "stream": true});
    let mut events = router.connect().await;
    events.send("GET", "/v1/kv/events", b"").await;
    let begin = Instant::now();
    let mut chat = router.begin("/v1/chat/completions", &body).await;
    let mut lines = router.begin("/api/chat", &body).await;
    assert!(chat.read_until(|bytes| num_comments(bytes) == 2).await);
    assert!(begin.elapsed() >= 2 * LIMIT);
    assert!(events.read_until(|bytes| num_comments(bytes) >= 1).await);
    // In a stream of lines they are spaces, each in a chunk of one byte.
    assert!(lines.read_until(|bytes| bytes.ends_with(b"\r\n1\r\n \r\n")).await);
    // Comments do not change the events.
    router.add_steps(1000);
    let said = chat.answer().await.events();
    assert_eq!(said.last().unwrap(), "[DONE]");
    assert_eq!(lines.answer().await.lines().last().unwrap()["done"], true);
}

#[tokio::test]
async fn a_connection_beyond_the_cap_waits_until_one_closes() {
    let requests = Limits { max_concurrent_requests: Some(1), ..Limits::default() };
    let limits = ServerLimits { spare_connections: 2, ..requests.into() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let mut open = Vec::new();
    // Each connection comes from another address, because one may not take all.
    for number in 0..3 {
        let source = Ipv4Addr::new(127, 0, 1, number);
        let mut connection = Connection::open_from(source.into(), router.address).await;
        assert_eq!(connection.request("GET", "/livez", b"").await.status, 200);
        open.push(connection);
    }
    let mut next = router.connect().await;
    next.send("GET", "/livez", b"").await;
    for _ in 0..10 {
        // When this request is answered, the server could also have served the other connection.
        assert_eq!(open[0].request("GET", "/livez", b"").await.status, 200);
    }
    assert!(next.stream.try_read(&mut [0]).is_err(), "it is served beyond the cap");
    open.pop();
    assert_eq!(next.answer().await.status, 200);
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let requests = Limits { max_concurrent_requests: Some(1), ..Limits::default() };
    let limits = ServerLimits { spare_connections: 15, ..requests.into() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let mut open = Vec::new();
    for _ in 0..14 {
        let mut connection = router.connect().await;
        assert_eq!(connection.request("GET", "/livez", b"").await.status, 200);
        open.push(connection);
    }
    // The rest is for others, even while these connections wait for nothing.
    let mut next = router.connect().await;
    let (received, _) = until_closed(&mut next.stream).await;
    assert_eq!(received, b"");
    let mut other = router.connect_from_other().await;
    assert_eq!(other.request("GET", "/livez", b"").await.status, 200);
    drop((open.pop(), other));
    let is_served = async || {
        let mut next = router.connect().await;
        next.send_with("GET", "/livez", &[("connection", "close")], b"").await;
        until_closed(&mut next.stream).await.0.starts_with(b"HTTP/1.1 200")
    };
    eventually("the returned place", is_served).await;
}

#[tokio::test]
async fn a_server_without_file_descriptors_recovers() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", PROGRAM]);
    let process = Process::start(command.with_settings(folder.path(), &settings(folder.path())));
    let mut open = Vec::new();
    for _ in 0..80 {
        open.push(TcpStream::connect(process.address).await.unwrap());
    }
    // The server keeps trying, with pauses.
    process.wait_for_log("cannot accept connections", 2);
    drop(open);
    let answer = Connection::open(process.address).await.request("GET", "/livez", b"").await;
    assert_eq!(answer.status, 200);
    let (status, log) = process.end();
    assert_eq!(status.code(), Some(1), "the lifeline's end: {log}");
}
