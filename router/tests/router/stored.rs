//! The router indexes the blocks that a shard lists when it connects.

use serde_json::json;
use trunkline_base::limits::Limits;
use trunkline_engine::shard::{proto, stored_blocks_from_proto};
use trunkline_scheduler::{BlockKey, SlotId, StoredBlock};

use crate::support::{Router, ShardPlan};

/// Sends a prompt of twelve and a half blocks and returns its number of cached tokens.
async fn complete(router: &Router) -> u64 {
    let prompt: Vec<u32> = (0..100).collect();
    let answer = router.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.ok();
    router.wait_idle().await;
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Waits until the driver knows of this number of stored blocks. The outcomes of writes come after the result of their
/// step, and a shard is ready before the statistics of its store are published.
async fn wait_stored(router: &Router, count: u64) {
    router.wait("stored blocks", |app| app.served.stats.borrow().store_blocks == count).await;
}

#[tokio::test]
async fn a_restarted_shard_lists_its_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let plan = ShardPlan { store: Some((folder.path().join("store"), 64)), ..ShardPlan::saying("!") };
    let mut router = Router::start(plan.clone(), Limits::default()).await;
    assert_eq!(complete(&router).await, 0);
    wait_stored(&router, 12).await;
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    router.start_shard(plan.clone()).await;
    wait_stored(&router, 12).await;
    assert_eq!(router.metric("trunkline_store_blocks").await, 12.0);
    assert_eq!(complete(&router).await, 96);

    // A shard that cannot list its blocks serves without its store.
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    router.start_shard(ShardPlan { is_store_unreadable: true, ..plan }).await;
    assert_eq!(router.metric("trunkline_store_slots").await, 0.0);
    assert_eq!(complete(&router).await, 0);
}

#[test]
fn a_list_that_cannot_be_is_refused() {
    let piece = proto::StoreContentsResponse {
        slots: vec![4, 7],
        keys: [[1; 16], [2; 16]].concat(),
        parent_keys: [[9; 16], [1; 16]].concat(),
        depths: vec![0, 1],
        sequences: vec![30, 31],
    };
    let key = |byte| BlockKey::from_bytes([byte; 16]);
    let first = StoredBlock { slot: SlotId(4), key: key(1), parent: None, depth: 0, sequence: 30 };
    let second = StoredBlock { slot: SlotId(7), key: key(2), parent: Some(key(1)), depth: 1, sequence: 31 };
    assert_eq!(stored_blocks_from_proto(&piece, 4..8).unwrap(), [first, second]);

    let refused = |change: fn(&mut proto::StoreContentsResponse)| {
        let mut piece = piece.clone();
        change(&mut piece);
        stored_blocks_from_proto(&piece, 4..8).unwrap_err().to_string()
    };
    let lengths = "shard sent an invalid message: the lists of a piece of 2 stored blocks differ in length";
    assert_eq!(refused(|piece| piece.keys.truncate(31)), lengths);
    assert_eq!(refused(|piece| piece.parent_keys.extend([0; 16])), lengths);
    assert_eq!(refused(|piece| piece.depths.truncate(1)), lengths);
    assert_eq!(refused(|piece| piece.sequences.push(1)), lengths);
    let slot = |slot, first| {
        format!("shard sent an invalid message: a stored block is in slot {slot}, expected {first}..8")
    };
    assert_eq!(refused(|piece| piece.slots[0] = 3), slot(3, 4));
    assert_eq!(refused(|piece| piece.slots[1] = 4), slot(4, 5));
    assert_eq!(refused(|piece| piece.slots[1] = 8), slot(8, 5));
    assert_eq!(refused(|piece| piece.slots[0] = u32::MAX), slot(u32::MAX, 4));
}
