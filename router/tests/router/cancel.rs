//! Clients that leave or do not read.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use trunkline_router::engine::driver::NewSequence;
use trunkline_router::limits::{Limits, MAX_WAITING_TOKENS};
use trunkline_scheduler::{Priority, Salt, SamplingParams};

use crate::support::{Connection, Router, ShardPlan, sse_data};

const COMPLETIONS: &str = "/v1/completions";

async fn open(router: &Router, stream: bool) -> Connection {
    let body = json!({"prompt": vec![7; 50], "max_tokens": 8000, "stream": stream}).to_string();
    let mut connection = router.connect().await;
    connection.send("POST", COMPLETIONS, body.as_bytes()).await;
    connection
}

#[tokio::test]
async fn leaving_before_the_first_step_frees_everything() {
    for stream in [false, true] {
        let plan = ShardPlan::endless().held();
        let steps = plan.steps.clone();
        let router = Router::start(plan, Limits::default()).await;
        let connection = open(&router, stream).await;
        router.wait("the request to run", |app| app.served.stats.borrow().num_running == 1).await;
        drop(connection);
        router.wait("the request to be gone", |app| app.served.stats.borrow().num_running == 0).await;
        // The request's blocks are free once the steps that use them are done.
        steps.add_permits(10);
        router.wait_idle().await;
        assert_eq!(router.app.served.stats.borrow().output_tokens, 0);
        assert_eq!(router.metric("trunkline_aborts_total").await, 1.0);
    }
}

#[tokio::test]
async fn leaving_in_the_middle_frees_everything() {
    for stream in [false, true] {
        let plan = ShardPlan::endless().held();
        let steps = plan.steps.clone();
        let router = Router::start(plan, Limits::default()).await;
        // The request asks for 8,000 tokens, so only the client that leaves can end it.
        steps.add_permits(100);
        let mut connection = open(&router, stream).await;
        if stream {
            assert!(connection.read_until(|bytes| bytes.len() > 2000).await);
        } else {
            router.wait("some tokens", |app| app.served.stats.borrow().output_tokens > 20).await;
        }
        drop(connection);
        router.wait("the request to be gone", |app| app.served.stats.borrow().num_running == 0).await;
        steps.add_permits(10);
        router.wait_idle().await;
        assert_eq!(router.app.admission.open.available_permits(), router.app.limits.max_concurrent_requests);
    }
}

#[tokio::test]
async fn leaving_the_queue_frees_the_place() {
    let mut plan = ShardPlan::endless().held();
    plan.num_blocks = 16;
    let router = Router::start(plan, Limits::default()).await;
    let body = |token: u32| json!({"prompt": vec![token; 100], "max_tokens": 20}).to_string();
    let mut running = router.connect().await;
    running.send("POST", COMPLETIONS, body(1).as_bytes()).await;
    router.wait("one to run", |app| app.served.stats.borrow().num_running == 1).await;
    let mut waiting = router.connect().await;
    waiting.send("POST", COMPLETIONS, body(2).as_bytes()).await;
    router.wait("one to wait", |app| app.served.stats.borrow().num_waiting == 1).await;
    drop(waiting);
    router.wait("the waiting one to be gone", |app| app.served.stats.borrow().num_waiting == 0).await;
    assert_eq!(router.app.served.stats.borrow().num_running, 1);
}

#[tokio::test]
async fn leaving_in_the_middle_of_a_body_holds_no_place() {
    let router = Router::default().await;
    let mut connection = router.connect().await;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{\"prompt\": [1";
    tokio::io::AsyncWriteExt::write_all(&mut connection.stream, head).await.unwrap();
    drop(connection);
    // The next request is served, and afterwards no request is open.
    router.post(COMPLETIONS, &json!({"prompt": "x"})).await.ok();
    router.wait_idle().await;
}

#[tokio::test]
async fn the_driver_aborts_a_sequence_whose_updates_are_not_read() {
    let router = Router::start(ShardPlan::endless(), Limits::default()).await;
    let request = NewSequence {
        arrived: Instant::now(),
        token_ids: vec![7; 10],
        max_new_tokens: 8000,
        sampling: SamplingParams::default(),
        end_token_ids: Vec::new(),
        ignore_eos: false,
        priority: Priority::Normal,
        deadline: None,
        salt: Salt::default(),
        retention: trunkline_scheduler::Retention::default(),
        constraint: None,
    };
    let mut sequence = router.app.served.driver.submit(request).await.unwrap();
    router
        .wait("tokens", |app| app.served.stats.borrow().output_tokens as usize > MAX_WAITING_TOKENS / 2)
        .await;
    router.wait_idle().await;
    assert!(sequence.overflowed());
    let mut waiting = 0;
    while sequence.next().await.is_some() {
        waiting += 1;
    }
    assert_eq!(waiting, MAX_WAITING_TOKENS, "no more was kept than the limit");
}

#[tokio::test]
async fn slow_reader_gets_an_error_event_and_others_are_served() {
    let router = Router::start(ShardPlan::endless(), Limits::default()).await;
    // Each event has several kilobytes, so the sockets' buffers are full long before the output ends.
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 8000, "stream": true,
                      "logprobs": true, "top_logprobs": 20});
    let mut slow = router.connect().await;
    slow.send("POST", "/v1/chat/completions", body.to_string().as_bytes()).await;
    router.wait("tokens", |app| app.served.stats.borrow().output_tokens > 100).await;
    router.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 50})).await.ok();
    router.wait_idle().await;
    assert_eq!(router.metric("trunkline_aborts_total").await, 1.0);
    assert!(slow.read_until(|bytes| bytes.ends_with(b"\r\n0\r\n\r\n")).await);
    let events = sse_data(&slow.received().replace("\r\n", "\n\n"));
    let error = events.iter().rev().find(|event| event.get("error").is_some()).expect("an error event");
    assert_eq!(error["error"]["code"], "client_too_slow");
}

#[tokio::test]
async fn request_timeout_ends_a_request_with_504() {
    let limits = Limits { request_timeout: Duration::from_millis(50), ..Limits::default() };
    let router = Router::start(ShardPlan::endless().held(), limits).await;
    let answer = router.post(COMPLETIONS, &json!({"prompt": "x"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("deadline_exceeded")));
}
