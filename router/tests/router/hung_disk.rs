//! A disk that does not answer fails no request, and the router waits for it only as long as computing would take.

use serde_json::json;
use tokio::sync::Semaphore;
use trunkline_router::limits::Limits;

use crate::support::{Router, ShardPlan};

fn prompt(first: u32) -> Vec<u32> {
    (first..first + 100).collect()
}

/// Sends a prompt and returns its number of cached tokens.
async fn complete(router: &Router, prompt: &[u32]) -> u64 {
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let answer = router.post("/v1/completions", &body).await.ok();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_hung_read_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    // The pool has room for two prompts, so blocks that were not used recently have to be read.
    let store = Some((folder.path().join("store"), 64));
    let plan = ShardPlan { store, num_blocks: 30, ..ShardPlan::saying("!") };
    let router = Router::start(plan.clone(), Limits::default()).await;
    for first in [0, 40, 80, 120] {
        assert_eq!(complete(&router, &prompt(first)).await, 0);
    }
    let held = plan.reads.forget_permits(Semaphore::MAX_PERMITS);
    assert_eq!(complete(&router, &prompt(0)).await, 0, "computed, though it is on disk");
    assert_eq!(router.metric("trunkline_restores_given_up_total").await, 1.0);
    assert_eq!(router.metric("trunkline_kv_blocks_late").await, 12.0);
    // The next request does not even try to read.
    assert_eq!(complete(&router, &prompt(40)).await, 0);
    assert_eq!(router.metric("trunkline_restores_given_up_total").await, 1.0);
    assert!(router.metric("trunkline_restores_declined_total").await >= 1.0);
    plan.reads.add_permits(held);
    router.wait("the late blocks", |app| app.served.stats.borrow().blocks_late == 0).await;
    router.wait_idle().await;
    assert_eq!(complete(&router, &prompt(80)).await, 96, "read from the disk again");
    assert_eq!(router.metric("trunkline_restored_blocks_total").await, 12.0);
    assert_eq!(router.metric("trunkline_kv_blocks_late").await, 0.0);
}
