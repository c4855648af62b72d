//! Conversations that the server keeps.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use trunkline_api::history::{Change, Conversation, History, Listed, Mode, Page, Selection, StoreError};
use trunkline_base::limits::Limits;
use trunkline_base::tenants::Access;
use trunkline_history::Database;
use trunkline_router::server::Front;

use crate::support::{Answer, Router, ShardPlan};

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str = "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\nadmin = true\n";

/// A router with tenants that keeps conversations of at most 4,000 bytes for each.
async fn start() -> (Router, TempDir) {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), Limits::default()).await;
    let folder = tempfile::tempdir().unwrap();
    keep_in(&router, Arc::new(Database::open(folder.path(), 4_000).unwrap()));
    (router, folder)
}

fn keep_in(router: &Router, history: Arc<dyn History>) {
    router.app.history.set(history).unwrap();
}

async fn alice(router: &Router, method: &str, path: &str, body: Value) -> Answer {
    router.ask(ALICE, method, path, &body).await
}

/// Returns the ids of a list.
fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_conversation_is_created_changed_found_and_deleted() {
    let (router, _folder) = start().await;
    let turns =
        json!({"u": {"role": "user", "content": "Hello there"}, "a": {"role": "assistant", "content": "Hi"}});
    let body = json!({"title": "Greeting", "details": {"system": "Be kind"}, "turns": turns});
    let card = alice(&router, "PUT", "/v1/history/c1", body).await.ok();
    assert_eq!((&card["title"], &card["object"]), (&json!("Greeting"), &json!("conversation")));

    let change = json!({"title": "Greetings", "turns": {"a": null, "b": {"content": "Good morning"}}});
    let changed = alice(&router, "PATCH", "/v1/history/c1", change).await.ok();
    assert!(changed["updated_ms"].as_u64() > card["updated_ms"].as_u64());
    let whole = alice(&router, "GET", "/v1/history/c1", Value::Null).await.ok();
    assert_eq!(
        (&whole["title"], &whole["details"], &whole["turns"]),
        (
            &json!("Greetings"),
            &json!({"system": "Be kind"}),
            &json!({"u": {"role": "user", "content": "Hello there"}, "b": {"content": "Good morning"}})
        )
    );
    assert_eq!((&whole["created_ms"], &whole["num_bytes"]), (&card["created_ms"], &changed["num_bytes"]));

    alice(&router, "PUT", "/v1/history/c2", json!({})).await.ok();
    let list = alice(&router, "GET", "/v1/history?limit=1", Value::Null).await.ok();
    assert_eq!((ids(&list), &list["has_more"], &list["enabled"]), (vec!["c2"], &json!(true), &json!(true)));
    let rest = alice(&router, "GET", "/v1/history?after=c2", Value::Null).await.ok();
    assert_eq!((ids(&rest), &rest["has_more"]), (vec!["c1"], &json!(false)));
    let found = alice(&router, "GET", "/v1/history?search=MORNING%20good", Value::Null).await.ok();
    assert_eq!(ids(&found), ["c1"]);

    let deleted = alice(&router, "DELETE", "/v1/history/c1", Value::Null).await.ok();
    assert_eq!(deleted, json!({"id": "c1", "object": "conversation", "deleted": true}));
    alice(&router, "GET", "/v1/history/c1", Value::Null).await.fails(404, "conversation_not_found");
    alice(&router, "DELETE", "/v1/history/c1", Value::Null).await.fails(404, "conversation_not_found");
    // A client that holds a deleted conversation does not bring back half of it.
    alice(&router, "PATCH", "/v1/history/c1", json!({"title": "x"}))
        .await
        .fails(404, "conversation_not_found");
}

#[tokio::test]
async fn tenants_see_their_own_conversations_only_and_so_do_admins() {
    let (router, _folder) = start().await;
    alice(&router, "PUT", "/v1/history/c1", json!({"title": "Alice's"})).await.ok();
    let list = router.ask(BOB, "GET", "/v1/history?search=Alice", &Value::Null).await.ok();
    assert!(ids(&list).is_empty());
    let body = json!({"title": "Bob's"});
    for method in ["GET", "PATCH", "DELETE"] {
        router.ask(BOB, method, "/v1/history/c1", &body).await.fails(404, "conversation_not_found");
    }
    router.ask(BOB, "PUT", "/v1/history/c1", &body).await.ok();
    let own = alice(&router, "GET", "/v1/history/c1", Value::Null).await.ok();
    assert_eq!(own["title"], "Alice's");
}

#[tokio::test]
async fn a_list_that_has_not_changed_is_not_sent_again() {
    let (router, _folder) = start().await;
    alice(&router, "PUT", "/v1/history/c1", json!({})).await.ok();
    let tag = alice(&router, "GET", "/v1/history", Value::Null).await.header("etag").unwrap().to_owned();
    let headers = [("x-api-key", ALICE), ("if-none-match", &*tag)];
    let ask = async || router.connect().await.request_with("GET", "/v1/history", &headers, b"").await;
    let same = ask().await;
    assert_eq!((same.status, same.body.len()), (304, 0));
    alice(&router, "DELETE", "/v1/history/c1", Value::Null).await.ok();
    assert!(ids(&ask().await.ok()).is_empty());
}

#[tokio::test]
async fn a_full_history_refuses_more_of_that_tenant() {
    let (router, _folder) = start().await;
    let long = json!({"turns": {"t": {"content": "x".repeat(3_000)}}});
    alice(&router, "PUT", "/v1/history/c1", long.clone()).await.ok();
    let message = alice(&router, "PUT", "/v1/history/c2", long.clone()).await.fails(413, "history_full");
    assert!(message.contains("--max-history-bytes"), "{message}");
    assert_eq!(ids(&alice(&router, "GET", "/v1/history", Value::Null).await.ok()), ["c1"]);
    router.ask(BOB, "PUT", "/v1/history/c1", &long).await.ok();
    alice(&router, "DELETE", "/v1/history/c1", Value::Null).await.ok();
    alice(&router, "PUT", "/v1/history/c2", long).await.ok();
}

#[tokio::test]
async fn bad_changes_are_refused_by_name() {
    let (router, _folder) = start().await;
    for (path, body, code, field) in [
        ("/v1/history/a%20b", json!({}), "invalid_value", "id"),
        ("/v1/history/c", json!({"title": "x".repeat(201)}), "invalid_value", "title"),
        ("/v1/history/c", json!({"details": []}), "invalid_type", "details"),
        ("/v1/history/c", json!({"turns": {"t": 1}}), "invalid_type", "turns.t"),
        ("/v1/history/c", json!({"turns": {"": {}}}), "invalid_value", "turns"),
        ("/v1/history/c", json!({"turns": []}), "invalid_type", "turns"),
        ("/v1/history/c", json!({"title": "x", "messages": []}), "unsupported_field", "messages"),
        // A name that is not shown, because it may be part of a prompt.
        ("/v1/history/c", json!({"my words": 1}), "invalid_type", ""),
    ] {
        let answer = alice(&router, "PUT", path, body).await;
        answer.fails(400, code);
        assert_eq!(answer.json()["error"]["param"].as_str().unwrap_or_default(), field);
    }
    for query in ["limit=0", "limit=1001", "limit=x", &format!("search={}", "x".repeat(201))] {
        alice(&router, "GET", &format!("/v1/history?{query}"), Value::Null).await.fails(400, "invalid_value");
    }
    assert!(ids(&alice(&router, "GET", "/v1/history", Value::Null).await.ok()).is_empty());
}

#[tokio::test]
async fn without_a_history_the_list_says_so() {
    let router = Router::default().await;
    let list = router.get("/v1/history").await.ok();
    assert_eq!(list, json!({"object": "list", "enabled": false, "data": [], "has_more": false}));
    let message = router.ask("", "PUT", "/v1/history/c", &json!({})).await.fails(404, "no_history");
    assert!(message.contains("--history-path"), "{message}");
}

#[tokio::test]
async fn without_keys_only_this_machine_has_a_history() {
    let folder = tempfile::tempdir().unwrap();
    let own = Router::default().await;
    keep_in(&own, Arc::new(Database::open(folder.path(), 4_000).unwrap()));
    own.ask("", "PUT", "/v1/history/c", &json!({})).await.ok();
    assert_eq!(ids(&own.get("/v1/history").await.ok()), ["c"]);

    let mut access = Access::open();
    access.set_exposed();
    let exposed = Router::start_behind(Front::default(), Limits::default(), access).await;
    keep_in(&exposed, Arc::new(Database::open(folder.path(), 4_000).unwrap()));
    assert_eq!(exposed.get("/v1/history").await.ok()["enabled"], false);
    let message = exposed.get("/v1/history/c").await.fails(404, "no_history");
    assert!(message.contains("--api-keys"), "{message}");
}

/// A history whose disk is gone.
#[derive(Debug)]
struct Broken;

fn gone<T>() -> Result<T, StoreError> {
    Err(StoreError::Failed("disk I/O error".to_owned()))
}

impl History for Broken {
    fn version(&self, _: &str) -> Result<u64, StoreError> {
        gone()
    }

    fn list(&self, _: &str, _: &Selection) -> Result<Page, StoreError> {
        gone()
    }

    fn num_bytes(&self, _: &str, _: &str) -> Result<u64, StoreError> {
        gone()
    }

    fn get(&self, _: &str, _: &str) -> Result<Conversation, StoreError> {
        gone()
    }

    fn change(&self, _: &str, _: &str, _: Mode, _: &Change) -> Result<Listed, StoreError> {
        gone()
    }

    fn remove(&self, _: &str, _: &str) -> Result<(), StoreError> {
        gone()
    }
}

#[tokio::test]
async fn a_history_that_fails_is_an_error_of_its_routes_only() {
    let router = Router::default().await;
    keep_in(&router, Arc::new(Broken));
    router.get("/v1/history").await.fails(503, "history_failed");
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        router.ask("", method, "/v1/history/c", &json!({})).await.fails(503, "history_failed");
    }
    router.post("/v1/completions", &json!({"prompt": "hi", "max_tokens": 1})).await.ok();
}
