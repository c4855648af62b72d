//! Routes for single nodes of the KV cache: text, groups and pins, and what each tenant may see.

use serde_json::{Value, json};
use trunkline_base::limits::ServerLimits;

use crate::support::{Router, ShardPlan, bytes};

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const ADMIN: &str = "sk-admin-0123456789";
const KEYS: &str = "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\nshare = 2\n\
                    [tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n\
                    [tenants.root]\nkeys = \"sk-admin-0123456789\"\nadmin = true\n";

/// Blocks of 8 tokens. The three tenants' shares are 16, 8 and 8 blocks, and 16 blocks may be pinned.
const NUM_BLOCKS: u32 = 32;

async fn router(folder: &tempfile::TempDir) -> Router {
    let limits = ServerLimits { max_pinned_percent: 50, ..ServerLimits::default() };
    let store = Some((folder.path().join("store"), 64));
    let plan = ShardPlan { num_blocks: NUM_BLOCKS, store, ..ShardPlan::saying("!") };
    Router::start_with_keys(KEYS, plan, limits).await
}

async fn complete(router: &Router, key: &str, body: &Value) -> Value {
    let answer = router.ask(key, "POST", "/v1/completions", body).await.ok();
    router.wait_running(0).await;
    answer
}

async fn nodes(router: &Router, key: &str, query: &str) -> Vec<Value> {
    let page = router.ask(key, "GET", &format!("/v1/kv/tree{query}"), &Value::Null).await.ok();
    page["data"].as_array().unwrap().clone()
}

fn path_of(node: &Value, rest: &str) -> String {
    format!("/v1/kv/tree/{}{rest}", node["id"].as_str().unwrap())
}

#[tokio::test]
async fn only_the_tenant_and_admins_see_a_prompts_text() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&folder).await;
    let text = "A prompt of more than two blocks.";
    complete(&router, ALICE, &json!({"prompt": bytes(text), "max_tokens": 1})).await;
    let found = nodes(&router, ALICE, "").await;
    let first = found.iter().find(|node| node["parent"].is_null()).unwrap();
    for key in [ALICE, ADMIN] {
        let shown = router.ask(key, "GET", &path_of(first, "?text=true"), &Value::Null).await.ok();
        assert_eq!(shown["text"], text[..32], "{key}");
        assert_eq!((&shown["text_tokens"], &shown["id"]), (&json!(32), &first["id"]));
        let shown = router.ask(key, "GET", &path_of(first, ""), &Value::Null).await.ok();
        assert_eq!(json!([shown["text"], shown["tokens"]]), json!([null, 32]));
    }
    for rest in ["", "?text=true"] {
        let refused = router.ask(BOB, "GET", &path_of(first, rest), &Value::Null).await;
        assert_eq!(refused.status, 404, "{rest}");
        assert!(!refused.text().contains("prompt of"), "{rest}");
    }
    let wrong = router.ask(ALICE, "GET", &path_of(first, "?text=maybe"), &Value::Null).await;
    assert_eq!(wrong.status, 400);
}

/// Walks the tree in pages of `limit` nodes. Returns the pages' nodes and cursors.
async fn pages(router: &Router, key: &str, limit: usize) -> Vec<(Vec<Value>, Value)> {
    let (mut pages, mut query) = (Vec::new(), format!("?limit={limit}"));
    loop {
        let page = router.ask(key, "GET", &format!("/v1/kv/tree{query}"), &Value::Null).await.ok();
        let next = page["next"].clone();
        pages.push((page["data"].as_array().unwrap().clone(), next.clone()));
        if next.is_null() {
            return pages;
        }
        query = format!("?limit={limit}&after={next}");
    }
}

#[tokio::test]
async fn pages_of_the_tree_tell_nothing_of_other_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&folder).await;
    for number in 0..4_u32 {
        for (key, first) in [(BOB, 10), (ALICE, 20), (BOB, 30)] {
            complete(&router, key, &json!({"prompt": vec![first + number; 9], "max_tokens": 1})).await;
        }
    }
    let own = nodes(&router, ALICE, "?limit=1000").await;
    let number =
        |node: &Value| -> u32 { node["id"].as_str().unwrap().split_once('-').unwrap().0.parse().unwrap() };
    for limit in 1..=own.len() {
        let pages = pages(&router, ALICE, limit).await;
        let sizes: Vec<usize> = pages.iter().map(|(nodes, _)| nodes.len()).collect();
        let expected: Vec<usize> = own.chunks(limit).map(<[Value]>::len).collect();
        assert_eq!(sizes, expected, "as if there were no other tenants");
        for (index, (_, next)) in pages.iter().enumerate().take(pages.len() - 1) {
            assert_eq!(*next, json!(number(&pages[index + 1].0[0])), "a cursor is a node of the caller's");
        }
    }
    // The cursors of others and made-up ones give a page of the caller's nodes, as one that is out of date does.
    let others = nodes(&router, BOB, "?limit=1000").await;
    for cursor in others.iter().map(number).chain([0, 1, 7, 1 << 31, u32::MAX]) {
        for node in nodes(&router, ALICE, &format!("?limit=1000&after={cursor}")).await {
            assert!(own.iter().any(|known| known["id"] == node["id"]), "{node}");
        }
    }
    let all = nodes(&router, ADMIN, "?limit=1000").await;
    assert_eq!(all.len(), own.len() + others.len());
    assert!(!all.iter().map(number).is_sorted(), "numbers do not tell how many nodes came before");
}

#[tokio::test]
async fn without_keys_no_text_is_shown() {
    let router = Router::default().await;
    let body = json!({"prompt": bytes("A prompt of more than two blocks."), "max_tokens": 1});
    router.post("/v1/completions", &body).await.ok();
    router.wait_idle().await;
    let page = router.get("/v1/kv/tree").await.ok();
    let first = &page["data"][0];
    assert_eq!(router.get(&path_of(first, "")).await.ok()["text"], Value::Null);
    router.get(&path_of(first, "?text=true")).await.fails(403, "text_not_shown");
}

#[tokio::test]
async fn only_its_tenant_can_pin_and_unpin_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&folder).await;
    let body = json!({"prompt": vec![7; 41], "max_tokens": 1});
    complete(&router, ALICE, &body).await;
    let node = nodes(&router, ALICE, "").await.into_iter().find(|node| node["parent"].is_null()).unwrap();
    let pin = path_of(&node, "/pin");
    assert_eq!(router.ask(BOB, "POST", &pin, &json!({})).await.status, 404);
    assert_eq!(router.ask(BOB, "DELETE", &pin, &Value::Null).await.status, 404);
    let pinned = router.ask(ALICE, "POST", &pin, &json!({"ttl_s": 60})).await.ok();
    assert_eq!(pinned, json!({"pinned_tokens": 40, "disk_pinned_tokens": 40, "ttl_s": 60}));
    let seen = router.ask(ADMIN, "GET", &path_of(&node, ""), &Value::Null).await.ok();
    assert_eq!(json!([seen["pinned"], seen["disk_pinned"]]), json!([5, 5]));
    assert!((1..=60_000).contains(&seen["pin_ends_in_ms"].as_u64().unwrap()), "{seen}");
    let totals = router.ask(ALICE, "GET", "/v1/kv", &Value::Null).await.ok();
    let tenants = totals["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 1, "its own");
    assert_eq!(
        json!([tenants[0]["tenant"], tenants[0]["device_pinned"], tenants[0]["disk_pinned"]]),
        json!(["alice", 5, 5])
    );
    assert_eq!(json!([totals["device"]["pinned"], totals["disk"]["pinned"]]), json!([5, 5]));
    // An admin's pin counts towards the share of the node's tenant.
    let unpinned = router.ask(ADMIN, "DELETE", &pin, &Value::Null).await.ok();
    assert_eq!(unpinned, json!({"unpinned_blocks": 5}));
    let totals = router.ask(ADMIN, "GET", "/v1/kv", &Value::Null).await.ok();
    assert_eq!(json!([totals["device"]["pinned"], totals["disk"]["pinned"]]), json!([0, 0]));
    let names: Vec<&Value> = totals["tenants"].as_array().unwrap().iter().map(|of| &of["tenant"]).collect();
    assert!(names.contains(&&json!("alice")), "{names:?}");
}

#[tokio::test]
async fn pins_of_nodes_respect_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&folder).await;
    // Bob's share is 8 blocks on the device and 16 on the disk.
    complete(&router, BOB, &json!({"prompt": vec![7; 81], "max_tokens": 1})).await;
    let node = nodes(&router, BOB, "").await.into_iter().find(|node| node["parent"].is_null()).unwrap();
    let pinned = router.ask(BOB, "POST", &path_of(&node, "/pin"), &json!({})).await.ok();
    assert_eq!(pinned, json!({"pinned_tokens": 0, "disk_pinned_tokens": 80, "ttl_s": 300}));
    complete(&router, BOB, &json!({"prompt": vec![9; 73], "max_tokens": 1})).await;
    let all = nodes(&router, BOB, "").await;
    let other = all.iter().find(|node| node["parent"].is_null() && node["tokens"] == 72).unwrap();
    router.ask(BOB, "POST", &path_of(other, "/pin"), &json!({})).await.fails(409, "pin_refused");
    for ttl_s in [0, 86_401] {
        let wrong = router.ask(BOB, "POST", &path_of(other, "/pin"), &json!({"ttl_s": ttl_s})).await;
        assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("ttl_s")), "{ttl_s}");
    }
    let gone = "/v1/kv/tree/0-00000000000000000000000000000000/pin";
    assert_eq!(router.ask(BOB, "POST", gone, &json!({})).await.status, 404);
}

#[tokio::test]
async fn nodes_are_found_by_the_prompt_cache_key_of_their_requests() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(&folder).await;
    let ask_for = |last: u32, name: &str| {
        let prompt = [vec![7; 16], vec![last; 16], vec![1]].concat();
        json!({"prompt": prompt, "max_tokens": 1, "prompt_cache_key": name})
    };
    for (last, name) in [(20, "chat one"), (21, "two"), (20, "chat one"), (22, "three"), (23, "4"), (24, "5")]
    {
        complete(&router, ALICE, &ask_for(last, name)).await;
    }
    let names = |node: &Value| node["prompt_cache_keys"].clone();
    let all = nodes(&router, ALICE, "").await;
    let shared = all.iter().find(|node| node["parent"].is_null()).unwrap();
    assert_eq!(names(shared), json!(["chat one", "three", "4", "5"]), "the last four");
    let found = nodes(&router, ALICE, "?prompt_cache_key=chat%20one").await;
    assert!(found.len() >= 2 && found.len() < all.len(), "{found:?}");
    assert!(found.iter().all(|node| names(node).as_array().unwrap().contains(&json!("chat one"))));
    let two = nodes(&router, ALICE, "?prompt_cache_key=two").await;
    assert!(two.iter().all(|node| names(node) == json!(["two"])) && !two.is_empty(), "{two:?}");
    assert!(nodes(&router, BOB, "?prompt_cache_key=two").await.is_empty());
    assert!(nodes(&router, ALICE, "?prompt_cache_key=nobody").await.is_empty());
}
