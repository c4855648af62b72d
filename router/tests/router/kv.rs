//! The routes below `/v1/kv` that list the cache and remove nodes.

use serde_json::{Value, json};

use crate::support::{Answer, Router};

const COMPLETIONS: &str = "/v1/completions";

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
    assert_eq!((&totals["disk"], &totals["object_store"]), (&Value::Null, &Value::Null));
    let tenants = totals["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 1, "without keys there is one anonymous tenant");
    assert_eq!((&tenants[0]["tenant"], &tenants[0]["disk_blocks"]), (&Value::Null, &Value::Null));
    assert_eq!(tenants[0]["device_cached"], totals["device"]["cached"]);

    let nodes = walk(&router, 2).await;
    assert_eq!(nodes, walk(&router, 1000).await);
    let cached: u64 = nodes.iter().map(|node| node["blocks"].as_u64().unwrap()).sum();
    assert_eq!(totals["device"]["cached"], cached);
    let fork = nodes.iter().find(|node| node["children"] == 2).unwrap();
    assert_eq!((&fork["tokens"], &fork["hits"], &fork["parent"]), (&json!(32), &json!(1), &Value::Null));
    let namespaces: std::collections::BTreeSet<&str> =
        nodes.iter().map(|node| node["namespace"].as_str().unwrap()).collect();
    assert_eq!(namespaces.len(), 2);

    let removed = delete(&router, fork["id"].as_str().unwrap()).await.ok();
    assert!(removed["removed_blocks"].as_u64().unwrap() >= 4);
    assert_eq!(complete(&router, &two, "a").await, 0);
    assert_eq!(complete(&router, &one, "b").await, 48, "the other salt is unchanged");
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
