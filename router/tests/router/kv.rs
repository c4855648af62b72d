//! The routes below `/v1/kv` that list the cache and remove nodes.

use serde_json::{Value, json};

use trunkline_base::limits::{Limits, MAX_LOOKS};

use crate::support::{Answer, Router, ShardPlan};

const COMPLETIONS: &str = "/v1/completions";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str =
    "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";

async fn complete(router: &Router, prompt: &[u32], salt: &str) -> u64 {
    let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
    let answer = router.post(COMPLETIONS, &body).await;
    router.wait_idle().await;
    answer.cached_tokens()
}

async fn delete(router: &Router, id: &str) -> Answer {
    router.connect().await.request("DELETE", &format!("/v1/kv/tree/{id}"), b"").await
}

async fn walk(router: &Router, limit: usize) -> Vec<Value> {
    let (mut nodes, mut query) = (Vec::new(), format!("?limit={limit}"));
    loop {
        let page = router.get(&format!("/v1/kv/tree{query}")).await.ok();
        let data = page["data"].as_array().unwrap().clone();
        assert!(data.len() <= limit);
        nodes.extend(data.into_iter().map(|mut node| {
            assert!(node.as_object_mut().unwrap().remove("age_ms").unwrap().is_u64());
            node
        }));
        let Some(next) = page["next"].as_u64() else { return nodes };
        query = format!("?limit={limit}&after={next}");
    }
}

#[tokio::test]
async fn the_cache_is_listed_and_parts_of_it_are_removed() {
    let router = Router::saying("!").await;
    let shared: Vec<u32> = (1..33).collect();
    let (one, two) = ([shared.clone(), vec![40; 17]].concat(), [shared, vec![50; 17]].concat());
    assert_eq!(complete(&router, &one, "a").await, 0);
    assert_eq!(complete(&router, &two, "a").await, 32);
    assert_eq!(complete(&router, &one, "b").await, 0);

    let totals = router.get("/v1/kv").await.ok();
    assert_eq!(totals["block_size"], 8);
    assert_eq!(totals["hit_tokens"], 32);
    assert_eq!(totals["device"]["held"], 0);
    assert_eq!(json!([totals["disk"], totals["object_store"]]), json!([null, null]));
    let tenants = totals["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 1, "without keys there is one anonymous tenant");
    assert_eq!(json!([tenants[0]["tenant"], tenants[0]["disk_blocks"]]), json!([null, null]));
    assert_eq!(tenants[0]["device_cached"], totals["device"]["cached"]);

    let nodes = walk(&router, 2).await;
    assert_eq!(nodes, walk(&router, 1000).await);
    let cached: u64 = nodes.iter().map(|node| node["blocks"].as_u64().unwrap()).sum();
    assert_eq!(totals["device"]["cached"], cached);
    let fork = nodes.iter().find(|node| node["children"] == 2).unwrap();
    assert_eq!(json!([fork["tokens"], fork["hits"], fork["parent"]]), json!([32, 1, null]));
    let namespaces: std::collections::BTreeSet<&str> =
        nodes.iter().map(|node| node["namespace"].as_str().unwrap()).collect();
    assert_eq!(namespaces.len(), 2);

    let removed = delete(&router, fork["id"].as_str().unwrap()).await.ok();
    assert!(removed["removed_blocks"].as_u64().unwrap() >= 4);
    assert_eq!(complete(&router, &two, "a").await, 0);
    assert_eq!(complete(&router, &one, "b").await, 48, "the other salt is unchanged");
}

#[tokio::test]
async fn a_tenants_looks_wait_for_its_own_and_not_for_those_of_others() {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), Limits::default()).await;
    let looks = &router.app.admission.looks;
    let turn = looks.take(Some("alice"), None).await.unwrap();
    let mut waiting = router.connect().await;
    waiting.send_with("GET", "/v1/kv", &[("x-api-key", ALICE)], b"").await;
    for path in ["/v1/kv", "/v1/kv/tree", "/v1/usage"] {
        router.ask(BOB, "GET", path, &Value::Null).await.ok();
    }
    assert!(waiting.stream.try_read(&mut [0]).is_err(), "it is answered before the one before it");
    drop(turn);
    waiting.answer().await.ok();

    // Looks that wait hold up nothing else.
    let mut turns = Vec::new();
    for number in 0..MAX_LOOKS {
        turns.push(looks.take(Some(&number.to_string()), None).await.unwrap());
    }
    let mut waiting = router.connect().await;
    waiting.send_with("GET", "/v1/kv", &[("x-api-key", ALICE)], b"").await;
    router.ask(BOB, "POST", COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1})).await.ok();
    assert!(waiting.stream.try_read(&mut [0]).is_err(), "more are answered at once than allowed");
    drop(turns);
    waiting.answer().await.ok();
}

#[tokio::test]
async fn without_keys_looks_take_turns_by_address() {
    let router = Router::default().await;
    let turn = router.app.admission.looks.take(Some("127.0.0.1"), None).await.unwrap();
    let mut waiting = router.connect().await;
    waiting.send("GET", "/v1/kv", b"").await;
    router.connect_from_other().await.request("GET", "/v1/kv", b"").await.ok();
    assert!(waiting.stream.try_read(&mut [0]).is_err(), "it is answered before the one before it");
    drop(turn);
    waiting.answer().await.ok();
}

#[tokio::test]
async fn unknown_nodes_are_reported() {
    let router = Router::default().await;
    for id in ["7", "0-00", "x-00000000000000000000000000000000", "0-00000000000000000000000000000000"] {
        let answer = delete(&router, id).await;
        answer.fails(404, "node_not_found");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "after=-1"] {
        router.get(&format!("/v1/kv/tree?{query}")).await.fails(400, "invalid_value");
    }
}
