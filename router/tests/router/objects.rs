//! The object tier: several routers with their own stores share one object store.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use trunkline_engine::object::ObjectCounts;
use trunkline_engine::object::download::MAX_BUDGET;
use trunkline_object::{Location, Remote};
use trunkline_scheduler::LaneId;

use crate::faulty::{Fault, FaultyStore, Operation};
use crate::support::process::{PROGRAM, WithSettings, settings};
use crate::support::{Answer, Connection, DEADLINE, Router, ShardPlan, eventually};

/// A prompt of twelve full blocks of the mock shard and some more tokens.
const NUM_BLOCKS: u64 = 12;

fn prompt(first: u32) -> Vec<u32> {
    (first..first + 100).collect()
}

/// A router whose shard has a store. The shard computes so slowly that any object store is quicker.
struct Replica {
    router: Router,
    plan: ShardPlan,
    folder: TempDir,
}

impl Replica {
    async fn start(store: &FaultyStore) -> Self {
        Self::start_with(Remote::new(Arc::new(store.clone()), "kv/")).await
    }

    async fn start_with(remote: Remote) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = (folder.path().join("store"), 64);
        let plan = ShardPlan { store: Some(place), device_time_us: 1_000_000, ..ShardPlan::saying("!") };
        let router = Router::start_with_objects(plan.clone(), remote).await;
        Self { router, plan, folder }
    }

    /// Sends a prompt and returns its number of cached tokens.
    async fn complete(&self, prompt: &[u32]) -> u64 {
        let body = json!({"prompt": prompt, "max_tokens": 1});
        self.router.post("/v1/completions", &body).await.cached_tokens()
    }

    fn counts(&self) -> ObjectCounts {
        *self.router.app.served.objects.as_ref().unwrap().counts().borrow()
    }

    async fn wait_for(&self, what: &str, condition: impl FnMut(&ObjectCounts) -> bool) {
        let mut counts = self.router.app.served.objects.as_ref().unwrap().counts();
        let waited = tokio::time::timeout(DEADLINE, counts.wait_for(condition)).await;
        assert!(waited.is_ok(), "timed out waiting for {what}: {:?}", self.counts());
    }
}

/// Returns an object store with a prompt's blocks, uploaded by a replica that has ended.
async fn filled(prompt: &[u32]) -> FaultyStore {
    let store = FaultyStore::default();
    let replica = Replica::start(&store).await;
    assert_eq!(replica.complete(prompt).await, 0);
    replica.wait_for("uploads", |counts| counts.uploaded_blocks == NUM_BLOCKS).await;
    store.gets.lock().unwrap().clear();
    store
}

#[tokio::test]
async fn another_replica_continues_a_conversation() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    assert_eq!(other.complete(&prompt(0)).await, 8 * NUM_BLOCKS);
    assert_eq!(other.counts().downloaded_blocks, NUM_BLOCKS);
    assert_eq!(other.complete(&prompt(0)).await, 99, "now its device has it");
    assert_eq!(store.num_gets() as u64, NUM_BLOCKS);
    let totals = other.router.get("/v1/kv").await.ok();
    let got = (&totals["object_store"]["got_blocks"], &totals["object_store"]["failed"]);
    assert_eq!(got, (&json!(NUM_BLOCKS), &json!(0)));
    assert!(totals["object_store"]["got_bytes"].as_u64().unwrap() >= 64 * NUM_BLOCKS);
    assert_eq!(totals["tenants"][0]["tenant"], json!(null));
    assert_eq!(totals["tenants"][0]["disk_blocks"], json!(NUM_BLOCKS));
    // Downloaded blocks are not uploaded again.
    let longer = [prompt(0), vec![7; 60]].concat();
    assert!(other.complete(&longer).await >= 8 * NUM_BLOCKS);
    other.wait_for("uploads", |counts| counts.uploaded_blocks == 20 - NUM_BLOCKS).await;
    assert_eq!(other.counts().known_blocks, 0);
    assert_eq!(other.router.metric("trunkline_object_downloaded_blocks_total").await, NUM_BLOCKS as f64);
    other.router.wait_idle().await;
}

#[tokio::test]
async fn usage_tells_which_tokens_were_downloaded() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    // The first three blocks are on its own device.
    assert_eq!(other.complete(&prompt(0)[..30]).await, 0);
    other.router.wait_idle().await;
    let body = json!({"prompt": prompt(0), "max_tokens": 1});
    let answer = other.router.post("/v1/completions", &body).await.ok();
    let details = json!({"device": 24, "host": 0, "disk": 0, "object": 72});
    let expected = json!({"cached_tokens": 96, "cached_tokens_details": details});
    assert_eq!(answer["usage"]["prompt_tokens_details"], expected);
}

#[tokio::test]
async fn each_lane_shares_its_blocks() {
    let store = FaultyStore::default();
    let folder = tempfile::tempdir().unwrap();
    // Whichever lane computed a prompt and whichever is free in another server, the blocks are found.
    for (server, busy) in [("first", 0), ("second", 0), ("third", 1)] {
        let plan = |lane: u32| {
            let place = (folder.path().join(format!("{server}-{lane}")), 64);
            ShardPlan { store: Some(place), device_time_us: 1_000_000, ..ShardPlan::saying("!") }
        };
        let remote = Remote::new(Arc::new(store.clone()), "kv/");
        let router = Router::start_lanes_with_objects(vec![plan(0), plan(1)], remote).await;
        router.app.served.driver.set_drain(LaneId(busy), Some(0)).await;
        let body = json!({"prompt": prompt(0), "max_tokens": 1});
        let cached = router.post("/v1/completions", &body).await.cached_tokens();
        assert_eq!(cached, if server == "first" { 0 } else { 8 * NUM_BLOCKS }, "{server}");
        let mut counts = router.app.served.objects.as_ref().unwrap().counts();
        let is_done = |counts: &ObjectCounts| counts.uploaded_blocks + counts.downloaded_blocks == NUM_BLOCKS;
        assert!(tokio::time::timeout(DEADLINE, counts.wait_for(is_done)).await.is_ok(), "{server}");
        router.wait_idle().await;
    }
}

#[tokio::test]
async fn downloaded_blocks_survive_the_shard() {
    let store = filled(&prompt(0)).await;
    let mut other = Replica::start(&store).await;
    assert_eq!(other.complete(&prompt(0)).await, 8 * NUM_BLOCKS);
    other.router.kill_shard();
    other.router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    store.set(|_| Fault::Broken);
    // The killed shard's threads may still hold the lock, so the new shard opens a copy.
    let copy = other.folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["records", "blocks"] {
        std::fs::copy(other.folder.path().join("store").join(name), copy.join(name)).unwrap();
    }
    other.router.start_shard(ShardPlan { store: Some((copy, 64)), ..other.plan.clone() }).await;
    assert_eq!(other.complete(&prompt(0)).await, 8 * NUM_BLOCKS);
    assert_eq!(other.counts().downloaded_blocks, NUM_BLOCKS);
}

#[tokio::test]
async fn other_tenants_find_no_objects() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    let body = json!({"prompt": prompt(0), "max_tokens": 1, "cache_salt": "other"});
    assert_eq!(other.router.post("/v1/completions", &body).await.cached_tokens(), 0);
    assert_eq!(other.counts().downloaded_blocks, 0);
}

#[tokio::test]
async fn simultaneous_requests_share_downloads() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    let held = store.gate.forget_permits(Semaphore::MAX_PERMITS);
    let longer = [prompt(0), (0..50).collect()].concat();
    let (prompt, store_gets) = (prompt(0), store.gets.clone());
    let requests = [other.complete(&prompt), other.complete(&prompt), other.complete(&longer)];
    let release = async {
        // All requests are open before the store answers.
        other
            .router
            .wait("requests", |app| app.admission.open.available_permits() + 3 <= app.limits.max_open)
            .await;
        eventually("a download", async || !store_gets.lock().unwrap().is_empty()).await;
        store.gate.add_permits(held);
    };
    let (cached, ()) = tokio::join!(join_all(requests), release);
    assert!(cached.iter().all(|cached| *cached >= 8 * NUM_BLOCKS), "{cached:?}");
    assert_eq!(other.counts().downloaded_blocks, NUM_BLOCKS);
    let gets = store.gets.lock().unwrap();
    assert!(gets.values().all(|count| *count == 1), "{gets:?}");
}

#[tokio::test]
async fn a_failing_store_fails_no_request() {
    let store = filled(&prompt(0)).await;
    for fault in [Fault::Broken, Fault::Denied] {
        let other = Replica::start(&store).await;
        store.gets.lock().unwrap().clear();
        store.set(move |_| fault);
        for first in 0..20 {
            assert_eq!(other.complete(&prompt(first)).await, 0);
        }
        assert!(other.counts().failures > 0);
        assert!(store.num_gets() <= 16, "the store is no longer asked: {} gets", store.num_gets());
        assert_eq!(other.counts().uploaded_blocks, 0);
        store.set(|_| Fault::None);
    }
}

#[tokio::test]
async fn a_hung_store_costs_no_more_time_than_computing() {
    let store = filled(&prompt(0)).await;
    store.set(|_| Fault::Hangs);
    let mut other = Replica::start(&store).await;
    other.router.kill_shard();
    other.router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    let folder = other.folder.path().join("quick");
    let quick = ShardPlan { store: Some((folder, 64)), device_time_us: 100, ..other.plan.clone() };
    other.router.start_shard(quick).await;
    // The prompt is too short for a download, but long enough to measure the speed of computing.
    assert_eq!(other.complete(&[1, 2, 3]).await, 0);
    assert_eq!(other.complete(&prompt(0)).await, 0);
    assert_eq!(other.counts().timeouts, 1);
    assert_eq!(other.counts().downloaded_blocks, 0);
}

#[tokio::test]
async fn a_download_ends_at_the_deadline_of_its_request() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    // Computing is measured to be slow, so a request without a deadline would wait for the longest time.
    assert_eq!(other.complete(&[1, 2, 3]).await, 0);
    store.set(|_| Fault::Hangs);
    let begin = Instant::now();
    let body = json!({"prompt": prompt(0), "max_tokens": 1, "timeout": 0.2});
    other.router.post("/v1/completions", &body).await.fails(504, "deadline_exceeded");
    let elapsed = begin.elapsed();
    assert!(elapsed < MAX_BUDGET / 2, "{elapsed:?}");
    assert_eq!(other.counts().timeouts, 1);
}

#[tokio::test]
async fn repeated_misses_stop_asking_the_store() {
    let store = FaultyStore::default();
    // Uploads hang, so the store stays empty.
    store.set(|operation| if operation == Operation::Put { Fault::Hangs } else { Fault::None });
    let other = Replica::start(&store).await;
    for last in 0..30 {
        let cold = [prompt(0), vec![200 + last; 50]].concat();
        let body = json!({"prompt": cold, "max_tokens": 1, "cache_salt": "cold"});
        other.router.post("/v1/completions", &body).await.ok();
    }
    assert!(store.num_gets() <= 40, "{}", store.num_gets());
    let short: Vec<u32> = (60..91).collect();
    let before = store.num_gets();
    other.complete(&short).await;
    assert_eq!(store.num_gets(), before, "three blocks are not worth a download");
}

#[tokio::test]
async fn damaged_objects_are_computed_again_and_replaced() {
    let store = filled(&prompt(0)).await;
    let names: Vec<String> = store.objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(names.len() as u64, NUM_BLOCKS);
    // The objects are damaged in three ways.
    let whole = store.objects.lock().unwrap()[&names[0]].clone();
    for (index, name) in names.iter().enumerate() {
        let mut bytes = whole.to_vec();
        match index % 3 {
            0 => bytes.truncate(100),
            1 => bytes.extend([0; 9]),
            _ => bytes[20] ^= 1,
        }
        store.objects.lock().unwrap().insert(name.clone(), bytes.into());
    }
    let other = Replica::start(&store).await;
    assert_eq!(other.complete(&prompt(0)).await, 0);
    let counts = other.counts();
    assert_eq!((counts.downloaded_blocks, counts.failures), (0, 1));
    // Only the first object was read. It is replaced by the computed block; later requests find the others.
    other.wait_for("uploads", |counts| counts.uploaded_blocks + counts.known_blocks == NUM_BLOCKS).await;
    assert_eq!(other.counts().uploaded_blocks, 1);
    let third = Replica::start(&store).await;
    assert_eq!(third.complete(&prompt(0)).await, 8);
    assert_eq!(third.counts().failures, 1);
}

/// Removes the only path of the tree, and returns the answer.
async fn remove_all(replica: &Replica) -> Answer {
    let page = replica.router.get("/v1/kv/tree").await.ok();
    let first = page["data"].as_array().unwrap().iter().find(|node| node["parent"].is_null()).unwrap();
    let path = format!("/v1/kv/tree/{}", first["id"].as_str().unwrap());
    replica.router.connect().await.request("DELETE", &path, b"").await
}

#[tokio::test]
async fn removed_blocks_come_back_from_no_tier() {
    let folder = tempfile::tempdir().unwrap();
    let remote =
        || Location::parse(&format!("file://{}", folder.path().display())).unwrap().open_folder().unwrap();
    let replica = Replica::start_with(remote()).await;
    assert_eq!(replica.complete(&prompt(0)).await, 0);
    replica.wait_for("uploads", |counts| counts.uploaded_blocks == NUM_BLOCKS).await;
    let other = Replica::start_with(remote()).await;
    assert_eq!(other.complete(&prompt(0)).await, 8 * NUM_BLOCKS);
    replica.router.wait_idle().await;
    assert!(remove_all(&replica).await.ok()["removed_blocks"].as_u64().unwrap() >= NUM_BLOCKS);
    assert_eq!(replica.complete(&prompt(0)).await, 0);
    assert_eq!(replica.counts().downloaded_blocks, 0);
    // The server itself computes the blocks again, so they are uploaded again.
    replica.wait_for("uploads", |counts| counts.uploaded_blocks == 2 * NUM_BLOCKS).await;
    replica.router.wait_idle().await;
    remove_all(&replica).await.ok();
    let third = Replica::start_with(remote()).await;
    assert_eq!(third.complete(&prompt(0)).await, 0, "the object store has none of them");
}

#[tokio::test]
async fn a_removal_waits_for_uploads_and_ends_downloads() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    let all = store.gate.forget_permits(Semaphore::MAX_PERMITS);
    let request = tokio::spawn({
        let (address, body) = (other.router.address, json!({"prompt": prompt(0), "max_tokens": 1}));
        async move {
            Connection::open(address)
                .await
                .request("POST", "/v1/completions", body.to_string().as_bytes())
                .await
        }
    });
    eventually("a download", async || store.num_gets() > 0).await;
    // The first block is on its way. A removal of anything ends the download, for it may have the removed blocks.
    let objects = other.router.app.served.objects.as_ref().unwrap();
    let removal = objects.begin_removal().await.unwrap();
    store.gate.add_permits(all);
    drop(removal);
    assert_eq!(request.await.unwrap().cached_tokens(), 0);
    assert_eq!(other.counts().downloaded_blocks, 0);
}

#[tokio::test]
async fn nothing_is_removed_if_the_object_store_fails() {
    let store = filled(&prompt(0)).await;
    let other = Replica::start(&store).await;
    assert_eq!(other.complete(&prompt(0)).await, 8 * NUM_BLOCKS);
    other.router.wait_idle().await;
    store.set(|operation| if operation == Operation::Remove { Fault::Denied } else { Fault::None });
    remove_all(&other).await.fails(503, "object_store_failed");
    assert_eq!(other.complete(&prompt(0)).await, 99, "the device has it still");
    other.router.wait_idle().await;
    store.set(|_| Fault::None);
    remove_all(&other).await.ok();
    assert!(store.objects.lock().unwrap().is_empty());
    assert_eq!(other.complete(&prompt(0)).await, 0);
}

#[tokio::test]
async fn the_object_tier_needs_a_store_on_disk() {
    let store = FaultyStore::default();
    let remote = Remote::new(Arc::new(store.clone()), "");
    let router = Router::start_with_objects(ShardPlan::default(), remote).await;
    let body = json!({"prompt": prompt(0), "max_tokens": 1});
    router.post("/v1/completions", &body).await.ok();
    assert_eq!(store.num_gets(), 0);
}

#[test]
fn an_invalid_url_gives_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    crate::support::write_model(folder.path());
    let mut settings = settings(folder.path());
    settings.cache.kv_object_store = Some("s3://key:secret@bucket".into());
    let done = Command::new(PROGRAM).with_settings(folder.path(), &settings).output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: `--kv-object-store` contains a user; hint: "), "{stderr}");
    assert!(!stderr.contains("secret"), "{stderr}");
}
