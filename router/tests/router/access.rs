//! API keys and tenants: authentication, and the isolation of tenants from each other.

use std::ops::Range;
use std::process::Command;

use serde_json::{Value, json};
use trunkline_api::dialect::Errors;
use trunkline_api::route::{Access, ROUTES, Route};
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_scheduler::Consumption;

use crate::support::process::{PROGRAM, Process, WithSettings, settings};
use crate::support::{Answer, Connection, MockShard, Router, ShardPlan, eventually, user, write_model};

const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";

const ADMIN: &str = "sk-admin-0123456789";

const KEYS: &str = "[tenants.alice]\nkeys = [\"sk-alice-0123456789\", \"sk-alice-9876543210\"]\nshare = 3\n\
                    [tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";

async fn router() -> Router {
    Router::start_with_keys(KEYS, ShardPlan::default(), Limits::default()).await
}

async fn get(router: &Router, path: &str, headers: &[(&str, &str)]) -> Answer {
    router.connect().await.request_with("GET", path, headers, b"").await
}

async fn complete(router: &Router, key: &str, body: &Value) -> Answer {
    router.ask(key, "POST", "/v1/completions", body).await
}

#[tokio::test]
async fn each_route_is_open_to_the_keys_that_its_row_names() {
    let router = router().await;
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        router.connect().await.request_with(method, path, headers, b"").await
    };
    let mut num_of_admins = 0;
    for route in ROUTES {
        let path = route.path.replace("{*id}", "a/load").replace("{id}", "x").replace("{file}", "main.js");
        let place = format!("{} {path}", route.method);
        let answer = ask(route.method.as_str(), &path, &[]).await;
        if route.access == Access::Anybody {
            assert_eq!(answer.status, 200, "{place}");
            continue;
        }
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{place}");
        assert_eq!(code_of(&answer, route), "invalid_api_key", "{place}");
        if route.access == Access::Admins {
            num_of_admins += 1;
            let refused = ask(route.method.as_str(), &path, &[("x-api-key", BOB)]).await;
            assert_eq!((refused.status, code_of(&refused, route).as_str()), (403, "admins_only"), "{place}");
            let other_method = ask("TRACE", &path, &[("x-api-key", BOB)]).await;
            assert_eq!(other_method.status, 405, "{place}");
        }
    }
    assert!(num_of_admins >= 4);
    for path in ["/nothing", "/v1/nothing", "/livez/", "/LIVEZ"] {
        get(&router, path, &[]).await.fails(401, "invalid_api_key");
    }
}

/// Returns the code of an error, which must have the form that the row states.
fn code_of(answer: &Answer, route: &Route) -> String {
    let json = answer.json();
    let (form, code) = match (&json["error"], &json["type"], &json["error_type"]) {
        (Value::Object(error), Value::String(_), _) => (Errors::Anthropic, &error["code"]),
        (Value::Object(error), ..) => (Errors::OpenAi, &error["code"]),
        (_, _, Value::String(_)) => (Errors::Tgi, &json["code"]),
        _ => (Errors::Ollama, &json["code"]),
    };
    assert_eq!(form, route.errors, "{}: {json}", route.path);
    code.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn either_header_authenticates_and_a_wrong_key_does_not() {
    let router = router().await;
    let bearer = format!("Bearer {ALICE}");
    for headers in [[("authorization", bearer.as_str())], [("x-api-key", BOB)]] {
        assert_eq!(get(&router, "/v1/models", &headers).await.status, 200);
    }
    let wrong = get(&router, "/v1/models", &[("authorization", "Bearer sk-alice-012345678X")]).await;
    assert_eq!(wrong.json()["error"]["type"], "invalid_request_error");
    let message = wrong.fails(401, "invalid_api_key");
    assert!(
        message.starts_with("Incorrect API key provided; hint: ") && !message.contains("sk-"),
        "{message}"
    );
    let wrong = get(&router, "/info", &[]).await;
    assert_eq!(wrong.json()["error_type"], "authentication");
    assert!(wrong.fails(401, "invalid_api_key").starts_with("no API key was sent; hint: "));
}

#[tokio::test]
async fn tenants_share_no_prefix_hits() {
    let router = router().await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 2, "ignore_eos": true});
    assert_eq!(complete(&router, ALICE, &body).await.cached_tokens(), 0);
    assert_eq!(complete(&router, BOB, &body).await.cached_tokens(), 0);
    assert_eq!(complete(&router, "sk-alice-9876543210", &body).await.cached_tokens(), 19);
    assert_eq!(complete(&router, BOB, &body).await.cached_tokens(), 19);
    let salted = json!({"prompt": vec![7; 20], "max_tokens": 2, "ignore_eos": true, "cache_salt": "s"});
    assert_eq!(complete(&router, ALICE, &salted).await.cached_tokens(), 0);
    // A tenant's name as the salt of another tenant gives no access.
    for salt in ["bob", "tenant", ""] {
        let named = json!({"prompt": vec![7; 20], "max_tokens": 2, "ignore_eos": true, "cache_salt": salt});
        assert_eq!(complete(&router, ALICE, &named).await.cached_tokens(), 0, "{salt}");
    }
}

#[tokio::test]
async fn tenants_cannot_see_or_remove_blocks_of_others() {
    let router = router().await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 2, "ignore_eos": true});
    complete(&router, ALICE, &body).await.ok();
    router.wait_idle().await;
    let nodes = async |key| get(&router, "/v1/kv/tree", &[("x-api-key", key)]).await.ok()["data"].clone();
    let own = nodes(ALICE).await;
    let id = own[0]["id"].as_str().expect("alice sees her prompt").to_owned();
    assert_eq!(nodes(BOB).await, json!([]));
    let path = format!("/v1/kv/tree/{id}");
    let remove = async |key| router.ask(key, "DELETE", &path, &Value::Null).await;
    assert_eq!(remove(BOB).await.status, 404);
    assert_eq!(nodes(ALICE).await[0]["id"], own[0]["id"]);
    assert_eq!(remove(ALICE).await.status, 200);
    assert_eq!(nodes(ALICE).await, json!([]));
}

#[tokio::test]
async fn metrics_count_requests_and_blocks_by_tenant() {
    let keys = format!("{KEYS}[tenants.operator]\nkeys = {ADMIN:?}\nadmin = true\nshare = 4\n");
    let router = Router::start_with_keys(&keys, ShardPlan::default(), Limits::default()).await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true});
    for key in [ALICE, ALICE, BOB] {
        complete(&router, key, &body).await.ok();
    }
    router.wait_idle().await;
    let alices = get(&router, "/metrics", &[("x-api-key", ALICE)]).await.text();
    let bobs = get(&router, "/metrics", &[("x-api-key", BOB)]).await.text();
    let has_other = |metrics: &str, tenant| metrics.contains(&format!("tenant=\"{tenant}\""));
    assert!(!has_other(&alices, "bob") && !has_other(&bobs, "alice"), "a tenant sees only itself");
    assert!(
        bobs.contains("trunkline_tenant_requests_total counter") && bobs.contains("trunkline_steps_total ")
    );
    let admins = get(&router, "/metrics", &[("x-api-key", ADMIN)]).await.text();
    assert!(has_other(&admins, "alice") && has_other(&admins, "bob"), "an admin sees all tenants");
    for sample in [
        "trunkline_tenant_requests_total{tenant=\"alice\"} 2",
        "trunkline_tenant_prompt_tokens_total{tenant=\"alice\"} 40",
        "trunkline_tenant_cached_tokens_total{tenant=\"alice\"} 19",
        "trunkline_tenant_output_tokens_total{tenant=\"alice\"} 10",
        "trunkline_tenant_output_tokens_total{tenant=\"bob\"} 5",
        "trunkline_tenant_kv_share_blocks{tenant=\"alice\"} 384.0",
        "trunkline_tenant_kv_share_blocks{tenant=\"bob\"} 128.0",
        "trunkline_tenant_kv_blocks{tenant=\"bob\"} 3.0",
        "trunkline_tenant_evicted_blocks_total{tenant=\"bob\"} 0",
    ] {
        assert!(
            alices.lines().chain(bobs.lines()).any(|line| line == sample),
            "{sample} in\n{alices}\n{bobs}"
        );
    }
}

#[tokio::test]
async fn usage_is_that_of_the_metrics_and_shown_to_its_tenant_and_to_admins() {
    let keys = format!("{KEYS}[tenants.operator]\nkeys = {ADMIN:?}\nadmin = true\n");
    let router = Router::start_with_keys(&keys, ShardPlan::default(), Limits::default()).await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true});
    for key in [ALICE, ALICE, BOB] {
        complete(&router, key, &body).await.ok();
    }
    router.wait_idle().await;
    let ask =
        async |query: &str, key| get(&router, &format!("/v1/usage{query}"), &[("x-api-key", key)]).await;
    let sum = async |key, tenant: &str, field: &str| {
        let rows = ask("", key).await.ok()["data"].as_array().unwrap().clone();
        let mine = rows.iter().filter(|row| row["tenant"] == tenant).map(|row| row[field].as_f64().unwrap());
        mine.sum::<f64>()
    };
    for (field, expected) in
        [("requests", 2.0), ("prompt_tokens", 40.0), ("cached_tokens", 19.0), ("output_tokens", 10.0)]
    {
        assert_eq!(sum(ALICE, "alice", field).await, expected, "{field}");
        assert_eq!(sum(ADMIN, "alice", field).await, expected, "{field}");
    }
    assert_eq!(sum(ADMIN, "bob", "output_tokens").await, 5.0);
    assert_eq!(sum(BOB, "alice", "output_tokens").await, 0.0, "a tenant sees only itself");
    assert!(
        sum(ADMIN, "bob", "device_seconds").await > 0.0 && sum(ADMIN, "bob", "kv_byte_seconds").await > 0.0
    );

    let first = ask("", ADMIN).await.ok()["data"][0]["start_time"].as_u64().unwrap();
    let of = async |query: String| ask(&query, ADMIN).await.ok()["data"].as_array().unwrap().len();
    assert_eq!(of(format!("?to={first}")).await, 0, "the hour begins at `to`");
    assert!(of(format!("?from={}&to=2100-01-01T00:00:00Z", first + 3599)).await > 0);
    for (query, field) in [("?from=tomorrow", "`from`"), ("?from=5&to=4", "`from`"), ("?to=-1", "`to`")] {
        let answer = ask(query, ADMIN).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains(field), "{}", answer.text());
    }
}

#[tokio::test]
async fn the_usage_of_many_tenants_is_charged_to_the_memory_of_answers() {
    let keys = format!("{KEYS}[tenants.operator]\nkeys = {ADMIN:?}\nadmin = true\n");
    let limits = ServerLimits { max_answers_bytes: 4 << 20, ..ServerLimits::default() };
    let router = Router::start_with_keys(&keys, ShardPlan::default(), limits).await;
    let work = Consumption { output_tokens: 1, ..Consumption::default() };
    let record = |range: Range<usize>| {
        let mut recording = router.app.served.usage.record();
        range.for_each(|number| recording.add(Some(&format!("tenant-{number}")), work));
        recording.add(Some("alice"), work);
    };
    record(0..2_000);
    let ask = async |key| router.ask(key, "GET", "/v1/usage", &Value::Null).await;
    assert_eq!(ask(ADMIN).await.ok()["data"].as_array().unwrap().len(), 2_001);
    record(2_000..8_000);
    ask(ADMIN).await.fails(400, "answer_too_large");
    assert_eq!(ask(ALICE).await.ok()["data"].as_array().unwrap().len(), 1);
    assert_eq!(router.app.admission.answers.free.available_permits(), 4 << 10);
}

#[tokio::test]
async fn sighup_reloads_keys_and_shares() {
    const CAROL: &str = "sk-carol-0123456789";
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let path = folder.path().join("keys.toml");
    std::fs::write(&path, KEYS).unwrap();
    let _shard = MockShard::start(&folder.path().join("shard.sock"), ShardPlan::default());
    let mut settings = settings(folder.path());
    settings.server.api_keys = Some(path.clone());
    let process = Process::start(Command::new(PROGRAM).with_settings(folder.path(), &settings));
    process.wait_until_ready().await;
    let get = async |path: &str, key: &str| {
        let mut connection = Connection::open(process.address).await;
        connection.request_with("GET", path, &[("x-api-key", key)], b"").await
    };
    assert_eq!(get("/v1/models", ALICE).await.status, 200);
    assert_eq!(get("/v1/models", CAROL).await.status, 401);

    std::fs::write(&path, format!("[tenants.carol]\nkeys = \"{CAROL}\"\nshare = 2")).unwrap();
    process.hang_up();
    process.wait_for_log("API keys loaded", 2);
    // The line is logged before the keys change.
    eventually("the new key", async || get("/v1/models", CAROL).await.status == 200).await;
    assert_eq!(get("/v1/models", ALICE).await.status, 401);
    let body = json!({"prompt": vec![7; 20], "max_tokens": 1}).to_string();
    let headers = [("x-api-key", CAROL)];
    let mut connection = Connection::open(process.address).await;
    connection.request_with("POST", "/v1/completions", &headers, body.as_bytes()).await.ok();
    // Carol's share is the whole pool once the scheduler has the new shares.
    let shares = "trunkline_tenant_kv_share_blocks{tenant=\"carol\"} 1024.0";
    eventually("the new share", async || get("/metrics", CAROL).await.text().contains(shares)).await;

    std::fs::write(&path, "[tenants.alice]\nkeys = 3").unwrap();
    process.hang_up();
    process.wait_for_log("cannot reload the API keys", 1);
    assert_eq!(get("/v1/models", CAROL).await.status, 200);
}

#[tokio::test]
async fn one_tenant_cannot_take_all_places() {
    let limits = Limits { max_concurrent_requests: Some(8), ..Limits::default() };
    let router = Router::start_with_keys(KEYS, ShardPlan::default().held(), limits).await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 1});
    let begin = async |key| {
        let mut connection = router.connect().await;
        let body = body.to_string();
        connection.send_with("POST", "/v1/completions", &[("x-api-key", key)], body.as_bytes()).await;
        connection
    };
    // More outputs than one tenant can ever have are not refused for now, but for good.
    let all = json!({"prompt": "x", "max_tokens": 1, "n": 8});
    complete(&router, ALICE, &all)
        .await
        .refuses(400, "one of several tenants gets at most 7 of the 8 places");
    let mut open = Vec::new();
    for num_open in 1..=7 {
        open.push(begin(ALICE).await);
        router
            .wait("one more place to be taken", |app| app.admission.open.available_permits() == 8 - num_open)
            .await;
    }
    let refused = complete(&router, ALICE, &body).await;
    let message = refused.fails(429, "too_many_requests");
    assert!(message.starts_with("this tenant has 7 of the 8 places"), "{message}");
    assert!(refused.header("retry-after").is_some());
    // Requests that only tokenize take places, too.
    let chat = json!({"messages": user("x")});
    for (path, body) in [
        ("/tokenize", json!({"inputs": "x"})),
        ("/chat_tokenize", chat.clone()),
        ("/v1/chat/completions/render", chat.clone()),
        ("/v1/completions/render", json!({"prompt": "x"})),
        ("/v1/messages/count_tokens", chat),
    ] {
        let ask = async |key| router.ask(key, "POST", path, &body).await.status;
        assert_eq!((ask(ALICE).await, ask(BOB).await), (429, 200), "{path}");
    }
    let mut other = begin(BOB).await;
    router.wait("the last place to be taken", |app| app.admission.open.available_permits() == 0).await;
    router.add_steps(1000);
    for connection in open.iter_mut().chain([&mut other]) {
        assert_eq!(connection.answer().await.status, 200);
    }
    router.wait_idle().await;
    complete(&router, ALICE, &body).await.ok();
}

#[tokio::test]
async fn the_key_bounds_the_priority_class_and_the_answer_reports_it() {
    let keys = KEYS.replace("share = 3\n", "max_priority = \"high\"\n");
    let router = Router::start_with_keys(&keys, ShardPlan::default(), Limits::default()).await;
    let post = async |path: &str, key: &str, tier: &str| {
        let body = json!({
            "model": "tgi", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 3,
            "service_tier": tier,
        });
        router.ask(key, "POST", path, &body).await.ok()
    };
    for (key, asked, got) in [
        (ALICE, "priority", "priority"),
        (ALICE, "auto", "default"),
        (BOB, "priority", "default"),
        (BOB, "flex", "flex"),
    ] {
        for path in ["/v1/chat/completions", "/v1/responses"] {
            assert_eq!(post(path, key, asked).await["service_tier"], got, "{path} {asked}");
        }
    }
    for (key, asked, got) in
        [(ALICE, "auto", "priority"), (ALICE, "standard_only", "standard"), (BOB, "auto", "standard")]
    {
        assert_eq!(post("/v1/messages", key, asked).await["usage"]["service_tier"], got, "{asked}");
    }
}
