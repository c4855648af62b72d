//! Streams that go on without their client, and that it comes back to.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use trunkline_base::limits::Limits;
use trunkline_router::server::{Front, routes};

use crate::support::{Answer, Router, ShardPlan, sse_data, user};

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str =
    "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";

fn chat(max_tokens: u32) -> Value {
    json!({"messages": user("hi"), "stream": true, "ignore_eos": true, "max_tokens": max_tokens, "seed": 1})
}

/// Sends a request without a connection in between, as one whose client may leave at any time.
async fn send(router: &Router, key: &str, id: &str, body: &Value) -> axum::response::Response {
    let request =
        Request::post("/v1/chat/completions").header("x-api-key", key).header("Trunkline-Stream", id);
    routes::routes_of(router.app.clone(), &Front::default())
        .oneshot(request.body(Body::from(body.to_string())).unwrap())
        .await
        .unwrap()
}

/// Starts a router with the keys of two tenants.
async fn start(plan: ShardPlan) -> Router {
    Router::start_with_keys(KEYS, plan, Limits::default()).await
}

/// Sends a request without a body as Alice.
async fn alice(router: &Router, method: &str, path: &str) -> Answer {
    router.ask(ALICE, method, path, &Value::Null).await
}

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

async fn error_code(response: axum::response::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice::<Value>(&body).unwrap()["error"]["code"].clone())
}

#[tokio::test]
async fn a_client_that_left_reads_the_whole_stream_later() {
    let router = start(ShardPlan::endless().held()).await;
    let mut body = send(&router, ALICE, "one", &chat(2_000)).await.into_body();
    router.add_steps(1);
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    drop(body);
    let listed = alice(&router, "GET", "/v1/streams").await.ok();
    assert_eq!((&listed["data"][0]["id"], &listed["data"][0]["running"]), (&json!("one"), &json!(true)));

    let mut connection = router.connect().await;
    connection.send_with("GET", "/v1/streams/one", &[("x-api-key", ALICE)], b"").await;
    router.add_steps(4_000);
    let answer = connection.answer().await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let all = answer.text();
    assert!(all.as_bytes().starts_with(&first));
    let events = sse_data(&all);
    assert_eq!((text(&events).len(), events.last().unwrap()), (2_000, &json!("[DONE]")));
    router.wait_idle().await;
    assert_eq!(alice(&router, "GET", "/v1/streams/one").await.text(), all, "after its end, too");
    assert_eq!(alice(&router, "GET", "/v1/streams").await.ok()["data"][0]["running"], false);

    assert_eq!(error_code(send(&router, ALICE, "one", &chat(1)).await).await, (409, json!("stream_exists")));
    let deleted = alice(&router, "DELETE", "/v1/streams/one").await.ok();
    assert_eq!(deleted, json!({"id": "one", "object": "stream", "deleted": true}));
    alice(&router, "GET", "/v1/streams/one").await.fails(404, "stream_not_found");
}

#[tokio::test]
async fn a_deleted_stream_stops_computing() {
    let router = start(ShardPlan::endless().held()).await;
    let response = send(&router, ALICE, "endless", &chat(2_000)).await;
    assert_eq!(response.status(), 200);
    drop(response);
    router.add_steps(2);
    router.wait_running(1).await;
    alice(&router, "DELETE", "/v1/streams/endless").await.ok();
    router.add_steps(2);
    router.wait_idle().await;
    router.wait_places().await;
    assert_eq!(alice(&router, "GET", "/v1/streams").await.ok()["data"], json!([]));
}

#[tokio::test]
async fn streams_belong_to_their_tenant() {
    let router = start(ShardPlan::endless()).await;
    let response = send(&router, ALICE, "chat-1", &chat(3)).await;
    let all = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap();
    assert_eq!(alice(&router, "GET", "/v1/streams/chat-1").await.text(), all);
    router.ask(BOB, "GET", "/v1/streams/chat-1", &Value::Null).await.fails(404, "stream_not_found");
    router.ask(BOB, "DELETE", "/v1/streams/chat-1", &Value::Null).await.fails(404, "stream_not_found");
    assert_eq!(router.ask(BOB, "GET", "/v1/streams", &Value::Null).await.ok()["data"], json!([]));
    // Both may call a stream the same.
    assert_eq!(send(&router, BOB, "chat-1", &chat(3)).await.status(), 200);
}

#[tokio::test]
async fn without_keys_only_those_find_a_stream_who_know_its_id() {
    let router = Router::with(ShardPlan::endless()).await;
    send(&router, "", "secret", &chat(3)).await.into_body().collect().await.unwrap();
    assert_eq!(router.get("/v1/streams").await.ok()["data"], json!([]));
    assert_eq!(router.get("/v1/streams/secret").await.status, 200);
}

#[tokio::test]
async fn what_is_no_stream_is_not_kept() {
    let router = start(ShardPlan::endless()).await;
    let mut whole = chat(3);
    whole["stream"] = json!(false);
    assert_eq!(send(&router, ALICE, "whole", &whole).await.status(), 200);
    let mut wrong = chat(3);
    wrong["temperature"] = json!("hot");
    assert_eq!(send(&router, ALICE, "wrong", &wrong).await.status(), 400);
    assert_eq!(alice(&router, "GET", "/v1/streams").await.ok()["data"], json!([]));
    for id in ["", "a b", &"x".repeat(65)] {
        assert_eq!(
            error_code(send(&router, ALICE, id, &chat(3)).await).await,
            (400, json!("invalid_value")),
            "{id}"
        );
    }
}

#[tokio::test]
async fn ended_streams_make_room_for_others() {
    let limits = Limits { max_response_store_bytes: 64 << 10, ..Limits::default() };
    let router = Router::start_with_keys(KEYS, ShardPlan::endless(), limits).await;
    for id in ["a", "b", "c", "d", "e"] {
        send(&router, ALICE, id, &chat(20)).await.into_body().collect().await.unwrap();
    }
    let ids = |listed: Value| -> Vec<Value> {
        listed["data"].as_array().unwrap().iter().map(|stream| stream["id"].clone()).collect()
    };
    let mut kept = ids(alice(&router, "GET", "/v1/streams").await.ok());
    kept.sort_by_key(Value::to_string);
    assert_eq!(kept, ["b", "c", "d", "e"], "a block of 16 KiB each");
    // One that alone is too large is cut, and its request ends.
    let response = send(&router, ALICE, "large", &chat(2_000)).await;
    assert_eq!(response.status(), 200);
    let text = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap();
    assert!(!text.contains("[DONE]"));
    router.wait_idle().await;
}

#[tokio::test]
async fn a_server_that_ends_waits_for_no_stream_without_a_reader() {
    let mut router = start(ShardPlan::endless().held()).await;
    drop(send(&router, ALICE, "left", &chat(2_000)).await);
    let mut read = send(&router, ALICE, "read", &chat(20)).await.into_body();
    router.add_steps(2);
    router.wait_running(2).await;
    read.frame().await.unwrap().unwrap();
    router.terminate();
    router.add_steps(2);
    router.wait("the other stream alone", |app| app.served.stats.borrow().num_running == 1).await;
    router.add_steps(100);
    let rest = String::from_utf8(read.collect().await.unwrap().to_bytes().into()).unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_tenant_whose_streams_fill_the_memory_cuts_its_own() {
    let limits = Limits { max_response_store_bytes: 64 << 10, ..Limits::default() };
    let router = Router::start_with_keys(KEYS, ShardPlan::endless().held(), limits).await;
    let bobs = send(&router, BOB, "bobs", &chat(20)).await.into_body();
    for id in ["a", "b", "c", "d", "e"] {
        drop(send(&router, ALICE, id, &chat(200)).await);
    }
    router.add_steps(1_000);
    let text = String::from_utf8(bobs.collect().await.unwrap().to_bytes().into()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"));
    router.wait_idle().await;
    assert_eq!(router.ask(BOB, "GET", "/v1/streams/bobs", &Value::Null).await.text(), text);
    assert!(alice(&router, "GET", "/v1/streams").await.ok()["data"].as_array().unwrap().len() < 5);
}
