//! Many requests that are open at once: how many there may be, and what they hold in memory.

use futures::future::join_all;
use serde_json::{Value, json};
use trunkline_base::limits::{Limits, ServerLimits, UNCOUNTED_REQUEST_BYTES, open_requests};

use crate::support::{Answer, Connection, Router, ShardPlan, eventually};

const COMPLETIONS: &str = "/v1/completions";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str =
    "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";

async fn send(router: &Router, key: &str, body: &Value) -> Connection {
    let mut connection = router.connect().await;
    connection.send_with("POST", COMPLETIONS, &[("x-api-key", key)], body.to_string().as_bytes()).await;
    connection
}

async fn answers(open: &mut [Connection]) -> Vec<Answer> {
    join_all(open.iter_mut().map(Connection::answer)).await
}

/// GuideLLM's default sweep opens 512 requests at once.
#[tokio::test]
async fn five_hundred_and_twelve_requests_at_once_are_answered() {
    let max_open = open_requests(512 * UNCOUNTED_REQUEST_BYTES);
    let limits = ServerLimits { max_open, ..ServerLimits::default() };
    let plan =
        ShardPlan { max_step_sequences: 64, num_blocks: 8192, keep_plans: false, ..ShardPlan::default() };
    let router = Router::start(plan.held(), limits).await;
    let body = json!({"prompt": "one of many", "max_tokens": 4});
    let mut open = join_all((0..512).map(|_| send(&router, "", &body))).await;
    router
        .wait("all to wait or run", |app| {
            let stats = *app.served.stats.borrow();
            stats.num_waiting + stats.num_running == 512
        })
        .await;
    router.post(COMPLETIONS, &body).await.fails(429, "too_many_requests");
    router.add_steps(100_000);
    assert!(answers(&mut open).await.iter().all(|answer| answer.status == 200));
    router.wait_places().await;
}

#[tokio::test]
async fn prompts_of_a_tenant_leave_memory_to_others() {
    // Bodies and prompts share 512 KiB beside the first part of each request.
    let requests = Limits { max_body_bytes: 16 << 10, ..Limits::default() };
    let limits = ServerLimits { min_requests_bytes: 0, ..requests.into() };
    let plan = ShardPlan { num_blocks: 16_384, max_step_tokens: 4096, ..ShardPlan::default() };
    let router = Router::start_with_keys(KEYS, plan.held(), limits).await;
    let free = || router.app.admission.requests.free.available_permits();
    let all = free();
    // The prompt and its index take 128 KiB in each output.
    let body = json!({"prompt": "x".repeat(4096), "max_tokens": 1});
    let mut open = Vec::new();
    for num_open in 1..=7 {
        open.push(send(&router, ALICE, &body).await);
        eventually("the memory", async || all - free() == 64 * num_open).await;
    }
    let refused = router.ask(ALICE, "POST", COMPLETIONS, &body).await;
    let message = refused.fails(429, "too_many_bodies");
    assert_eq!(
        message,
        "other requests use the memory that you have for bodies and prompts; hint: retry after 1 s"
    );
    assert_eq!((all - free(), refused.header("retry-after")), (7 * 64, Some("1")));
    let several = json!({"prompt": "x".repeat(4096), "max_tokens": 1, "n": 8});
    router.ask(ALICE, "POST", COMPLETIONS, &several).await.refuses(
        400,
        "8 outputs at once, whose prompts take 1048576 bytes of memory, but one sender gets at most 458752",
    );
    // Short prompts do not count.
    open.push(send(&router, ALICE, &json!({"prompt": "x", "max_tokens": 1})).await);
    let of_another = json!({"prompt": "x".repeat(3072), "max_tokens": 1});
    open.push(send(&router, BOB, &of_another).await);
    eventually("the other tenant's prompt", async || free() == 32).await;
    router.add_steps(10_000);
    assert!(answers(&mut open).await.iter().all(|answer| answer.status == 200));
    eventually("the memory to be free", async || free() == all).await;
}

#[tokio::test]
async fn each_output_gives_back_its_part_of_the_memory() {
    let plan = ShardPlan { num_blocks: 16_384, max_step_tokens: 4096, ..ShardPlan::default() };
    let router = Router::start(plan.held(), ServerLimits::default()).await;
    let free = router.app.admission.requests.free.clone();
    let all = free.available_permits();
    let body = json!({"prompt": "x".repeat(4096), "max_tokens": 1, "n": 3, "prompt_logprobs": 0});
    let mut open = [send(&router, "", &body).await];
    // Three prompts of 128 KiB and 8 or 12 bytes of logprobs a token, without the first 64 KiB.
    eventually("the memory", async || all - free.available_permits() >= 3 * 128 - 64 + 32).await;
    router.add_steps(10_000);
    assert_eq!(answers(&mut open).await[0].status, 200);
    eventually("the memory to be free", async || free.available_permits() == all).await;
}

/// A body whose values take far more memory than its text counts for them.
#[tokio::test]
async fn values_of_a_small_body_count() {
    let requests = Limits { max_body_bytes: 16 << 10, ..Limits::default() };
    let router =
        Router::start(ShardPlan::default(), ServerLimits { min_requests_bytes: 0, ..requests.into() }).await;
    let many =
        |count: usize| json!({"prompt": "x", "max_tokens": 1, "metadata": {"a": vec![json!([]); count]}});
    router.post(COMPLETIONS, &many(100)).await.ok();
    router.post(COMPLETIONS, &many(4000)).await.fails(429, "too_many_bodies");
    // Strings have none.
    router.post(COMPLETIONS, &json!({"prompt": "[\"".repeat(4000), "max_tokens": 1})).await.ok();
}
