//! Adapters: how requests name them, what the shard is asked, and the routes that list, load and unload them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use trunkline_base::limits::ServerLimits;
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::proto::Pooling;
use trunkline_generation::adapters::Named;
use trunkline_scheduler::{AdapterHash, Salt, SaltAdapter};
use trunkline_settings::{Adapters, MAX_ADAPTERS};

use crate::mock::{MockAdapters, MockVectors};
use crate::support::process::{PROGRAM, WithSettings, settings};
use crate::support::{Answer, Router, ShardPlan, eventually, user, with, write_model};

const CHAT: &str = "/v1/chat/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";
const ADMIN: &str = "sk-admin-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str = "[tenants.admin]\nkeys = \"sk-admin-0123456789\"\nadmin = true\n\
                    [tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\nadapters = [\"chat\"]\n";

/// Sources and ranks of the adapters that are registered as `sql` and `chat`.
const SQL: (&str, u32) = ("/sql", 8);
const CHATTY: (&str, u32) = ("/chat", 16);

fn registered() -> ServerLimits {
    let lora = vec!["sql=/sql".to_owned(), "chat=/chat".to_owned()];
    ServerLimits { adapters: Adapters { lora, lora_folder: None }, ..ServerLimits::default() }
}

/// A shard with a store, whose starts have root keys.
fn shard(folder: &Path, adapters: &MockAdapters) -> ShardPlan {
    ShardPlan {
        num_adapter_slots: 4,
        adapters: adapters.clone(),
        store: Some((folder.to_owned(), 64)),
        ..ShardPlan::saying("hi")
    }
}

/// A router with two adapters, and the folder of its shard's store.
async fn router(adapters: &MockAdapters) -> (Router, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Router::start(shard(folder.path(), adapters), registered()).await, folder)
}

fn chat(model: impl Into<Value>) -> Value {
    json!({"messages": user("a"), "model": model.into()})
}

/// The key before the first block of a sequence with this adapter and scale.
fn root(adapter: Option<(&str, u32)>, scale: f32) -> Vec<u8> {
    let in_salt = |(source, rank)| SaltAdapter {
        hash: AdapterHash(MockAdapters::hash(source, rank)).scaled(scale),
        name: source.into(),
    };
    Salt { adapter: adapter.map(in_salt), ..Salt::default() }.root_key().as_bytes().to_vec()
}

#[tokio::test]
async fn each_dialect_names_an_adapter_in_its_own_way() {
    let (router, _folder) = router(&MockAdapters::of(&[SQL, CHATTY])).await;
    let scaled = json!({"lora": [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.5}]});
    let message = with(chat("chat"), json!({"max_tokens": 4}));
    for (route, body, adapter, scale, model) in [
        (CHAT, chat("sql"), Some(SQL), 1.0, "sql"),
        (CHAT, chat("test/model:sql"), Some(SQL), 1.0, "test/model:sql"),
        (CHAT, chat("tgi:chat"), Some(CHATTY), 1.0, "tgi:chat"),
        (CHAT, chat("test/model"), None, 1.0, "test/model"),
        (CHAT, with(chat("test/model"), json!({"adapter_id": "sql"})), Some(SQL), 1.0, "sql"),
        (CHAT, with(chat("chat"), scaled.clone()), Some(CHATTY), 0.5, "chat"),
        ("/v1/completions", with(json!({"prompt": "a"}), scaled), Some(CHATTY), 0.5, "chat"),
        ("/v1/completions", json!({"prompt": "a", "model": "sql"}), Some(SQL), 1.0, "sql"),
        ("/v1/messages", message, Some(CHATTY), 1.0, "chat"),
        ("/v1/responses", json!({"input": "a", "model": "sql"}), Some(SQL), 1.0, "sql"),
    ] {
        let answer = router.post(route, &body).await.ok();
        assert_eq!(answer["model"], model, "{route} {body}");
        assert_eq!(router.shard().last_start().root_key, root(adapter, scale), "{route} {body}");
    }
    let generate = json!({"inputs": "a", "parameters": {"adapter_id": "sql"}});
    router.post("/generate", &generate).await.ok();
    assert_eq!(router.shard().last_start().root_key, root(Some(SQL), 1.0));
    for (route, body) in [
        ("/v1/messages/count_tokens", chat("sql")),
        ("/v1/responses/input_tokens", json!({"input": "a", "model": "sql"})),
        ("/tokenize", json!({"prompt": "a", "model": "sql"})),
        ("/detokenize", json!({"tokens": [65], "model": "test/model:sql"})),
    ] {
        router.post(route, &body).await.ok();
    }
    let rendered = router.post("/v1/chat/completions/render", &chat("sql")).await.ok();
    assert_eq!(rendered["model"], "sql");
    let stream = router.post(CHAT, &with(chat("sql"), json!({"stream": true}))).await;
    let mut models = stream.events().into_iter().filter_map(|event| event.get("model").cloned());
    assert!(models.all(|model| model == "sql") && stream.events().len() > 2);
}

#[tokio::test]
async fn vectors_use_adapters_too() {
    let (adapters, folder) = (MockAdapters::of(&[SQL, CHATTY]), tempfile::tempdir().unwrap());
    let vectors = MockVectors {
        pooling: Pooling::Last,
        size: 2,
        labels: Vec::new(),
        whole_prompts: false,
        only_pools: false,
        asks_about_pairs: false,
    };
    let plan = ShardPlan { vectors: Some(vectors), ..shard(folder.path(), &adapters) };
    let router = Router::start(plan, registered()).await;
    let answer = router.post("/v1/embeddings", &json!({"input": "a", "model": "sql"})).await.ok();
    assert_eq!(answer["model"], "sql");
    assert_eq!(router.shard().last_start().root_key, root(Some(SQL), 1.0));
}

#[tokio::test]
async fn names_and_scales_that_cannot_be_used_are_refused() {
    let adapters = MockAdapters::of(&[SQL]);
    adapters.put("/chat", Err("rank 128 exceeds `--max-lora-rank` (64)"));
    let (router, _folder) = router(&adapters).await;
    let unknown = router.post(CHAT, &chat("other")).await;
    let text = unknown.fails(404, "model_not_found");
    assert!(text.contains("has `test/model`, `chat`, `sql`; hint: use one of these names"), "{text}");
    router.post(CHAT, &chat("other:sql")).await.fails(404, "model_not_found");
    let unusable = router.post(CHAT, &chat("chat")).await.fails(400, "adapter_unusable");
    assert!(unusable.contains("adapter `chat` cannot be used: rank 128 exceeds `--max-lora-rank` (64)"));
    router.post(CHAT, &chat("sql")).await.ok();
    for (fields, words) in [
        (json!({"lora": [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 1.0}]}), "`sql` and `chat`"),
        (json!({"lora": [{"id": 2, "scale": 1.0}]}), "`lora[0].id` is 2, but there are 2 adapters"),
        (json!({"lora": [{"id": -1, "scale": 1.0}]}), "`lora[0].id` is -1"),
        (json!({"lora": [{"id": 0, "scale": 1000.0}]}), "`lora[0].scale` is 1000"),
        (json!({"model": "sql", "adapter_id": "chat"}), "`adapter_id` names another adapter"),
    ] {
        let answer = router.post(CHAT, &with(chat("test/model"), fields)).await;
        let text = answer.fails(400, "invalid_value");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn a_shard_without_room_for_adapters_serves_the_model_alone() {
    let router = Router::start(ShardPlan::saying("hi"), registered()).await;
    router.post(CHAT, &chat("sql")).await.fails(400, "adapters_not_supported");
    let lora = json!({"lora": [{"id": 0, "scale": 1.0}]});
    router.post(CHAT, &with(chat("test/model"), lora)).await.fails(400, "adapters_not_supported");
    let load = json!({"lora_name": "a", "lora_path": "/a"});
    router.post(LOAD, &load).await.fails(400, "adapters_not_supported");
    assert_eq!(router.get("/v1/models").await.ok()["data"].as_array().unwrap().len(), 1);
    router.post(CHAT, &chat("test/model")).await.ok();
}

#[tokio::test]
async fn the_shard_is_asked_once_for_all_who_wait() {
    let mut adapters = MockAdapters::of(&[SQL, CHATTY]);
    adapters.answers = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let (router, _folder) = router(&adapters).await;
    let late = router.post(CHAT, &with(chat("sql"), json!({"timeout": 0.05}))).await;
    late.fails(504, "deadline_exceeded");
    let body = chat("sql");
    let requests: Vec<_> = (0..4).map(|_| router.post(CHAT, &body)).collect();
    let both = async {
        adapters.answers.add_permits(2);
        eventually("both adapters to be open", async || {
            rows(&router).await.iter().all(|row| row["state"] == "open")
        })
        .await;
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(requests), both);
    answers.iter().for_each(|answer| drop(answer.ok()));
    let mut asked = adapters.asked.lock().unwrap().clone();
    asked.sort();
    assert_eq!(asked, ["/chat", "/sql"]);
}

#[tokio::test]
async fn an_adapter_that_was_not_loaded_is_opened_again() {
    let adapters = MockAdapters::of(&[SQL, CHATTY]);
    let (router, _folder) = router(&adapters).await;
    router.post(CHAT, &chat("sql")).await.ok();
    adapters.put("/sql", Ok(9));
    let chosen = router.app.served.choose(&Caller::anybody(), Named::model(Some("sql"))).unwrap().unwrap();
    let error = chosen.failed("its files have changed".into());
    assert_eq!((error.status().as_u16(), error.code()), (502, "adapter_failed"));
    router.post(CHAT, &chat("sql")).await.ok();
    assert_eq!(router.shard().last_start().root_key, root(Some(("/sql", 9)), 1.0));
}

/// The rows of `GET /lora-adapters`.
async fn rows(router: &Router) -> Vec<Value> {
    router.get("/lora-adapters").await.ok().as_array().unwrap().clone()
}

#[tokio::test]
async fn adapters_are_loaded_listed_and_unloaded() {
    let adapters = MockAdapters::of(&[SQL, CHATTY, ("org/new", 4)]);
    let (router, _folder) = router(&adapters).await;
    let load = json!({"lora_name": "new", "lora_path": "org/new"});
    let loaded = router.post(LOAD, &load).await;
    assert_eq!(
        (loaded.status, loaded.text().as_str()),
        (200, "Success: LoRA adapter 'new' added successfully.")
    );
    let again = router.post(LOAD, &load).await.fails(400, "invalid_value");
    assert!(again.contains("`lora_name` is `new`, which is loaded already"), "{again}");
    let replaced = router.post(LOAD, &with(load, json!({"load_inplace": true}))).await;
    assert_eq!(replaced.status, 200);
    let missing = router.post(LOAD, &json!({"lora_name": "x", "lora_path": "/x"})).await;
    assert!(missing.fails(400, "adapter_unusable").contains("`/x` does not exist"));
    for name in ["a b", "", "test/model", "tgi"] {
        router.post(LOAD, &json!({"lora_name": name, "lora_path": "/sql"})).await.fails(400, "invalid_value");
    }
    let models = router.get("/v1/models").await.ok();
    let cards: Vec<(&Value, &Value, &Value)> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (&card["id"], &card["root"], &card["parent"]))
        .collect();
    let model = json!("test/model");
    assert_eq!(cards[0], (&model, &Value::Null, &Value::Null));
    assert_eq!(
        cards[1..],
        [
            (&json!("sql"), &json!("/sql"), &model),
            (&json!("chat"), &json!("/chat"), &model),
            (&json!("new"), &json!("org/new"), &model),
        ]
    );
    assert_eq!(router.get("/v1/models/new").await.ok()["parent"], "test/model");
    let new = &rows(&router).await[2];
    let expected = json!({"id": 2, "path": "org/new", "scale": 0.0, "name": "new", "state": "open", "rank": 4,
        "num_bytes": 4000, "problem": null});
    assert_eq!(*new, expected);
    let unloaded = router.post(UNLOAD, &json!({"lora_name": "new"})).await;
    assert_eq!(
        (unloaded.status, unloaded.text().as_str()),
        (200, "Success: LoRA adapter 'new' removed successfully.")
    );
    router.post(UNLOAD, &json!({"lora_name": "new"})).await.fails(404, "adapter_not_found");
    router.post(CHAT, &chat("new")).await.fails(404, "model_not_found");
}

#[tokio::test]
async fn a_server_knows_a_bounded_number_of_names() {
    let lora = (0..MAX_ADAPTERS).map(|number| format!("a{number}=/a")).collect();
    let limits = ServerLimits { adapters: Adapters { lora, lora_folder: None }, ..ServerLimits::default() };
    // Without a shard nothing is opened.
    let router = Router::start_without_shard(limits).await;
    let more = router.post(LOAD, &json!({"lora_name": "more", "lora_path": "/a"})).await;
    let text = more.fails(400, "invalid_value");
    assert!(text.contains("`lora_name` is one more than the 10000 adapters"), "{text}");
    assert_eq!(router.post(UNLOAD, &json!({"lora_name": "a7"})).await.status, 200);
    let text =
        router.post(LOAD, &json!({"lora_name": "a8", "lora_path": "/a"})).await.fails(400, "invalid_value");
    assert!(text.contains("`a8`, which is loaded already"), "{text}");
}

#[test]
fn a_name_that_is_taken_ends_the_start() {
    for (lora, words) in [
        (&["a=/a", "a=/b"][..], "`--lora` names `a` twice"),
        (&["m=/a"], "`--lora` names an adapter `m`, which is a name of the model"),
        (&["tgi=/a"], "`--lora` names an adapter `tgi`"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let mut settings = settings(folder.path());
        settings.adapters.lora = lora.iter().map(|&text| text.to_owned()).collect();
        let output = Command::new(PROGRAM).with_settings(folder.path(), &settings).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(words), "{stderr}");
    }
}

#[tokio::test]
async fn pages_of_models_hold_adapters() {
    let (router, _folder) = router(&MockAdapters::of(&[SQL, CHATTY])).await;
    for (query, ids, has_more) in [
        ("", &["test/model", "sql", "chat"][..], false),
        ("?limit=2", &["test/model", "sql"], true),
        ("?after_id=test/model&limit=1", &["sql"], true),
        ("?before_id=chat&limit=1", &["sql"], true),
        ("?before_id=sql", &["test/model"], false),
        ("?after_id=chat", &[], false),
        ("?after_id=other", &[], false),
    ] {
        let path = format!("/v1/models{query}");
        let mut connection = router.connect().await;
        let page =
            connection.request_with("GET", &path, &[("anthropic-version", "2023-06-01")], b"").await.ok();
        let found: Vec<&str> =
            page["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!((found, page["has_more"].as_bool()), (ids.to_vec(), Some(has_more)), "{query}");
    }
}

#[tokio::test]
async fn keys_say_which_adapters_a_tenant_may_use() {
    let (adapters, folder) = (MockAdapters::of(&[SQL, CHATTY]), tempfile::tempdir().unwrap());
    let router = Router::start_with_keys(KEYS, shard(folder.path(), &adapters), registered()).await;
    let complete = async |key, model: &str| router.ask(key, "POST", CHAT, &chat(model)).await;
    complete(ADMIN, "sql").await.ok();
    complete(BOB, "chat").await.ok();
    // It is refused as if there were none.
    let refused = complete(BOB, "sql").await.fails(404, "model_not_found");
    let unknown = complete(BOB, "sqm").await.fails(404, "model_not_found");
    assert_eq!(refused.replace("`sql`", "`sqm`"), unknown);
    let ask = async |key, method, path, body: &Value| -> Answer { router.ask(key, method, path, body).await };
    let models = ask(BOB, "GET", "/v1/models", &Value::Null).await.ok();
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|card| &card["id"]).collect();
    assert_eq!(ids, ["test/model", "chat"]);
    assert_eq!(models["data"][1]["root"], "chat", "a path");
    let listed = ask(BOB, "GET", "/lora-adapters", &Value::Null).await.ok();
    assert_eq!((&listed[0]["id"], &listed[0]["name"], &listed[1]), (&json!(0), &json!("chat"), &Value::Null));
    for (path, body) in
        [(LOAD, json!({"lora_name": "a", "lora_path": "/sql"})), (UNLOAD, json!({"lora_name": "sql"}))]
    {
        ask(BOB, "POST", path, &body).await.fails(403, "admins_only");
        assert_eq!(ask(ADMIN, "POST", path, &body).await.status, 200);
    }
}

#[tokio::test]
async fn a_folder_has_adapters_that_come_and_go() {
    let (folder, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("a")).unwrap();
    std::fs::write(path("b.gguf"), "").unwrap();
    std::fs::write(path("notes.txt"), "").unwrap();
    std::fs::create_dir(path(".hidden")).unwrap();
    let adapters = MockAdapters::default();
    let source = |name: &str| path(name).to_str().unwrap().to_owned();
    ["a", "b.gguf", "c"].iter().for_each(|name| adapters.put(&source(name), Ok(8)));
    let settings = Adapters { lora: Vec::new(), lora_folder: Some(folder.path().to_owned()) };
    let limits = ServerLimits { adapters: settings, ..ServerLimits::default() };
    let router = Router::start(shard(store.path(), &adapters), limits).await;
    let names =
        async || -> Vec<Value> { rows(&router).await.iter().map(|row| row["name"].clone()).collect() };
    assert_eq!(names().await, ["a", "b"]);
    for name in ["c", "notes", "notes.txt", "..", "a/..", ".hidden"] {
        router.post(CHAT, &chat(name)).await.fails(404, "model_not_found");
    }
    router.post(CHAT, &chat("b")).await.ok();
    assert_eq!(router.shard().last_start().root_key, root(Some((&source("b.gguf"), 8)), 1.0));
    let by_place = json!({"lora": [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.0}]});
    assert_eq!(router.post(CHAT, &with(chat("test/model"), by_place)).await.ok()["model"], "a");
    assert_eq!(router.shard().last_start().root_key, root(Some((&source("a"), 8)), 0.5));
    std::fs::create_dir(path("c")).unwrap();
    router.post(CHAT, &chat("c")).await.ok();
    std::fs::remove_file(path("b.gguf")).unwrap();
    router.post(CHAT, &chat("b")).await.fails(404, "model_not_found");
    assert_eq!(names().await, ["a", "c"]);
    router.post(UNLOAD, &json!({"lora_name": "c"})).await.fails(404, "adapter_not_found");
}
