//! Everything around the routes: request ids, CORS, limits of headers, and the log.

use std::process::Command;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use trunkline_base::limits::{Limits, MAX_JSON_VALUES};
use trunkline_base::tenants::{Access, EXPOSED_HEADERS};
use trunkline_http::browser::BrowserGuard;
use trunkline_router::server::Front;
use trunkline_settings::LogLevel;

use crate::support::process::{PROGRAM, Process, WithSettings, settings};
use crate::support::{Connection, MockShard, Router, ShardPlan, user, write_model};

const ORIGIN: &str = "https://chat.example.com";
const KEY: &str = "sk-marker-key-0123456789";

async fn behind(origins: &[&str]) -> Router {
    let origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
    let access = Access::new(None, Some(KEY)).unwrap();
    Router::start_behind(Front { origins, ..Front::default() }, Limits::default(), access).await
}

#[tokio::test]
async fn without_keys_on_loopback_foreign_pages_are_refused() {
    let origins = vec![ORIGIN.parse().unwrap()];
    let front = Front { guard: Some(BrowserGuard::new(origins.clone())), origins, ..Front::default() };
    let router = Router::start_behind(front, Limits::default(), Access::open()).await;
    let send = async |line: &str, head: &str, body: &str| {
        let mut connection = router.connect().await;
        let head = format!("{line} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n", body.len());
        connection.stream.write_all((head + body).as_bytes()).await.unwrap();
        connection.answer().await
    };
    let post = async |host: &str, origin: &str| {
        let head = format!("host: {host}\r\norigin: {origin}\r\n");
        send("POST /v1/completions", &head, r#"{"prompt": "x"}"#).await
    };
    // Pages that this machine serves, and allowed ones.
    for origin in [
        "http://localhost:8080",
        "http://LOCALHOST",
        "http://app.localhost:3000",
        "http://localhost.:3000",
        "http://127.0.0.1:3000",
        "https://127.3.2.1",
        "http://[::1]:3000",
        "http://[::ffff:127.0.0.1]",
        ORIGIN,
        "HTTPS://chat.example.com",
    ] {
        assert_eq!(post("[::1]", origin).await.status, 200, "{origin}");
    }
    for origin in [
        "http://6.6.6.6",
        "http://6.6.6.6:8080",
        "http://192.168.1.7:3000",
        "http://[2001:db8::6]",
        "http://0.0.0.0:3000",
        "http://[::]",
        "http://[::ffff:6.6.6.6]",
        "https://evil.example.com",
        "null",
        "",
        "127.0.0.1",
        "http://",
        "http://localhost.evil.example.com",
        "http://evillocalhost",
        "http://127.0.0.1.evil.example.com",
        "http://[::1].evil.example.com",
        "http://[::1]evil",
        "http://localhost:80:80",
        "http://localhost:x",
        "http://localhost@evil.example.com",
        "https://chat.example.com:1",
    ] {
        let answer = post("[::1]", origin).await;
        let code = answer.json()["error"]["code"].clone();
        assert_eq!((answer.status, code.as_str()), (403, Some("origin_not_allowed")), "{origin}");
    }
    // A page at the address under which the browser reached this server, as behind a proxy on this machine.
    for (host, origin, status) in [
        ("192.168.1.7", "http://192.168.1.7", 200),
        ("192.168.1.7:80", "http://192.168.1.7", 200),
        ("192.168.1.7", "http://192.168.1.7:80", 200),
        ("192.168.1.7:443", "https://192.168.1.7", 200),
        ("192.168.1.7:8080", "http://192.168.1.7:8080", 200),
        ("[2001:DB8:0::6]:8080", "http://[2001:db8::6]:8080", 200),
        ("192.168.1.7:8080", "http://192.168.1.7:3000", 403),
        ("192.168.1.7:8080", "http://192.168.1.7", 403),
        ("192.168.1.7", "http://192.168.1.8", 403),
        ("127.0.0.1:8080", "http://192.168.1.7:8080", 403),
        // A page can point its own name to this machine.
        ("evil.example.com", "http://evil.example.com", 403),
    ] {
        assert_eq!(post(host, origin).await.status, status, "{origin} at {host}");
    }
    for (host, status) in [
        ("localhost:3000", 200),
        ("LOCALHOST", 200),
        ("app.localhost", 200),
        ("localhost.:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:3000", 200),
        ("192.168.1.7", 200),
        ("[2001:db8::6]:3000", 200),
        ("chat.example.com", 200),
        ("evil.example.com:3000", 403),
        ("127.0.0.1.evil.example.com", 403),
        ("[::1].evil.example.com", 403),
        ("localhost:80:evil", 403),
        ("[localhost]", 403),
        ("", 403),
    ] {
        let head = format!("host: {host}\r\n");
        assert_eq!(send("GET /v1/kv", &head, "").await.status, status, "{host}");
    }
    assert_eq!(send("GET /readyz", "host: evil.example.com\r\n", "").await.status, 200);
}

#[tokio::test]
async fn preflight_requests_need_no_key() {
    for (origins, wanted) in [(&[ORIGIN, "http://localhost:3001"][..], ORIGIN), (&["*"], "*")] {
        let router = behind(origins).await;
        let asked = [
            ("origin", ORIGIN),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
        ];
        let told = router.connect().await.request_with("OPTIONS", "/v1/chat/completions", &asked, b"").await;
        assert_eq!((told.status, told.header("access-control-allow-origin")), (200, Some(wanted)));
        assert_eq!(told.header("access-control-allow-headers"), Some(asked[2].1));
        assert!(told.header("access-control-allow-methods").unwrap().contains("POST"));
        assert_eq!(told.header("access-control-allow-credentials"), None);
        // Scripts can read all answers, including errors.
        let bearer = format!("Bearer {KEY}");
        let with_key = [("origin", ORIGIN), ("authorization", bearer.as_str())];
        for (headers, status) in [(&with_key[..], 200), (&with_key[..1], 401)] {
            let answer = router.connect().await.request_with("GET", "/v1/models", headers, b"").await;
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (status, Some(wanted)));
            let exposed = answer.header("access-control-expose-headers").unwrap();
            assert!(EXPOSED_HEADERS.iter().all(|name| exposed.contains(name.as_str())), "{exposed}");
        }
    }
}

#[tokio::test]
async fn other_origins_get_no_cors_headers() {
    for origins in [&[ORIGIN][..], &[]] {
        let router = behind(origins).await;
        let headers = [("origin", "https://evil.example.com"), ("x-api-key", KEY)];
        let answer = router.connect().await.request_with("GET", "/v1/models", &headers, b"").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
        let asked = [("origin", "https://evil.example.com"), ("access-control-request-method", "POST")];
        let told = router.connect().await.request_with("OPTIONS", "/v1/completions", &asked, b"").await;
        assert_eq!(told.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn valid_request_ids_are_kept_and_others_replaced() {
    let router = Router::default().await;
    let get = async |sent: &str, path: &str| {
        router.connect().await.request_with("GET", path, &[("x-request-id", sent)], b"").await
    };
    let id = async |sent, path| get(sent, path).await.header("x-request-id").unwrap().to_owned();
    assert_eq!(id("req_0123-ab.c:9", "/livez").await, "req_0123-ab.c:9");
    assert_eq!(id("same-in-errors", "/nothing").await, "same-in-errors");
    for sent in ["", "a b", "a\"b", "a=b", "\u{e9}", &"x".repeat(129)] {
        let answered = id(sent, "/livez").await;
        assert!(answered != sent && answered.len() >= 16, "{sent}: {answered}");
    }
    let both = get("abc", "/v1/messages").await;
    assert_eq!((both.header("x-request-id"), both.header("request-id")), (Some("abc"), Some("abc")));
}

#[tokio::test]
async fn an_answer_that_does_not_wait_for_the_body_announces_the_close() {
    let router = Router::default().await;
    let mut early = router.connect().await;
    early.stream.write_all(b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").await.unwrap();
    let answer = early.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));

    let mut kept = router.connect().await;
    let refused = kept.request("POST", "/v1/completions", b"{}").await;
    assert_eq!((refused.status, refused.header("connection")), (400, None));
    assert_eq!(kept.request("GET", "/livez", b"").await.status, 200);
}

#[tokio::test]
async fn a_large_header_gets_an_error_and_a_huge_one_a_bare_431() {
    let limits = Limits { max_header_bytes: 4096, ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let send = async |bytes: usize| {
        let value = "x".repeat(bytes);
        router.connect().await.request_with("GET", "/v1/models", &[("x-filler", &value)], b"").await
    };
    assert_eq!(send(3_900).await.status, 200);
    for bytes in [4_096, 60_000] {
        let text = send(bytes).await.fails(431, "header_too_large");
        assert_eq!(text, "header is larger than 4096 bytes; hint: raise `--max-header-bytes`");
    }
    let fields = |count: usize| "a: b\r\n".repeat(count);
    for head in [format!("x-filler: {}\r\n", "x".repeat(200_000)), fields(600)] {
        let mut connection = router.connect().await;
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{head}\r\n");
        // The server may answer before the whole request was sent.
        let _ = connection.stream.write_all(head.as_bytes()).await;
        assert!(connection.read_until(|bytes| bytes.starts_with(b"HTTP/1.1 431")).await);
    }
}

#[tokio::test]
async fn too_many_header_fields_are_refused_in_the_dialects_form() {
    let router = Router::default().await;
    // The client also sends `host` and `content-length`.
    let send = async |path: &str, count: usize| {
        router.connect().await.request_with("GET", path, &vec![("a", "b"); count], b"").await
    };
    assert_eq!(send("/v1/models", 98).await.status, 200);
    let words = "header has 101 fields, the limit is 100; hint: send fewer";
    for path in ["/v1/models", "/info"] {
        assert_eq!(send(path, 99).await.fails(431, "header_too_large"), words);
    }
    send("/info", 500).await.fails(431, "header_too_large");
}

/// Sends requests of every kind that might log a prompt or a key to a router process with the most detailed log level.
#[tokio::test(flavor = "multi_thread")]
async fn no_log_at_any_level_has_a_prompt_an_output_or_a_key() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let _shard = MockShard::start(&folder.path().join("shard.sock"), ShardPlan::saying("marker-output"));
    let mut settings = settings(folder.path());
    settings.logging.log_level = LogLevel::Trace;
    let mut command = Command::new(PROGRAM);
    command.env("TRUNKLINE_API_KEY", KEY);
    let process = Process::start(command.with_settings(folder.path(), &settings));
    let address = process.address;
    let bearer = format!("Bearer {KEY}");
    let headers = [("authorization", bearer.as_str())];
    let messages = user("marker-prompt");
    let mut statuses = Vec::new();
    process.wait_until_ready().await;
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "stream": true, "user": "marker-user"})),
        ("/v1/chat/completions", json!({"messages": messages, "temperature": "marker-prompt"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "marker-prompt", "content": "x"}]})),
        ("/v1/completions", json!({"prompt": "marker-prompt", "stop": "marker-prompt"})),
        ("/v1/completions", json!({"prompt": "x", "guided_regex": "marker-prompt("})),
        ("/v1/messages", json!({"messages": messages, "system": "marker-prompt", "max_tokens": 9})),
        ("/v1/responses", json!({"input": "marker-prompt"})),
        ("/generate", json!({"inputs": "marker-prompt"})),
        ("/tokenize", json!({"inputs": "marker-prompt"})),
        ("/generate?marker-prompt", json!({"inputs": 5})),
    ] {
        let body = body.to_string();
        let mut connection = Connection::open(address).await;
        statuses.push(connection.request_with("POST", path, &headers, body.as_bytes()).await.status);
    }
    // The name of a field that the client made up.
    let crowded = format!(r#"{{"prompt": "x", "marker-prompt": [{}0]}}"#, "0,".repeat(MAX_JSON_VALUES));
    for path in ["/v1/completions", "/generate"] {
        let mut connection = Connection::open(address).await;
        statuses.push(connection.request_with("POST", path, &headers, crowded.as_bytes()).await.status);
    }
    let wrong = [("authorization", "Bearer sk-marker-key-wrong-0000")];
    statuses
        .push(Connection::open(address).await.request_with("GET", "/v1/models", &wrong, b"").await.status);
    assert_eq!(statuses, [200, 400, 400, 200, 400, 200, 200, 200, 200, 422, 400, 422, 401]);
    let (_, log) = process.end();
    assert!(log.contains(" DEBUG ") && log.contains(" TRACE "), "not the level that was asked for:\n{log}");
    for marker in ["marker-prompt", "marker-output", "marker-key", "marker-user"] {
        let line = log.lines().find(|line| line.contains(marker));
        assert_eq!(line, None, "{marker} is in the log");
    }
}
