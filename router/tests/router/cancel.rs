//! Clients that leave or do not read.

use serde_json::json;
use trunkline_base::limits::MAX_WAITING_TOKENS;

use crate::support::{Connection, Router, ShardPlan, sequence, sse_data, user};

const COMPLETIONS: &str = "/v1/completions";

async fn open(router: &Router, stream: bool) -> Connection {
    router.begin(COMPLETIONS, &json!({"prompt": vec![7; 50], "max_tokens": 8000, "stream": stream})).await
}

#[tokio::test]
async fn leaving_before_the_first_step_frees_everything() {
    for stream in [false, true] {
        let router = Router::with(ShardPlan::endless().held()).await;
        let connection = open(&router, stream).await;
        router.wait_running(1).await;
        drop(connection);
        router.wait_running(0).await;
        // The request's blocks are free once the steps that use them are done.
        router.add_steps(10);
        router.wait_idle().await;
        assert_eq!(router.app.served.stats.borrow().output_tokens, 0);
        assert_eq!(router.metric("trunkline_aborts_total").await, 1.0);
    }
}

#[tokio::test]
async fn leaving_in_the_middle_frees_everything() {
    for stream in [false, true] {
        let router = Router::with(ShardPlan::endless().held()).await;
        // The request asks for 8,000 tokens, so only the client that leaves can end it.
        router.add_steps(100);
        let mut connection = open(&router, stream).await;
        if stream {
            assert!(connection.read_until(|bytes| bytes.len() > 2000).await);
        } else {
            router.wait("some tokens", |app| app.served.stats.borrow().output_tokens > 20).await;
        }
        drop(connection);
        router.wait_running(0).await;
        router.add_steps(10);
        router.wait_idle().await;
        assert_eq!(router.app.admission.open.available_permits(), router.app.limits.max_open);
    }
}

#[tokio::test]
async fn leaving_the_queue_frees_the_place() {
    let mut plan = ShardPlan::endless().held();
    plan.num_blocks = 16;
    let router = Router::with(plan).await;
    let body = |token: u32| json!({"prompt": vec![token; 100], "max_tokens": 20});
    let _running = router.begin(COMPLETIONS, &body(1)).await;
    router.wait_running(1).await;
    let waiting = router.begin(COMPLETIONS, &body(2)).await;
    router.wait_queued(1).await;
    drop(waiting);
    router.wait_queued(0).await;
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
    let router = Router::with(ShardPlan::endless()).await;
    let mut sequence = router.app.served.driver.submit(sequence(vec![7; 10], 8000)).await.unwrap();
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
    let router = Router::with(ShardPlan::endless()).await;
    // Each event has several kilobytes, so the sockets' buffers are full long before the output ends.
    let body = json!({"messages": user("x"), "max_tokens": 8000, "stream": true, "logprobs": true,
                      "top_logprobs": 20});
    let mut slow = router.begin("/v1/chat/completions", &body).await;
    router.wait("tokens", |app| app.served.stats.borrow().output_tokens > 100).await;
    router.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 50})).await.ok();
    router.wait_idle().await;
    assert_eq!(router.metric("trunkline_aborts_total").await, 1.0);
    assert!(slow.read_until(|bytes| bytes.ends_with(b"\r\n0\r\n\r\n")).await);
    let events = sse_data(&slow.received().replace("\r\n", "\n\n"));
    let error = events.iter().rev().find(|event| event.get("error").is_some()).expect("an error event");
    assert_eq!(error["error"]["code"], "client_too_slow");
}
