//! Deadlines of requests, set by the field, the header or the flag.

use std::time::Duration;

use serde_json::{Value, json};
use trunkline_router::limits::Limits;

use crate::support::{Answer, Router, ShardPlan};

/// Returns a request without timeout for each generating route, and the JSON pointer of the code in its errors.
fn routes() -> [(&'static str, Value, &'static str); 5] {
    let messages = json!([{"role": "user", "content": "x"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages}), "/error/code"),
        ("/v1/completions", json!({"prompt": "x"}), "/error/code"),
        ("/v1/responses", json!({"input": "x"}), "/error/code"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5}), "/error/code"),
        ("/generate", json!({"inputs": "x"}), "/code"),
    ]
}

fn with_timeout(path: &str, body: &Value, timeout: Value) -> Value {
    let mut body = body.clone();
    if path == "/generate" {
        body["parameters"] = json!({"timeout": timeout});
    } else {
        body["timeout"] = timeout;
    }
    body
}

async fn post_with(router: &Router, path: &str, header: (&str, &str), body: &Value) -> Answer {
    router.connect().await.request_with("POST", path, &[header], body.to_string().as_bytes()).await
}

#[tokio::test]
async fn field_and_header_end_a_request_of_every_route() {
    let router = Router::start(ShardPlan::endless().held(), Limits::default()).await;
    for (path, body, code) in routes() {
        let answer = router.post(path, &with_timeout(path, &body, json!(0.05))).await;
        assert_eq!(
            answer.json().pointer(code),
            Some(&json!("deadline_exceeded")),
            "{path} {}",
            answer.text()
        );
        assert!(answer.text().contains("time limit of 0.05 s; hint: raise `timeout`"), "{}", answer.text());
        assert_eq!(answer.status, 504, "{path}");
        let answer = post_with(&router, path, ("x-request-timeout", "0.05"), &body).await;
        assert_eq!(answer.status, 504, "{path}");
        assert!(answer.text().contains("`x-request-timeout`"), "{}", answer.text());
    }
    router.wait("all to be gone", |app| app.served.stats.borrow().num_running == 0).await;
}

#[tokio::test]
async fn a_stream_ends_with_an_event_of_its_dialect() {
    let router = Router::start(ShardPlan::endless().held(), Limits::default()).await;
    for (path, body, _) in routes() {
        let mut body = with_timeout(path, &body, json!(0.05));
        body["stream"] = true.into();
        let answer = router.post(path, &body).await;
        let text = answer.text();
        assert_eq!(answer.status, 200, "{path} {text}");
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.contains("deadline_exceeded") && last.contains("`timeout`"), "{path}: {last}");
    }
}

#[tokio::test]
async fn the_flag_bounds_field_and_header() {
    let limits = Limits { request_timeout: Duration::from_millis(50), ..Limits::default() };
    let router = Router::start(ShardPlan::endless().held(), limits).await;
    for (path, body, _) in routes() {
        let answer = router.post(path, &with_timeout(path, &body, json!(600))).await;
        assert_eq!(answer.status, 504, "{path}");
        assert!(answer.text().contains("`--request-timeout`"), "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn invalid_timeouts_are_refused_and_x_stainless_timeout_is_ignored() {
    let router = Router::default().await;
    for (path, body, _) in routes() {
        let wrong = router.post(path, &with_timeout(path, &body, json!(0))).await;
        let status = if path == "/generate" { 422 } else { 400 };
        assert_eq!(wrong.status, status, "{path}");
        assert!(wrong.text().contains("`timeout` is 0, must be greater than 0"), "{path}: {}", wrong.text());
        let wrong = post_with(&router, path, ("x-request-timeout", "soon"), &body).await;
        assert_eq!(wrong.status, status, "{path}");
        assert!(wrong.text().contains("`x-request-timeout` must be a number"), "{path}: {}", wrong.text());
        let answer = post_with(&router, path, ("x-stainless-timeout", "0.000001"), &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let answer = router.post(path, &with_timeout(path, &body, Value::Null)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
}
