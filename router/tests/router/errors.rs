//! Errors of clients: status, code and text in the dialect's form. Rejected requests hold no places.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{Router, ShardPlan, user, with};
use crate::vectors::vectors;
use trunkline_base::limits::Limits;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Requests that are refused, a line each: route, body (a text is sent as it is) and what is known of the answer.
/// Without a status it is 400, or on TGI's routes 400 or 422.
const REFUSALS: &str = include_str!("refusals.jsonl");

#[tokio::test]
async fn refused_requests_name_the_wrong_field_in_their_dialects_form() {
    let limits = Limits {
        max_stop_sequences: 4,
        max_input_tokens: Some(100),
        max_concurrent_requests: Some(128),
        ..Limits::default()
    };
    let plan = ShardPlan { vectors: Some(vectors(2, &[])), ..ShardPlan::default() };
    let router = Router::start(plan, limits).await;
    for line in REFUSALS.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let (route, code) = (row["route"].as_str().unwrap(), row["code"].as_str());
        let body = row["body"].as_str().map_or_else(|| row["body"].to_string(), str::to_owned);
        let answer = router.post_bytes(route, body.as_bytes()).await;
        let json = answer.json();
        let (error, kind, wanted) = match route {
            "/v1/messages" if row["status"] == 404 => {
                (&json["error"], &json["error"]["type"], "not_found_error")
            }
            _ if route.starts_with("/v1/") => {
                (&json["error"], &json["error"]["type"], "invalid_request_error")
            }
            _ => (&json, &json["error_type"], "validation"),
        };
        assert_eq!(kind, wanted, "{line}: {json}");
        assert_eq!(json["type"] == "error", route == "/v1/messages", "{json}");
        let may_be = |status: u16| match row["status"].as_u64() {
            Some(wanted) => u64::from(status) == wanted,
            None => status == 400 || status == 422 && wanted == "validation",
        };
        assert!(may_be(answer.status), "{line}: {} {json}", answer.status);
        let message = error["message"].as_str().or(error["error"].as_str()).unwrap();
        assert!(message.contains(row["words"].as_str().unwrap_or_default()), "{line}: {message}");
        if code.is_some() {
            assert_eq!(error["code"].as_str(), code, "{line}: {json}");
            assert_eq!(message.contains("not valid JSON"), code == Some("invalid_json"), "{line}: {message}");
        }
        if let Some(param) = row.get("param") {
            assert_eq!(error["param"], *param, "{line}: {message}");
        }
        assert!(!answer.text().contains("secret"), "{message}");
        // Errors name nothing of the server's own, neither do headers.
        let shown = |text: &&str| message.contains(text) && !body.contains(text);
        let leaks = ["0x", "panick", ".rs", "/home/", "/root/", "/tmp/", "/usr/", "/work/"];
        assert_eq!(leaks.iter().find(|text| shown(text)), None, "{message}");
        assert!(["server", "x-powered-by", "via"].iter().all(|name| answer.header(name).is_none()));
    }
    assert_eq!(router.app.served.stats.borrow().prompt_tokens, 0, "nothing of it reached the scheduler");
}

#[tokio::test]
async fn malformed_bodies_are_400_and_never_500() {
    let router = Router::default().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    // The second one is a field that is refused.
    let [deep, refused] =
        ["messages", "modalities"].map(|field| format!("{{\"{field}\": {deep}, \"z\": {deep}}}"));
    let bodies: [&[u8]; 9] = [
        b"",
        b"hello",
        b"[]",
        b"{\"messages\": [{\"role\": \"user\"",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]} x",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        deep.as_bytes(),
        refused.as_bytes(),
    ];
    for body in bodies {
        for path in [CHAT, COMPLETIONS] {
            let answer = router.post_bytes(path, body).await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.json()["error"]["message"].is_string());
        }
        for path in ["/generate", "/tokenize", "/"] {
            let answer = router.post_bytes(path, body).await;
            assert!([400, 422].contains(&answer.status), "{}", answer.text());
            assert!(answer.json()["error"].is_string() && answer.json()["error_type"] == "validation");
        }
    }
}

#[tokio::test]
async fn the_block_pool_bounds_prompts_too() {
    let plan = ShardPlan { num_blocks: 4, ..ShardPlan::default() };
    let router = Router::with(plan).await;
    let answer = router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 3})).await;
    let message = answer.fails(400, "context_length_exceeded");
    assert!(message.contains("maximum context length is 32 tokens"), "{message}");
    router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 2})).await.ok();
}

#[tokio::test]
async fn a_prompt_that_is_too_long_names_what_would_help() {
    let input = Limits { max_input_tokens: Some(100), ..Limits::default() };
    let too_large = Limits { max_input_tokens: Some(9000), ..Limits::default() };
    let total = Limits { max_total_tokens: Some(200), ..Limits::default() };
    let small_pool = ShardPlan { num_blocks: 4, ..ShardPlan::default() };
    for (plan, limits, hint) in [
        (ShardPlan::default(), input, "shorten the prompt or raise `--max-input-tokens`"),
        (ShardPlan::default(), total, "shorten the prompt or raise `--max-total-tokens`"),
        (small_pool, Limits::default(), "shorten the prompt or raise `--max-batch-total-tokens`"),
        (ShardPlan::default(), too_large, "shorten the prompt"),
    ] {
        let router = Router::start(plan, limits.clone()).await;
        let answer = router.post(COMPLETIONS, &json!({"prompt": vec![1; 8192]})).await;
        let message = answer.fails(400, "context_length_exceeded");
        assert!(message.ends_with(&format!("; hint: {hint}")), "{message}");
        let shard = router.app.served.shard_info().unwrap();
        let useless = router.app.served.validator(&shard).useless_limits();
        let is_useless = limits.max_input_tokens == Some(9000);
        let line = "`--max-input-tokens` is 9000, but model and KV cache allow only 8191 tokens of a prompt";
        assert_eq!(useless, if is_useless { vec![line.to_owned()] } else { vec![] });
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_have_errors_of_their_own() {
    let router = Router::default().await;
    for (path, words) in [
        ("/v1/nothing", "`/docs` lists all routes"),
        ("/nothing", "`/docs` lists all routes"),
        ("/chat/completions", "hint: use `/v1/chat/completions`"),
        ("/v1/v1/chat/completions", "hint: use `/v1/chat/completions`"),
        ("/v1/models/", "hint: use `/v1/models`"),
        ("/v1/generate", "hint: use `/generate`"),
    ] {
        let message = router.get(path).await.fails(404, "route_not_found");
        assert!(message.contains(words), "{message}");
    }
    for (path, allow, words) in [
        (CHAT, "POST", "hint: use `POST`"),
        ("/v1/messages", "POST", "hint: use `POST`"),
        ("/generate", "POST", "hint: use `POST`"),
    ] {
        let answer = router.get(path).await;
        let message = answer.fails(405, "method_not_allowed");
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.header("allow"), Some(allow));
    }
    let answer = router.post("/v1/responses/x", &json!({})).await;
    assert!(answer.fails(405, "method_not_allowed").ends_with("hint: use `GET` or `DELETE`"));
}

#[tokio::test]
async fn a_body_of_50_mb_gets_413_and_is_not_kept() {
    let router = Router::default().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut connection = router.connect().await;
    connection.stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..50 {
        connection.stream.write_all(&chunk).await.unwrap();
    }
    connection.stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = connection.answer().await;
    let message = answer.fails(413, "body_too_large");
    assert!(message.contains("8388608") && message.contains("--max-body-bytes"));

    router.post_bytes("/generate", &vec![b' '; (8 << 20) + 1]).await.fails(413, "body_too_large");
    // A body beyond the limit of discarded bytes is refused because of its `content-length`.
    let mut connection = router.connect().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
    connection.stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(connection.answer().await.status, 413);
}

#[tokio::test]
async fn too_many_open_requests_get_429() {
    let plan = ShardPlan::default().held();
    let limits = Limits { max_concurrent_requests: Some(1), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let mut first = router.begin("/generate", &json!({"inputs": "x"})).await;
    router.wait_running(1).await;
    let second = router.post("/generate", &json!({"inputs": "x"})).await;
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")));
    assert_eq!(second.json()["error_type"], "overloaded");
    router.post(CHAT, &json!({})).await.fails(429, "too_many_requests");
    // Operational routes still answer.
    assert_eq!(router.metric("trunkline_rejections_total{code=\"too_many_requests\"}").await, 2.0);
    router.add_steps(1000);
    assert_eq!(first.answer().await.status, 200);
}

#[tokio::test]
async fn a_full_queue_gives_429_with_retry_after_also_for_streams() {
    // There is room for one sequence. The second one waits, and the third is refused.
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let limits = Limits { max_queued_requests: Some(1), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20});
    let mut running = router.begin(COMPLETIONS, &body(1)).await;
    router.wait_running(1).await;
    let mut waiting = router.begin(COMPLETIONS, &body(2)).await;
    router.wait_queued(1).await;
    let refused = router.post(COMPLETIONS, &with(body(3), json!({"stream": true}))).await;
    let message = refused.fails(429, "queue_full");
    assert!(message.contains("queue is full (1 of 1 requests waiting"), "{message}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    router.add_steps(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn an_unreachable_deadline_gets_429() {
    // 8 tokens took 1000 s of device time, and 40 tokens wait. The next request would start after 5000 s.
    let plan = ShardPlan { num_blocks: 8, device_time_us: 1_000_000_000, ..ShardPlan::default().held() };
    let limits = Limits { request_timeout: Duration::from_secs(600), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    router.add_steps(1);
    router.post(COMPLETIONS, &json!({"prompt": vec![9; 8], "max_tokens": 1})).await.ok();
    router.wait_idle().await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20});
    let mut running = router.begin(COMPLETIONS, &body(1)).await;
    router.wait_running(1).await;
    let mut waiting = router.begin(COMPLETIONS, &body(2)).await;
    router.wait_queued(1).await;

    let refused = router.post(COMPLETIONS, &body(3)).await;
    let message = refused.fails(429, "deadline_unreachable");
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert!(message.contains("deadline") && message.contains("`--request-timeout`"), "{message}");
    assert!(message.contains("predicted wait is 5000.0 s") && !message.contains("queue"), "{message}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 4400);
    let refused = router.post("/generate", &json!({"inputs": "x"})).await;
    refused.fails(429, "deadline_unreachable");
    assert_eq!(refused.json()["error_type"], "overloaded");
    assert_eq!(router.metric("trunkline_rejections_total{code=\"deadline_unreachable\"}").await, 2.0);
    router.add_steps(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_prompt_too_long_for_the_reconnected_shard_names_the_clients_field() {
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let mut router = Router::with(plan).await;
    let mut running = router.connect().await;
    let body = json!({"prompt": vec![1; 40], "max_tokens": 20});
    running.send("POST", COMPLETIONS, body.to_string().as_bytes()).await;
    router.wait_running(1).await;
    let chat = |field: &str| json!({"messages": user("x"), field: 33});
    let mut waiting = Vec::new();
    for (path, body, field) in [
        ("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 33}}), "max_new_tokens"),
        (CHAT, chat("max_tokens"), "max_tokens"),
        (CHAT, chat("max_completion_tokens"), "max_completion_tokens"),
    ] {
        waiting.push((router.begin(path, &body).await, field));
    }
    router.wait_queued(3).await;
    router.kill_shard();
    router.start_shard(ShardPlan { num_blocks: 4, ..ShardPlan::default() }).await;
    assert_eq!(running.answer().await.status, 502);
    for (mut connection, field) in waiting {
        let text = connection.answer().await.text();
        assert!(text.contains("context_length_exceeded"), "{text}");
        assert!(text.contains(&format!("`{field}` asks for 33 more")), "{text}");
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn compressed_bodies_are_refused() {
    let router = Router::default().await;
    let body = br#"{"prompt": "x", "max_tokens": 1}"#;
    let post = async |encoding| {
        let headers = [("content-encoding", encoding)];
        router.connect().await.request_with("POST", COMPLETIONS, &headers, body).await
    };
    assert_eq!(post("identity").await.status, 200);
    let message = post("gzip").await.fails(400, "invalid_type");
    assert!(message.contains("has the encoding `gzip`; hint: send it without"), "{message}");
}
