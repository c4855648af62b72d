//! `--metrics-port`: a listener without keys for metrics and probes.

use std::net::Ipv4Addr;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use trunkline_base::limits::{Limits, MAX_METRICS_CONNECTIONS};

use crate::support::{Answer, Connection, DEADLINE, Router, ShardPlan, eventually};

const ALICE: &str = "sk-alice-0123456789";
const KEYS: &str = "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n";
/// The name that these requests give the server.
const HOST: &str = "localhost:9000";

async fn router() -> Router {
    Router::start_with_keys(KEYS, ShardPlan::endless().held(), Limits::default()).await
}

async fn send(connection: &mut Connection, line: &str, header: &str) {
    let head = format!("{line} HTTP/1.1\r\n{header}\r\ncontent-length: 0\r\n\r\n");
    connection.stream.write_all(head.as_bytes()).await.unwrap();
}

async fn ask(connection: &mut Connection, path: &str) -> Answer {
    send(connection, &format!("GET {path}"), &format!("host: {HOST}")).await;
    connection.answer().await
}

async fn get(router: &Router, path: &str) -> Answer {
    ask(&mut Connection::open(router.metrics_address).await, path).await
}

#[tokio::test]
async fn metrics_and_probes_need_no_key_and_name_no_tenant() {
    let router = router().await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true});
    router.add_steps(1000);
    router.ask(ALICE, "POST", "/v1/completions", &body).await.ok();
    router.wait_idle().await;
    let answer = get(&router, "/metrics").await;
    assert_eq!(
        (answer.status, answer.header("content-type").unwrap().starts_with("text/plain")),
        (200, true)
    );
    let text = answer.text();
    assert!(text.contains("trunkline_output_tokens_total 5\n"), "{text}");
    assert!(text.contains("vllm:num_requests_waiting 0"), "{text}");
    assert!(!text.contains("alice") && !text.contains("tenant=\""), "{text}");
    for (path, said) in [("/livez", "ok"), ("/readyz", "ready")] {
        let answer = get(&router, path).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, said));
    }
    // A key changes nothing.
    let mut connection = Connection::open(router.metrics_address).await;
    send(&mut connection, "GET /metrics", &format!("host: {HOST}\r\nx-api-key: {ALICE}")).await;
    assert!(!connection.answer().await.text().contains("alice"));
}

#[tokio::test]
async fn there_is_no_other_route_on_the_port_of_the_metrics() {
    let router = router().await;
    let document = router.ask(ALICE, "GET", "/openapi.json", &json!(null)).await.ok();
    let mut num_refused = 0;
    for path in document["paths"].as_object().unwrap().keys().map(|path| path.replace("{id}", "x")) {
        if !["/livez", "/readyz", "/metrics"].contains(&path.as_str()) {
            get(&router, &path).await.fails(404, "route_not_found");
            num_refused += 1;
        }
    }
    assert!(num_refused > 10, "{num_refused} routes");
    let mut connection = Connection::open(router.metrics_address).await;
    send(&mut connection, "POST /metrics", &format!("host: {HOST}")).await;
    connection.answer().await.fails(405, "method_not_allowed");
}

#[tokio::test]
async fn on_loopback_foreign_pages_get_no_metrics() {
    let router = router().await;
    for (header, status) in [
        ("host: 127.0.0.1:9000", 200),
        ("host: evil.example.com", 403),
        ("host: localhost\r\norigin: https://evil.example.com", 403),
    ] {
        let mut connection = Connection::open(router.metrics_address).await;
        send(&mut connection, "GET /metrics", header).await;
        assert_eq!(connection.answer().await.status, status, "{header}");
    }
}

#[tokio::test]
async fn metrics_can_be_read_during_a_drain() {
    let mut router = router().await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true}).to_string();
    let mut open = router.connect().await;
    open.send_with("POST", "/v1/completions", &[("x-api-key", ALICE)], body.as_bytes()).await;
    router.wait_running(1).await;
    router.terminate();
    router.wait("the drain", |app| app.served.readiness().is_err()).await;
    assert!(get(&router, "/metrics").await.text().contains("trunkline_running_sequences 1"));
    assert_eq!(get(&router, "/readyz").await.json()["code"], "draining");
    router.add_steps(1000);
    open.answer().await.ok();
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_replaced_router_leaves_the_port_of_the_metrics_to_its_successor() {
    let mut router = router().await;
    // Without an open request the replaced router would end at once.
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true}).to_string();
    let mut open = router.connect().await;
    open.send_with("POST", "/v1/completions", &[("x-api-key", ALICE)], body.as_bytes()).await;
    router.wait_running(1).await;
    let mut scraper = Connection::open(router.metrics_address).await;
    assert_eq!(ask(&mut scraper, "/metrics").await.header("connection"), None);
    router.replace();
    let address = router.metrics_address;
    eventually("a closed port", async || TcpStream::connect(address).await.is_err()).await;
    let last = ask(&mut scraper, "/metrics").await;
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    router.add_steps(1000);
    open.answer().await.ok();
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_router_beside_another_leaves_its_metrics_to_the_other_until_it_is_ready() {
    let mut router = Router::start_beside_another().await;
    let mut connection = Connection::open(router.metrics_address).await;
    send(&mut connection, "GET /readyz", &format!("host: {HOST}")).await;
    router.start_shard(ShardPlan::default()).await;
    assert_eq!(connection.answer().await.status, 200, "a router that answers too early says 503");
}

#[tokio::test]
async fn a_connection_beyond_the_cap_waits_until_one_closes() {
    let router = Router::default().await;
    let mut open = Vec::new();
    // Each connection comes from another address, because one may not take all.
    for number in 0..MAX_METRICS_CONNECTIONS {
        let source = Ipv4Addr::new(127, 0, 1, number as u8);
        let mut connection = Connection::open_from(source.into(), router.metrics_address).await;
        assert_eq!(ask(&mut connection, "/livez").await.status, 200);
        open.push(connection);
    }
    let mut next = Connection::open(router.metrics_address).await;
    send(&mut next, "GET /livez", &format!("host: {HOST}")).await;
    for _ in 0..10 {
        // When this request is answered, the server could also have served the other connection.
        assert_eq!(ask(&mut open[0], "/livez").await.status, 200);
    }
    assert!(next.stream.try_read(&mut [0]).is_err(), "it is served beyond the cap");
    open.pop();
    assert_eq!(next.answer().await.status, 200);
}
