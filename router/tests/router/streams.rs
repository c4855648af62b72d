//! Writes of event streams. Events that are ready together leave in one write; a single one leaves at once.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use trunkline_base::limits::MAX_WAITING_TOKENS;
use trunkline_router::server::{Front, routes};

use crate::support::{Router, ShardPlan, sse_data, user};

/// Returns the unread body of a streamed chat, without a connection in between.
async fn stream(router: &Router, max_tokens: u32) -> Body {
    let body = json!({"messages": user("hi"), "stream": true, "ignore_eos": true, "max_tokens": max_tokens});
    let request = Request::post("/v1/chat/completions").body(Body::from(body.to_string())).unwrap();
    let response = routes::routes_of(router.app.clone(), &Front::default()).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// Returns the events of the next write.
async fn write(body: &mut Body) -> Vec<serde_json::Value> {
    let frame = body.frame().await.unwrap().unwrap();
    sse_data(std::str::from_utf8(frame.data_ref().unwrap()).unwrap())
}

#[tokio::test]
async fn events_that_are_ready_leave_in_one_write() {
    let router = Router::with(ShardPlan::endless()).await;
    let mut body = stream(&router, 20).await;
    router.wait("all tokens", |app| app.served.stats.borrow().output_tokens == 20).await;
    router.wait_idle().await;
    let events = write(&mut body).await;
    // The events are the role, 20 tokens, the finish reason and `[DONE]`.
    assert_eq!(events.len(), 23);
    assert!(events[1..21].iter().all(|event| event["choices"][0]["delta"]["content"] == "x"));
    assert_eq!(events[22], "[DONE]");
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_single_token_leaves_at_once() {
    let router = Router::with(ShardPlan::endless().held()).await;
    let mut body = stream(&router, 5).await;
    assert_eq!(write(&mut body).await[0]["choices"][0]["delta"]["role"], "assistant");
    for _ in 0..4 {
        // The shard computes the next step only after the token of this step was read.
        router.add_steps(1);
        let events = write(&mut body).await;
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["choices"][0]["delta"]["content"], "x");
    }
    router.add_steps(10);
    assert_eq!(write(&mut body).await.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_busy_router_does_not_abort_its_clients() {
    // All requests run on this test's thread. Blocking it now simulates a flood of work.
    let router = Router::with(ShardPlan::endless()).await;
    let body = stream(&router, 4_000).await;
    let reading = tokio::spawn(body.collect());
    let num_tokens = || router.app.served.stats.borrow().output_tokens;
    // The driver and the shard have their own threads.
    let blocked = Instant::now();
    while num_tokens() == 0 && blocked.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    let blocked = Instant::now();
    // The request's buffer would overflow only if the driver did not wait for this thread.
    while num_tokens() <= MAX_WAITING_TOKENS as u64 && blocked.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    assert!(num_tokens() > 0);
    let read = reading.await.unwrap().unwrap().to_bytes();
    let events = sse_data(std::str::from_utf8(&read).unwrap());
    assert_eq!((events.len(), events.last().unwrap().as_str()), (4_003, Some("[DONE]")));
}
