//! Stores of the shard. One in its memory works like one on disk, but it reports another tier, and it is empty whenever
//! a stream begins. A disk that does not answer fails no request, and the router waits for it only as long as computing
//! would take.

use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Router, ShardPlan};

/// Sends a prompt of twelve and a half blocks and returns its number of cached tokens.
async fn complete(router: &Router, first: u32) -> u64 {
    let prompt: Vec<u32> = (first..first + 100).collect();
    router.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.cached_tokens()
}

/// Starts a router whose pool has room for two prompts, and sends four.
async fn overfilled(plan: &ShardPlan) -> Router {
    let router = Router::with(plan.clone()).await;
    for first in [0, 40, 80, 120] {
        assert_eq!(complete(&router, first).await, 0);
        router.wait_idle().await;
    }
    router
}

#[tokio::test]
async fn blocks_in_host_memory_are_found_until_the_stream_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some((folder.path().join("store"), 64));
    let plan = ShardPlan { store, is_store_in_memory: true, num_blocks: 30, ..ShardPlan::saying("!") };
    let mut router = overfilled(&plan).await;
    assert_eq!(complete(&router, 0).await, 96, "the device has forgotten it, the host has not");
    router.wait_idle().await;
    let totals = router.get("/v1/kv").await.ok();
    assert_eq!(json!([totals["disk"], totals["host"]["slots"]]), json!([null, 64]));
    assert_eq!(json!([totals["host"]["blocks"], totals["host"]["restored"]]), json!([48, 12]));

    // Another shard opens another stream.
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    let store = Some((folder.path().join("other"), 64));
    router.start_shard(ShardPlan { store, ..plan }).await;
    assert_eq!(complete(&router, 0).await, 0);
    router.wait_idle().await;
    assert_eq!(router.get("/v1/kv").await.ok()["host"]["blocks"], json!(12));
}

#[tokio::test]
async fn usage_tells_which_tier_had_the_cached_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for (is_store_in_memory, tier) in [(true, "host"), (false, "disk")] {
        let store = Some((folder.path().join(tier), 64));
        let plan = ShardPlan { store, is_store_in_memory, num_blocks: 30, ..ShardPlan::saying("!") };
        let router = overfilled(&plan).await;
        let prompt: Vec<u32> = (0..100).collect();
        let ask = async |prompt: &[u32]| {
            let answer =
                router.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.ok();
            router.wait_idle().await;
            answer["usage"]["prompt_tokens_details"].clone()
        };
        let mut details = json!({"device": 0, "host": 0, "disk": 0, "object": 0});
        details[tier] = json!(48);
        let begins = json!({"cached_tokens": 48, "cached_tokens_details": details});
        assert_eq!(ask(&prompt[..50]).await, begins, "{tier}");
        assert_eq!(ask(&prompt[..50]).await, json!({"cached_tokens": 49}), "all of it is on the device");
        details["device"] = json!(48);
        let both = json!({"cached_tokens": 96, "cached_tokens_details": details});
        assert_eq!(ask(&prompt).await, both, "{tier}");
    }
}

#[tokio::test]
async fn a_hung_read_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some((folder.path().join("store"), 64));
    let plan = ShardPlan { store, num_blocks: 30, ..ShardPlan::saying("!") };
    let router = overfilled(&plan).await;
    let held = plan.reads.forget_permits(Semaphore::MAX_PERMITS);
    assert_eq!(complete(&router, 0).await, 0, "computed, though it is on disk");
    assert_eq!(router.metric("trunkline_restores_given_up_total").await, 1.0);
    assert_eq!(router.metric("trunkline_kv_blocks_late").await, 12.0);
    // The next request does not even try to read.
    assert_eq!(complete(&router, 40).await, 0);
    assert_eq!(router.metric("trunkline_restores_given_up_total").await, 1.0);
    assert!(router.metric("trunkline_restores_declined_total").await >= 1.0);
    plan.reads.add_permits(held);
    router.wait("the late blocks", |app| app.served.stats.borrow().blocks_late == 0).await;
    router.wait_idle().await;
    assert_eq!(complete(&router, 80).await, 96, "read from the disk again");
    assert_eq!(router.metric("trunkline_restored_blocks_total").await, 12.0);
    assert_eq!(router.metric("trunkline_kv_blocks_late").await, 0.0);
}
