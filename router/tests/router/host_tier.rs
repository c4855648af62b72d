//! A store in the shard's memory. It works like one on disk, but it reports another tier, and it is empty whenever a
//! stream begins.

use serde_json::{Value, json};
use trunkline_router::limits::Limits;

use crate::support::{Router, ShardPlan};

/// Sends a prompt of twelve and a half blocks and returns its number of cached tokens.
async fn complete(router: &Router, first: u32) -> u64 {
    let prompt: Vec<u32> = (first..first + 100).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let answer = router.post("/v1/completions", &body).await.ok();
    router.wait_idle().await;
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn blocks_in_host_memory_are_found_until_the_stream_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some((folder.path().join("store"), 64));
    // The pool has room for two prompts.
    let plan = ShardPlan { store, is_store_in_memory: true, num_blocks: 30, ..ShardPlan::saying("!") };
    let mut router = Router::start(plan.clone(), Limits::default()).await;
    for first in [0, 40, 80, 120] {
        assert_eq!(complete(&router, first).await, 0);
    }
    assert_eq!(complete(&router, 0).await, 96, "the device has forgotten it, the host has not");
    let totals = router.get("/v1/kv").await.ok();
    assert_eq!((&totals["disk"], &totals["host"]["slots"]), (&Value::Null, &json!(64)));
    assert_eq!((&totals["host"]["blocks"], &totals["host"]["restored"]), (&json!(48), &json!(12)));

    // Another shard opens another stream.
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    let store = Some((folder.path().join("other"), 64));
    router.start_shard(ShardPlan { store, ..plan }).await;
    assert_eq!(complete(&router, 0).await, 0);
    assert_eq!(router.get("/v1/kv").await.ok()["host"]["blocks"], json!(12));
}
