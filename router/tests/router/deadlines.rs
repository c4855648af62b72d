//! Deadlines of requests, set by the field, the header or the flag.

use std::time::Duration;

use serde_json::{Value, json};
use trunkline_base::limits::Limits;

use crate::support::{Answer, Router, ShardPlan, user};

/// Returns a request without timeout for each generating route.
fn routes() -> [(&'static str, Value); 5] {
    [
        ("/v1/chat/completions", json!({"messages": user("x")})),
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/responses", json!({"input": "x"})),
        ("/v1/messages", json!({"messages": user("x"), "max_tokens": 5})),
        ("/generate", json!({"inputs": "x"})),
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
    let router = Router::with(ShardPlan::endless().held()).await;
    for (path, body) in routes() {
        let answer = router.post(path, &with_timeout(path, &body, json!(0.05))).await;
        let message = answer.fails(504, "deadline_exceeded");
        assert!(message.contains("time limit of 0.05 s; hint: raise `timeout`"), "{path}: {message}");
        let answer = post_with(&router, path, ("x-request-timeout", "0.05"), &body).await;
        answer.refuses(504, "`x-request-timeout`");
    }
    router.wait_running(0).await;
}

#[tokio::test]
async fn a_stream_ends_with_an_event_of_its_dialect() {
    let router = Router::with(ShardPlan::endless().held()).await;
    for (path, body) in routes() {
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
    // Long enough for a busy machine to queue the request, which is refused otherwise because no time is left.
    let limits = Limits { request_timeout: Duration::from_millis(150), ..Limits::default() };
    let router = Router::start(ShardPlan::endless().held(), limits).await;
    for (path, body) in routes() {
        for body in [with_timeout(path, &body, json!(600)), body] {
            router.post(path, &body).await.refuses(504, "`--request-timeout`");
        }
    }
}

#[tokio::test]
async fn invalid_headers_are_refused_and_x_stainless_timeout_is_ignored() {
    let router = Router::default().await;
    for (path, body) in routes() {
        let status = if path == "/generate" { 422 } else { 400 };
        let wrong = post_with(&router, path, ("x-request-timeout", "soon"), &body).await;
        wrong.refuses(status, "`x-request-timeout` must be a number");
        post_with(&router, path, ("x-stainless-timeout", "0.000001"), &body).await.ok();
        router.post(path, &with_timeout(path, &body, Value::Null)).await.ok();
    }
}
