//! Limits of tenants: requests and tokens per minute, and open requests.

use serde_json::{Value, json};
use trunkline_api::app::App;
use trunkline_base::limits::Limits;

use crate::support::{Answer, Connection, Router, ShardPlan};

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const COMPLETIONS: &str = "/v1/completions";

fn keys(limits: &str) -> String {
    format!("[tenants.alice]\nkeys = \"{ALICE}\"\n{limits}\n[tenants.bob]\nkeys = \"{BOB}\"\nadmin = true\n")
}

/// Starts a router with these lines in Alice's table of the key file.
async fn router(limits: &str, plan: ShardPlan) -> Router {
    Router::start_with_keys(&keys(limits), plan, Limits::default()).await
}

async fn post(router: &Router, key: &str, path: &str, body: &Value) -> Answer {
    router.ask(key, "POST", path, body).await
}

async fn send(router: &Router, key: &str, body: &Value) -> Connection {
    let mut connection = router.connect().await;
    let body = body.to_string();
    connection.send_with("POST", COMPLETIONS, &[("x-api-key", key)], body.as_bytes()).await;
    connection
}

fn number(answer: &Answer, header: &str) -> u64 {
    answer.header(header).unwrap_or_else(|| panic!("no {header}")).parse().unwrap()
}

async fn num_rejections(router: &Router, limit: &str) -> f64 {
    let text = router.ask(ALICE, "GET", "/metrics", &Value::Null).await.text();
    let name = format!("trunkline_tenant_rejections_total{{tenant=\"alice\",limit=\"{limit}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn requests_per_minute_are_limited_and_reported_in_each_dialect() {
    let router = router("requests_per_minute = 4", ShardPlan::default()).await;
    let prompt = json!({"prompt": "x", "max_tokens": 1});
    let message = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
    let first = post(&router, ALICE, COMPLETIONS, &prompt).await;
    assert_eq!((first.status, number(&first, "x-ratelimit-limit-requests")), (200, 4));
    assert_eq!(number(&first, "x-ratelimit-remaining-requests"), 3);
    assert_eq!(first.header("x-ratelimit-limit-tokens"), None);
    let second = post(&router, ALICE, "/v1/messages", &message).await;
    assert_eq!((second.status, number(&second, "anthropic-ratelimit-requests-limit")), (200, 4));
    assert_eq!(number(&second, "anthropic-ratelimit-requests-remaining"), 2);
    let reset = second.header("anthropic-ratelimit-requests-reset").unwrap();
    assert!(reset.len() == 20 && reset.ends_with('Z') && reset.as_bytes()[10] == b'T', "{reset}");
    assert_eq!(second.header("x-ratelimit-limit-requests"), None);
    // As with OpenAI, streams count, and so do requests that are refused because of their form.
    let streamed = json!({"prompt": "x", "max_tokens": 1, "stream": true});
    assert_eq!(
        number(&post(&router, ALICE, COMPLETIONS, &streamed).await, "x-ratelimit-remaining-requests"),
        1
    );
    let wrong = post(&router, ALICE, COMPLETIONS, &json!({"prompt": 1.5})).await;
    assert_eq!((wrong.status, number(&wrong, "x-ratelimit-remaining-requests")), (400, 0));

    let refused = post(&router, ALICE, COMPLETIONS, &prompt).await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (429, &json!("rate_limit_exceeded")), "{error}");
    assert_eq!(error["type"], "rate_limit_error");
    let text = error["message"].as_str().unwrap();
    assert!(
        text.starts_with("tenant `alice` has reached its limit: `requests_per_minute` is 4; hint: "),
        "{text}"
    );
    // One request becomes available every 15 seconds, and a part of the first interval has passed.
    let wait = number(&refused, "retry-after");
    assert!((10..=15).contains(&wait), "{wait}");
    assert!(refused.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    let refused = post(&router, ALICE, "/v1/messages", &message).await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(
        number(&refused, "retry-after") > 0 && refused.header("anthropic-ratelimit-requests-reset").is_some()
    );
    let refused = post(&router, ALICE, "/generate", &json!({"inputs": "x"})).await;
    assert_eq!(refused.json()["error_type"], "overloaded");
    refused.fails(429, "rate_limit_exceeded");

    // The limit affects neither other tenants nor other routes.
    let other = post(&router, BOB, COMPLETIONS, &prompt).await;
    assert_eq!((other.status, other.header("x-ratelimit-limit-requests")), (200, None));
    let models = router.ask(ALICE, "GET", "/v1/models", &Value::Null).await;
    assert_eq!((models.status, models.header("x-ratelimit-limit-requests")), (200, None));
    assert_eq!(num_rejections(&router, "requests_per_minute").await, 3.0);
}

#[tokio::test]
async fn prompt_tokens_are_charged_at_once_and_output_tokens_as_they_are_generated() {
    let router = router("tokens_per_minute = 6000", ShardPlan::endless()).await;
    let body = |prompt: usize, output: u32| json!({"prompt": vec![7; prompt], "max_tokens": output, "n": 2});
    let first = post(&router, ALICE, COMPLETIONS, &body(1_000, 100)).await;
    // The prompt is charged once, and each output separately. 100 tokens become available each second.
    let left = number(&first, "x-ratelimit-remaining-tokens");
    assert!((4_800..5_300).contains(&left), "{left}");
    assert_eq!(number(&first, "x-ratelimit-limit-tokens"), 6_000);
    // A prompt is refused if only a part of its tokens is available.
    router.reload_keys(&keys("tokens_per_minute = 60"));
    let refused = post(&router, ALICE, COMPLETIONS, &body(59, 1)).await;
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (429, true), "{}", refused.text());
    let (wait, left) = (number(&refused, "retry-after"), number(&refused, "x-ratelimit-remaining-tokens"));
    // One token becomes available each second.
    assert!((59 - left).abs_diff(wait) <= 1, "{wait} s for {left} of 59");
    // Outputs may exceed the limit. They leave a debt that delays the next request.
    let debt = post(&router, ALICE, COMPLETIONS, &body(1, 200)).await;
    assert_eq!((debt.status, number(&debt, "x-ratelimit-remaining-tokens")), (200, 0));
    let refused = post(&router, ALICE, COMPLETIONS, &body(1, 1)).await;
    assert!(number(&refused, "retry-after") > 300, "{:?}", refused.headers);
    assert_eq!(num_rejections(&router, "tokens_per_minute").await, 2.0);
    router.wait_idle().await;
}

#[tokio::test]
async fn concurrent_requests_are_limited_by_tenant() {
    let plan = ShardPlan::endless().held();
    let router = router("max_concurrent_requests = 3", plan).await;
    let body = |n: u32| json!({"prompt": "x", "max_tokens": 5, "n": n});
    // The second output waits until the first one has computed the prompt.
    let num_open = |app: &App| app.served.stats.borrow().num_running + app.served.stats.borrow().num_waiting;
    let two = send(&router, ALICE, &body(2)).await;
    router.wait("two outputs", |app| num_open(app) == 2).await;
    let refused = post(&router, ALICE, COMPLETIONS, &body(2)).await;
    refused.fails(429, "rate_limit_exceeded");
    assert_eq!(number(&refused, "retry-after"), 1);
    let never = post(&router, ALICE, COMPLETIONS, &body(4)).await;
    never.refuses(400, "`max_concurrent_requests` of the tenant is 3");
    let third = send(&router, ALICE, &body(1)).await;
    router.wait("the third", |app| num_open(app) == 3).await;
    assert_eq!(post(&router, ALICE, COMPLETIONS, &body(1)).await.status, 429);
    let mut other = send(&router, BOB, &body(4)).await;
    router.wait("those of another", |app| num_open(app) == 7).await;
    drop((two, third));
    router.wait("those to be gone", |app| num_open(app) == 4).await;
    router.add_steps(1_000);
    assert_eq!(post(&router, ALICE, COMPLETIONS, &body(3)).await.status, 200);
    assert_eq!(other.answer().await.status, 200);
    assert_eq!(num_rejections(&router, "max_concurrent_requests").await, 2.0);
    router.wait_idle().await;
    assert_eq!(router.app.admission.open.available_permits(), router.app.limits.max_open);
}

#[tokio::test]
async fn requests_that_compute_nothing_count_among_the_open_ones() {
    let router = router("max_concurrent_requests = 1", ShardPlan::endless().held()).await;
    let mut open = send(&router, ALICE, &json!({"prompt": "x", "max_tokens": 5})).await;
    router.wait_running(1).await;
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "input": "x"});
    for (path, body) in [
        ("/tokenize", json!({"inputs": "x"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/chat_tokenize", chat.clone()),
        ("/v1/chat/completions/render", chat.clone()),
        ("/v1/messages/count_tokens", chat.clone()),
        ("/v1/responses/input_tokens", json!({"input": "x"})),
    ] {
        post(&router, ALICE, path, &body).await.fails(429, "rate_limit_exceeded");
        assert_eq!(post(&router, BOB, path, &body).await.status, 200, "{path}");
    }
    assert_eq!(num_rejections(&router, "max_concurrent_requests").await, 6.0);
    router.add_steps(1_000);
    assert_eq!(open.answer().await.status, 200);
    router.wait_idle().await;
    assert_eq!(post(&router, ALICE, "/tokenize", &json!({"inputs": "x"})).await.status, 200);
}

#[tokio::test]
async fn looks_at_the_cache_are_charged_to_the_rate_of_requests() {
    let router = router("requests_per_minute = 4", ShardPlan::default()).await;
    let node = "/v1/kv/tree/0-00000000000000000000000000000000";
    let first = router.ask(ALICE, "GET", "/v1/kv", &Value::Null).await;
    assert_eq!((first.status, number(&first, "x-ratelimit-remaining-requests")), (200, 3));
    router.ask(ALICE, "GET", "/v1/kv/tree", &Value::Null).await.ok();
    router.ask(ALICE, "GET", node, &Value::Null).await.fails(404, "node_not_found");
    router.ask(ALICE, "GET", "/v1/usage", &Value::Null).await.ok();
    let looks = [
        ("GET", "/v1/kv".to_owned()),
        ("GET", "/v1/kv/events".to_owned()),
        ("GET", "/v1/kv/tree".to_owned()),
        ("GET", node.to_owned()),
        ("DELETE", node.to_owned()),
        ("POST", format!("{node}/pin")),
        ("DELETE", format!("{node}/pin")),
        ("GET", "/v1/usage".to_owned()),
    ];
    for (method, path) in &looks {
        let refused = router.ask(ALICE, method, path, &Value::Null).await;
        refused.fails(429, "rate_limit_exceeded");
        assert!(number(&refused, "retry-after") > 0, "{method} {path}");
    }
    post(&router, ALICE, COMPLETIONS, &json!({"prompt": "x"})).await.fails(429, "rate_limit_exceeded");
    assert_eq!(num_rejections(&router, "requests_per_minute").await, looks.len() as f64 + 1.0);
    assert_eq!(router.ask(BOB, "GET", "/v1/kv", &Value::Null).await.status, 200);
}

#[tokio::test]
async fn rejected_requests_are_not_charged() {
    let limits = Limits { max_queued_requests: Some(1), ..Limits::default() };
    let plan = ShardPlan { max_step_sequences: 1, num_blocks: 16, ..ShardPlan::endless().held() };
    let router =
        Router::start_with_keys(&keys("requests_per_minute = 100\ntokens_per_minute = 1000"), plan, limits)
            .await;
    let body = json!({"prompt": vec![7; 100], "max_tokens": 5});
    let _running = send(&router, BOB, &body).await;
    router.wait_running(1).await;
    let _waiting = send(&router, BOB, &body).await;
    router.wait_queued(1).await;
    let refused = post(&router, ALICE, COMPLETIONS, &body).await;
    refused.fails(429, "queue_full");
    assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 100);
    assert_eq!(number(&refused, "x-ratelimit-remaining-tokens"), 1000);
}

#[tokio::test]
async fn a_tenant_that_fills_the_queue_leaves_a_place_for_others() {
    let limits = Limits { max_queued_requests: Some(4), ..Limits::default() };
    let plan = ShardPlan { max_step_sequences: 1, num_blocks: 16, ..ShardPlan::endless().held() };
    let router = Router::start_with_keys(&keys(""), plan, limits).await;
    let body = json!({"prompt": vec![7; 100], "max_tokens": 5});
    let mut open = vec![send(&router, ALICE, &body).await];
    router.wait_running(1).await;
    for count in 1..=3 {
        open.push(send(&router, ALICE, &body).await);
        router.wait_queued(count).await;
    }
    let refused = post(&router, ALICE, COMPLETIONS, &body).await;
    refused.fails(429, "queue_full");
    assert!(number(&refused, "retry-after") >= 1);
    refused.refuses(
        429,
        "share of the queue is full (3 of its requests are waiting, and 1 of 4 places are free",
    );
    open.push(send(&router, BOB, &body).await);
    router.wait_queued(4).await;
    router.add_steps(10_000);
    for mut connection in open {
        assert_eq!(connection.answer().await.status, 200);
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn reloaded_limits_apply_to_the_next_request_and_keep_the_use() {
    let router = router("requests_per_minute = 10", ShardPlan::default()).await;
    let body = json!({"prompt": "x", "max_tokens": 1});
    for _ in 0..8 {
        post(&router, ALICE, COMPLETIONS, &body).await.ok();
    }
    router.reload_keys(&keys("requests_per_minute = 100"));
    let answer = post(&router, ALICE, COMPLETIONS, &body).await;
    let left = number(&answer, "x-ratelimit-remaining-requests");
    assert!((19..40).contains(&left), "{left}");
    router.reload_keys(&keys(""));
    let answer = post(&router, ALICE, COMPLETIONS, &body).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-limit-requests")), (200, None));
}
