//! Several models behind one router, loaded and unloaded by a launcher that the tests play.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use trunkline_api::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::limits::ServerLimits;
use trunkline_base::tenants::{Access, Caller, SharedPlaces};
use trunkline_generation::model::{Choice, Model};
use trunkline_generation::models::{
    Action, Entry, Event, Finder, Gate, KeepAlive, ModelId, ModelSettings, Open, Residency, Settings,
};
use trunkline_router::server::{LaterModel, ModelParts, Others};
use trunkline_settings::{Pull, Report};

use crate::mock::{MockAdapters, MockShard, ShardPlan, write_model};
use crate::support::{DEADLINE, Router, eventually, sse_data, with};

const CHAT: &str = "/v1/chat/completions";
const FIRST: ModelId = ModelId(0);
const SECOND: ModelId = ModelId(1);

/// A router of three models of which two fit into memory. Each answers with its number.
struct Several {
    router: Router,
    gate: Arc<Gate>,
    launcher: Launcher,
    sockets: [PathBuf; 3],
    /// The searches for models that the router does not have.
    reports: mpsc::UnboundedReceiver<Report>,
}

/// Starts and stops mock shards as the router asks for it.
#[derive(Clone, Default)]
struct Launcher {
    shards: Arc<Mutex<BTreeMap<u32, MockShard>>>,
    /// What the router has asked for.
    asked: Arc<Mutex<Vec<String>>>,
    /// Loads that end only when a test says so.
    held: Arc<Mutex<Vec<u32>>>,
}

impl Several {
    async fn start() -> Self {
        Self::start_with(Access::open(), Pull::Never).await
    }

    async fn start_with(access: Access, pull: Pull) -> Self {
        let mut residency = Residency::new(Settings {
            limit_bytes: 20,
            min_stay_ms: 50,
            min_idle_ms: 1,
            backoff_ms: 60_000,
            max_backoff_ms: 60_000,
        });
        for number in 0..3 {
            let settings =
                ModelSettings { bytes: 10, is_pinned: false, priority: 0, keep_alive: KeepAlive::Forever };
            residency.handle(Event::Added { model: ModelId(number), settings }, 0);
        }
        let (gate, mut actions) = Gate::new(residency);
        let folder = Arc::new(tempfile::tempdir().unwrap());
        write_model(folder.path());
        let socket = |number: u32| folder.path().join(format!("model{number}.sock"));
        let later = |number: u32, name: &'static str| {
            let (folder, socket) = (folder.clone(), socket(number));
            let load = move || {
                let model = Model::load_with(folder.path(), name.into(), None, Choice::Auto, Choice::Auto);
                let mut model = model.map_err(|error| error.to_string())?;
                model.aliases = vec![format!("{name}-alias")];
                let limits = ServerLimits::default();
                Ok(ModelParts { model, limits, shard_sockets: vec![socket.clone()], remote: None })
            };
            LaterModel {
                id: ModelId(number),
                name: name.into(),
                aliases: vec![format!("{name}-alias")],
                load: Box::new(load),
            }
        };
        let others = vec![later(1, "test/second"), later(2, "test/third")];
        let (finder, reports) = Finder::new(pull);
        let others = Others { later: others, gate: gate.clone(), finder };
        let router = Router::start_several(access, others).await;
        let sockets = [router.socket.clone(), socket(1), socket(2)];
        let launcher = Launcher::default();
        let (own, own_gate, own_sockets) = (launcher.clone(), gate.clone(), sockets.clone());
        let models = router.app.models.clone();
        tokio::spawn(async move {
            while let Some(action) = actions.recv().await {
                match action {
                    Action::Load(model) => {
                        let models = models.clone();
                        tokio::spawn(async move {
                            let entry = models.entry(model).unwrap();
                            models.served(&entry).await.map(drop)
                        });
                    }
                    Action::Unload(model) => models.leave(model).await,
                }
                own.obey(action, &own_gate, &own_sockets);
            }
        });
        Self { router, gate, launcher, sockets, reports }
    }

    async fn chat(&self, model: Option<&str>) -> Value {
        self.router.post(CHAT, &chat(model)).await.ok()
    }

    /// Waits until the state of a model has this word.
    async fn wait(&self, model: ModelId, word: &str) {
        let mut changes = self.gate.changes();
        let look = async {
            while self.gate.shown(model).word != word {
                changes.changed().await.unwrap();
            }
        };
        let done = tokio::time::timeout(DEADLINE, look).await;
        assert!(done.is_ok(), "{:?} is not {word}", self.gate.shown(model));
    }
}

impl Launcher {
    fn obey(&self, action: Action, gate: &Gate, sockets: &[PathBuf; 3]) {
        let (line, model) = match action {
            Action::Load(model) => (format!("load {}", model.0), model),
            Action::Unload(model) => (format!("unload {}", model.0), model),
        };
        self.asked.lock().unwrap().push(line);
        match action {
            Action::Load(_) if self.held.lock().unwrap().contains(&model.0) => {}
            Action::Load(_) => self.load(model, sockets),
            Action::Unload(_) => {
                self.shards.lock().unwrap().remove(&model.0);
                gate.tell(Event::Unloaded { model });
            }
        }
    }

    fn load(&self, model: ModelId, sockets: &[PathBuf; 3]) {
        let socket = &sockets[model.0 as usize];
        // A killed shard leaves its socket behind.
        let _ = std::fs::remove_file(socket);
        let adapters = MockAdapters::of(&[("/sql", 8)]);
        let said = ShardPlan { memory_bytes: 9, ..ShardPlan::saying(&model.0.to_string()) };
        let shard = MockShard::start(socket, ShardPlan { num_adapter_slots: 4, adapters, ..said });
        self.shards.lock().unwrap().insert(model.0, shard);
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn chat(model: Option<&str>) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8});
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn a_request_loads_the_model_that_it_names_and_the_least_recently_used_one_leaves() {
    let several = Several::start().await;
    for (name, text) in [
        (None, "0"),
        (Some("test/model"), "0"),
        (Some("test/second"), "1"),
        (Some("test/second:latest"), "1"),
        (Some("test/second-alias"), "1"),
        (None, "0"),
        (Some("test/third"), "2"),
        (Some("test/second"), "1"),
    ] {
        assert_eq!(content(&several.chat(name).await), text, "{name:?}");
    }
    let expected = ["load 0", "load 1", "unload 1", "load 2", "unload 0", "load 1"];
    assert_eq!(several.launcher.asked(), expected);
}

#[tokio::test]
async fn every_dialect_chooses_by_its_model() {
    let several = Several::start().await;
    let message = json!([{"role": "user", "content": "hi"}]);
    let second = "test/second";
    for (path, body, at) in [
        ("/v1/completions", json!({"model": second, "prompt": "x", "max_tokens": 4}), "/choices/0/text"),
        ("/v1/messages", json!({"model": second, "messages": message, "max_tokens": 4}), "/content/0/text"),
        ("/v1/responses", json!({"model": second, "input": "x"}), "/output/0/content/0/text"),
        ("/invocations", json!({"model": second, "messages": message}), "/choices/0/message/content"),
    ] {
        let answer = several.router.post(path, &body).await.ok();
        assert_eq!(answer.pointer(at).and_then(Value::as_str), Some("1"), "{path}: {answer}");
    }
    // These need the tokenizer only, so nothing is loaded for them.
    let third = "test/third";
    for (path, body) in [
        ("/tokenize", json!({"model": third, "prompt": "x"})),
        ("/v1/messages/count_tokens", json!({"model": third, "messages": message})),
    ] {
        several.router.post(path, &body).await.ok();
    }
    assert!(!several.launcher.asked().contains(&"load 2".to_owned()));
}

#[tokio::test]
async fn a_stream_tells_the_progress_of_the_load_before_its_answer() {
    let several = Several::start().await;
    several.chat(None).await;
    several.launcher.held.lock().unwrap().push(SECOND.0);
    let mut body = chat(Some("test/second"));
    body["stream"] = true.into();
    let mut stream = several.router.begin(CHAT, &body).await;
    assert!(stream.read_until(|bytes| has(bytes, "model test/second is loading")).await);
    several.gate.note_loading(SECOND, 0, 90);
    assert!(stream.read_until(|bytes| has(bytes, "model test/second is loading, 90 %, for ")).await);
    several.gate.tell(Event::Failed { model: SECOND, why: "no such file".into() });
    let text = stream.answer().await.text();
    let events = sse_data(&text);
    assert!(events[0]["error"]["message"].as_str().unwrap().contains("no such file"), "{text}");
    several.gate.tell(Event::LoadAsked { model: SECOND });
    let mut stream = several.router.begin(CHAT, &body).await;
    assert!(stream.read_until(|bytes| has(bytes, "model test/second is loading, for ")).await);
    several.gate.note_loading(SECOND, 1, 60);
    several.gate.note_loading(SECOND, 0, 40);
    let detail = several.gate.shown(SECOND).detail.unwrap_or_default();
    assert!(detail.starts_with("40 %, for "), "{detail}");
    several.launcher.load(SECOND, &several.sockets);
    let text = stream.answer().await.text();
    assert!(text.contains("\"content\":\"1\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn models_are_listed_with_their_states_and_an_unknown_one_is_named_with_those_that_exist() {
    let several = Several::start().await;
    several.chat(Some("test/second")).await;
    let list = several.router.get("/v1/models").await.ok();
    let shown =
        |index: usize| (list["data"][index]["id"].clone(), list["data"][index]["status"]["value"].clone());
    assert_eq!(
        [shown(0), shown(1), shown(2)],
        [
            ("test/model".into(), "unloaded".into()),
            ("test/second".into(), "loaded".into()),
            ("test/third".into(), "unloaded".into()),
        ]
    );
    let bytes = |index: usize| list["data"][index]["status"]["memory_bytes"].clone();
    assert_eq!((bytes(1), bytes(2)), (9.into(), 10.into()), "measured, and estimated");
    assert!(list["data"][1]["max_model_len"].is_u64() && list["data"][2]["max_model_len"].is_null());
    assert_eq!(several.router.get("/v1/models/test/second").await.ok(), list["data"][1]);
    let missing = several.router.post(CHAT, &chat(Some("test/fourth"))).await;
    let message = missing.fails(404, "model_not_found");
    assert!(
        ["test/model", "test/second", "test/third"].iter().all(|name| message.contains(name)),
        "{message}"
    );
    several.router.get("/v1/models/test/fourth").await.fails(404, "model_not_found");
    // What is no valid body names no model. The route says what is wrong, as on a server of one model.
    several.router.post_bytes(CHAT, b"{\"model\": 3").await.fails(400, "invalid_json");
    let body = json!({"model": 3, "messages": []});
    several.router.post(CHAT, &body).await.fails(400, "invalid_type");
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_hurts_no_other_and_is_not_tried_at_once() {
    let several = Several::start().await;
    several.launcher.held.lock().unwrap().push(SECOND.0);
    let body = chat(Some("test/second")).to_string();
    let mut failing = several.router.connect().await;
    failing.send("POST", CHAT, body.as_bytes()).await;
    several.wait(SECOND, "loading").await;
    several.gate.tell(Event::Failed { model: SECOND, why: "no such file".into() });
    let answer = failing.answer().await;
    assert!(answer.fails(503, "model_failed").contains("no such file"));
    assert!(answer.header("retry-after").is_some());
    several.router.post(CHAT, &chat(Some("test/second"))).await.fails(503, "model_failed");
    assert_eq!(content(&several.chat(Some("test/third")).await), "2");
    assert_eq!(several.launcher.asked(), ["load 1", "load 2"]);
    let list = several.router.get("/v1/models").await.ok();
    assert_eq!(list["data"][1]["status"]["value"], "failed");
    assert_eq!(list["data"][1]["status"]["detail"], "no such file");
}

#[tokio::test]
async fn a_key_sees_and_uses_only_its_models() {
    let keys = "[tenants.a]\nkeys = [\"key-of-tenant-a-0123456789\"]\nmodels = [\"test/second\"]\n\
                [tenants.b]\nkeys = [\"key-of-tenant-b-0123456789\"]\nadmin = true\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), keys).unwrap();
    let several =
        Several::start_with(Access::new(Some(file.path().to_owned()), None).unwrap(), Pull::Never).await;
    let (a, b) = ("key-of-tenant-a-0123456789", "key-of-tenant-b-0123456789");
    let list = several.router.ask(a, "GET", "/v1/models", &Value::Null).await.ok();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    // Its first model is the one that it may use.
    assert_eq!(content(&several.router.ask(a, "POST", CHAT, &chat(None)).await.ok()), "1");
    let refused = several.router.ask(a, "POST", CHAT, &chat(Some("test/third"))).await;
    let message = refused.fails(404, "model_not_found");
    assert!(message.contains("test/second") && !message.contains("test/model"), "{message}");
    let metrics = several.router.ask(a, "GET", "/metrics", &Value::Null).await.text();
    assert!(metrics.contains("model=\"test/second\"") && !metrics.contains("test/model"));
    several.router.ask(a, "POST", "/v1/models/test/third/load", &Value::Null).await.fails(403, "admins_only");
    several.router.ask(b, "POST", "/v1/models/test/third/load", &Value::Null).await.ok();
    assert_eq!(several.launcher.asked(), ["load 1", "load 2"]);
}

#[tokio::test]
async fn an_administrator_loads_pins_and_unloads_models() {
    let several = Several::start().await;
    let manage = async |model: &str, action: &str| {
        several.router.post(&format!("/v1/models/{model}/{action}"), &Value::Null).await
    };
    assert_eq!(manage("test/third", "load").await.ok()["status"]["value"], "loaded");
    assert_eq!(manage("test/third", "pin").await.ok()["status"]["pinned"], true);
    manage("test/third", "unload").await.fails(409, "model_pinned");
    // The pinned model stays, although others were used since.
    for name in [None, Some("test/second")] {
        several.chat(name).await;
    }
    assert_eq!(several.launcher.asked(), ["load 2", "load 0", "unload 0", "load 1"]);
    manage("test/third", "unpin").await.ok();
    assert_eq!(manage("test/third", "unload").await.ok()["status"]["value"], "unloaded");
    manage("test/third", "burn").await.fails(404, "route_not_found");
    manage("test/fourth", "load").await.fails(404, "model_not_found");
    several.launcher.held.lock().unwrap().extend([FIRST.0, 2]);
    several.gate.tell(Event::LoadAsked { model: FIRST });
    let mut queued = several.router.connect().await;
    queued.send("POST", "/v1/models/test/third/load", b"").await;
    several.wait(ModelId(2), "queued").await;
    manage("test/third", "unload").await.ok();
    assert!(queued.answer().await.fails(503, "model_failed").contains("has unloaded it meanwhile"));
    let one = Router::default().await;
    one.post("/v1/models/test/model/load", &Value::Null).await.fails(400, "not_on_demand");
}

#[tokio::test]
async fn an_unload_waits_for_open_streams_and_new_requests_wait_for_the_next_load() {
    let several = Several::start().await;
    several.chat(None).await;
    let using = several.gate.enter(FIRST, "test/model").await.unwrap();
    let mut unload = several.router.connect().await;
    unload.send("POST", "/v1/models/test/model/unload", b"").await;
    several.wait(FIRST, "unloading").await;
    let mut next = several.router.begin(CHAT, &chat(None)).await;
    several
        .router
        .wait("the request", |app| app.admission.open.available_permits() < app.limits.max_open)
        .await;
    assert_eq!(several.launcher.asked(), ["load 0"]);
    drop(using);
    assert_eq!(content(&next.answer().await.ok()), "0");
    unload.answer().await.ok();
    assert_eq!(several.launcher.asked(), ["load 0", "unload 0", "load 0"]);
}

#[tokio::test]
async fn a_request_that_nobody_waits_for_any_more_loads_nothing() {
    let several = Several::start().await;
    several.launcher.held.lock().unwrap().push(SECOND.0);
    let waiting = several.router.begin(CHAT, &chat(Some("test/second"))).await;
    several.wait(SECOND, "loading").await;
    let third = several.router.begin(CHAT, &chat(Some("test/third"))).await;
    several.wait(ModelId(2), "queued").await;
    drop(third);
    several.wait(ModelId(2), "unloaded").await;
    drop(waiting);
    several.router.wait_places().await;
    several.launcher.load(SECOND, &several.sockets);
    several.wait(SECOND, "loaded").await;
    assert_eq!(several.launcher.asked(), ["load 1"]);
}

#[tokio::test]
async fn the_metrics_of_each_model_have_its_name() {
    let several = Several::start().await;
    several.chat(Some("test/second")).await;
    let ended = |text: &str, model: &str| {
        let wanted = format!("trunkline_sequences_ended_total{{model=\"{model}\",reason=\"end_token\"}} 1");
        text.lines().any(|line| line == wanted)
    };
    let metrics = async || several.router.get("/metrics").await.text();
    // The end is counted after the last token is sent.
    eventually("the end to be counted", async || ended(&metrics().await, "test/second")).await;
    let text = metrics().await;
    assert!(!ended(&text, "test/model"), "{text}");
    let descriptions: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let different: std::collections::BTreeSet<&str> = descriptions.iter().copied().collect();
    assert_eq!(descriptions.len(), different.len(), "each metric is described once");
    let one = Router::default().await.get("/metrics").await.text();
    assert!(!one.contains("model="), "{one}");
}

#[tokio::test]
async fn requests_that_wait_for_a_model_leave_places_for_others() {
    let several = Several::start().await;
    several.chat(None).await;
    several.launcher.held.lock().unwrap().push(SECOND.0);
    let limit = several.router.app.limits.max_open;
    let most = SharedPlaces::most_of(limit);
    let mut waiting = Vec::new();
    for _ in 0..most {
        waiting.push(several.router.begin(CHAT, &chat(Some("test/second"))).await);
    }
    let free = |app: &App| app.admission.open.available_permits() == limit - most;
    eventually("all to wait", async || free(&several.router.app)).await;
    let refused = several.router.post(CHAT, &chat(Some("test/second"))).await;
    let message = refused.fails(429, "too_many_requests");
    assert!(message.contains("reserved for other models"), "{message}");
    assert_eq!(content(&several.chat(None).await), "0");
    several.launcher.load(SECOND, &several.sockets);
    for request in &mut waiting {
        assert_eq!(content(&request.answer().await.ok()), "1");
    }
}

#[tokio::test]
async fn operators_see_each_model() {
    let several = Several::start().await;
    several.router.get("/readyz").await.fails(503, "model_loading");
    several.router.get("/v1/kv?model=test/second").await.fails(503, "model_loading");
    several.chat(Some("test/second")).await;
    several.router.get("/readyz").await.refuses(200, "ready");
    several.chat(None).await;
    // A server without a model in memory loads one for the next request, so it is ready.
    for name in ["test/second", "test/model"] {
        several.router.post(&format!("/v1/models/{name}/unload"), &Value::Null).await.ok();
    }
    several.router.get("/readyz").await.refuses(200, "ready");
    several.chat(Some("test/second")).await;
    several.router.get("/livez").await.refuses(200, "ok");
    let lanes = several.router.get("/metrics").await.text();
    let losses = "trunkline_lane_losses_total{model=\"test/second\",lane=\"0\"} 0";
    assert!(lanes.lines().any(|line| line == losses), "an unload is no loss: {lanes}");

    let usage = several.router.get("/v1/usage").await.ok();
    let rows: Vec<(&Value, &Value)> =
        usage["data"].as_array().unwrap().iter().map(|row| (&row["model"], &row["requests"])).collect();
    assert_eq!(rows, [(&json!("test/model"), &json!(1)), (&json!("test/second"), &json!(2))]);

    let prompt_tokens = async |path: &str| several.router.get(path).await.ok()["prompt_tokens"].as_u64();
    let second = prompt_tokens("/v1/kv?model=test/second").await;
    assert!(second > Some(0));
    several.router.get("/v1/kv").await.fails(503, "shard_away");
    several.router.get("/v1/kv/tree?model=test/second&limit=2").await.ok();
    several.router.get("/v1/kv?model=test/fourth").await.fails(404, "model_not_found");
    several.router.get("/lora-adapters?model=test/second").await.ok();
    assert_eq!(several.router.get("/info?model=test/second").await.ok()["model_id"], "test/second");
    several.router.get("/info").await.fails(503, "shard_away");
    let unknown = several.router.get("/info?model=test/fourth").await;
    unknown.fails(404, "model_not_found");
    assert!(unknown.json()["error_type"].is_string(), "{}", unknown.text());
}

#[tokio::test]
async fn ollamas_clients_see_what_is_in_memory_and_say_how_long_it_stays() {
    let several = Several::start().await;
    let ask = async |fields: Value| {
        let message = json!([{"role": "user", "content": "hi"}]);
        let body = with(json!({"model": "test/second", "stream": false, "messages": message}), fields);
        several.router.post("/api/chat", &body).await.ok()
    };
    let names = async |path: &str| -> Vec<Value> {
        let list = several.router.get(path).await.ok();
        list["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect()
    };
    assert_eq!(ask(json!({})).await["message"]["content"], "1");
    assert_eq!(names("/api/tags").await, ["test/model:latest", "test/second:latest", "test/third:latest"]);
    assert_eq!(names("/api/ps").await, ["test/second:latest"]);
    let pulled = several.router.post("/api/pull", &json!({"model": "test/third"})).await;
    let lines: Vec<Value> = pulled.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["status"], "success");
    let missing = json!({"model": "llama3", "stream": false});
    several.router.post("/api/pull", &missing).await.fails(404, "model_not_pulled");
    several.router.post("/api/pull", &json!({})).await.fails(400, "missing_field");
    ask(json!({"keep_alive": "10m"})).await;
    let list = several.router.get("/api/ps").await.ok();
    let expires = list["models"][0]["expires_at"].as_str().unwrap();
    let left =
        humantime::parse_rfc3339(expires).unwrap().duration_since(std::time::SystemTime::now()).unwrap();
    assert!((500..=600).contains(&left.as_secs()), "{left:?}");
    let answer = ask(json!({"messages": [], "keep_alive": 0})).await;
    assert_eq!((&answer["done_reason"], &answer["done"]), (&"unload".into(), &true.into()));
    several.wait(SECOND, "unloaded").await;
    assert_eq!(ask(json!({"messages": []})).await["done_reason"], "load");
    assert_eq!(several.launcher.asked(), ["load 1", "unload 1", "load 1"]);
    // A stream is the default. Until the model is there, its lines have nothing but spaces.
    several.launcher.held.lock().unwrap().push(2);
    let body = json!({"model": "test/third", "messages": [{"role": "user", "content": "hi"}]});
    let mut stream = several.router.begin("/api/chat", &body).await;
    assert!(stream.read_until(|bytes| has(bytes, "application/x-ndjson")).await);
    several.wait(ModelId(2), "loading").await;
    several.launcher.load(ModelId(2), &several.sockets);
    let text = stream.answer().await.text();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["message"]["content"], "2", "{text}");
}

#[tokio::test]
async fn a_request_for_another_model_waits_until_it_is_found_and_learns_why_it_is_not() {
    let Several { router, mut reports, .. } = Several::start_with(Access::open(), Pull::Hub).await;
    let finder = router.app.models.finder().unwrap();
    // TGI's body has no model of its own, so the model that is found need not have this name.
    let body = json!({"model": "hf.co/org/new:latest", "inputs": "hi", "stream": true});
    let stream = router.post("/", &body);
    let launcher = async {
        let expected = Report::Find { model: "org/new".into(), downloads: true };
        assert_eq!(reports.recv().await.unwrap(), expected);
        finder.progress("org/new", 1, 4);
        // Another request waits for the same search.
        let body = json!({"model": "org/new", "stream": false});
        let other = router.post("/api/pull", &body);
        let found = async {
            let admission = &router.app.admission;
            let limit = admission.limits.max_open;
            eventually("the other request", async || admission.open.available_permits() + 2 <= limit).await;
            finder.end("org/new", Ok(SECOND));
        };
        let (pulled, ()) = tokio::join!(other, found);
        assert_eq!(pulled.ok()["status"], "success");
    };
    let (answer, ()) = tokio::join!(stream, launcher);
    let text = answer.text();
    assert!(text.contains(": model org/new is "), "{text}");
    assert!(text.contains(r#""generated_text":"1""#), "{text}");
    let lost = with(chat(Some("org/none")), json!({}));
    let launcher = async {
        reports.recv().await.unwrap();
        finder.end("org/none", Err("nobody has it".into()));
    };
    let (answer, ()) = tokio::join!(router.post(CHAT, &lost), launcher);
    assert!(answer.fails(404, "model_not_pulled").contains("nobody has it"));
    for name in ["gpt-4", "../secret", "org/", "org/a/b", "org/a:"] {
        router.post(CHAT, &chat(Some(name))).await.fails(404, "model_not_found");
    }
}

#[tokio::test]
async fn searches_are_bounded() {
    let several = Several::start_with(Access::open(), Pull::Hub).await;
    let finder = several.router.app.models.finder().unwrap();
    let caller = Caller::anybody();
    let names: Vec<String> = (0..8).map(|number| format!("org/model{number}")).collect();
    let _searches: Vec<_> = names.iter().map(|name| finder.seek(&caller, name).unwrap().unwrap()).collect();
    several.router.post(CHAT, &chat(Some("org/another"))).await.fails(503, "model_failed");
    finder.end("org/model0", Err("not there".into()));
    assert!(finder.seek(&caller, "org/another").unwrap().is_some());
}

#[tokio::test]
async fn an_administrator_who_joins_a_search_on_this_machine_begins_a_download() {
    let (finder, mut reports) = Finder::new(Pull::Hub);
    let (guest, admin) = (Caller::stranger(), Caller::anybody());
    let find = |downloads| Some(Report::Find { model: "org/new".into(), downloads });
    let _first = finder.seek(&guest, "org/new").unwrap().unwrap();
    let second = finder.seek(&admin, "org/new").unwrap().unwrap();
    let _third = finder.seek(&admin, "org/new").unwrap().unwrap();
    assert_eq!((reports.recv().await, reports.recv().await), (find(false), find(true)));
    assert!(reports.is_empty());
    finder.end("org/new", Err("it is not downloaded".into()));
    finder.end("org/new", Ok(SECOND));
    assert_eq!(second.found().await.unwrap(), SECOND);
}

#[tokio::test]
async fn a_removed_model_ends_its_streams_and_is_unknown_to_new_requests() {
    let several = Several::start().await;
    several.chat(Some("test/second")).await;
    let models = several.router.app.models.clone();
    let using = several.gate.try_enter(SECOND).unwrap();
    models.remove(SECOND);
    several.router.post(CHAT, &chat(Some("test/second"))).await.fails(404, "model_not_found");
    assert_eq!(several.launcher.asked(), ["load 1"]);
    drop(using);
    several.gate.forgotten(SECOND).await;
    assert_eq!(several.launcher.asked(), ["load 1", "unload 1"]);
    let usage = several.router.get("/v1/usage").await.ok();
    assert_eq!(
        (&usage["data"][0]["model"], &usage["data"][0]["requests"]),
        (&json!("test/second"), &json!(1))
    );
    let error = several.gate.enter(SECOND, "test/second").await.unwrap_err();
    assert!(matches!(error, ApiError::ModelRemoved { .. }));
}

#[tokio::test]
async fn an_adapter_belongs_to_the_model_that_its_registration_names() {
    let several = Several::start().await;
    several.chat(None).await;
    let load = async |fields: Value| {
        let body = with(json!({"lora_name": "sql", "lora_path": "/sql"}), fields);
        several.router.post("/v1/load_lora_adapter", &body).await
    };
    let states = async |model: &str| -> Vec<Value> {
        let rows = several.router.get(&format!("/lora-adapters?model={model}")).await.ok();
        rows.as_array().unwrap().iter().map(|row| row["state"].clone()).collect()
    };
    let of_second = || json!({"base_model_name": "test/second"});
    // The second model is not in memory, and is not loaded for this.
    assert_eq!(load(of_second()).await.status, 200);
    load(of_second()).await.fails(400, "invalid_value");
    assert_eq!(load(with(of_second(), json!({"lora_name": "lost", "lora_path": "/lost"}))).await.status, 200);
    assert_eq!(several.launcher.asked(), ["load 0"]);
    assert_eq!(states("test/second").await, ["unopened", "unopened"]);
    assert_eq!(states("test/model").await, [""; 0]);
    several.router.post(CHAT, &chat(Some("sql"))).await.fails(404, "model_not_found");
    assert_eq!(content(&several.chat(Some("test/second:sql")).await), "1");
    several.router.post(CHAT, &chat(Some("test/second:lost"))).await.fails(400, "adapter_unusable");
    assert_eq!(states("test/second").await, ["open", "unusable"]);
    // The default is the first model, which is in memory, so the adapter is opened at once.
    load(json!({"lora_path": "/lost"})).await.fails(400, "adapter_unusable");
    assert_eq!(load(json!({})).await.status, 200);
    assert_eq!(states("test/model").await, ["open"]);
    let unload = async |base: &str| {
        let body = json!({"lora_name": "sql", "base_model_name": base});
        several.router.post("/v1/unload_lora_adapter", &body).await
    };
    assert_eq!(unload("test/second").await.status, 200);
    unload("test/second").await.fails(404, "adapter_not_found");
    assert_eq!(content(&several.chat(Some("sql")).await), "0");
    unload("test/fourth").await.fails(404, "model_not_found");
    load(json!({"base_model_name": "test/fourth"})).await.fails(404, "model_not_found");
    let one = Router::default().await;
    let body = json!({"lora_name": "sql", "base_model_name": "test/second"});
    one.post("/v1/unload_lora_adapter", &body).await.fails(404, "model_not_found");
}

#[tokio::test]
async fn a_pull_is_charged_to_the_rate_of_its_tenant() {
    let keys = "[tenants.a]\nkeys = [\"key-of-tenant-a-0123456789\"]\nrequests_per_minute = 1\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), keys).unwrap();
    let access = Access::new(Some(file.path().to_owned()), None).unwrap();
    let several = Several::start_with(access, Pull::Local).await;
    let body = json!({"model": "test/second", "stream": false});
    let key = "key-of-tenant-a-0123456789";
    several.router.ask(key, "POST", "/api/pull", &body).await.ok();
    several.router.ask(key, "POST", "/api/pull", &body).await.fails(429, "rate_limit_exceeded");
}

#[tokio::test]
async fn a_request_that_waits_for_a_replaced_model_gets_the_one_that_has_its_name() {
    let several = Several::start().await;
    several.chat(Some("test/third")).await;
    several.launcher.held.lock().unwrap().extend([1, 7]);
    let models = several.router.app.models.clone();
    let replace = async {
        several.wait(SECOND, "loading").await;
        let third = models.entry(ModelId(2)).unwrap().opened().unwrap().clone();
        let open: Open = Box::new(move || {
            let third = third.clone();
            Box::pin(async { Ok(third) })
        });
        let settings =
            ModelSettings { bytes: 10, is_pinned: false, priority: 0, keep_alive: KeepAlive::Forever };
        models.add(Entry::new(ModelId(7), "test/second".into(), Vec::new(), open), settings);
        models.remove(SECOND);
        several.gate.tell(Event::Failed { model: SECOND, why: "it ended".into() });
        several.wait(ModelId(7), "loading").await;
        several.gate.tell(Event::Loaded { model: ModelId(7), bytes: None });
    };
    // TGI's route does not check the name again, which is that of another model here.
    let body = json!({"model": "test/second", "inputs": "hi"});
    let (answer, ()) = tokio::join!(several.router.post("/generate", &body), replace);
    assert_eq!(answer.ok()["generated_text"], "2");
}
