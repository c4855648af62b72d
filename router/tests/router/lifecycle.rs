//! Start, loss of the shard, drain, and the router process.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_base::tenants::Access;
use trunkline_engine::shard::{Check, ShardStatus};
use trunkline_generation::model::Model;
use trunkline_router::server::Server;
use trunkline_settings::{LogFormat, ServeSettings};

use crate::support::process::{PROGRAM, Process, WithSettings, settings};
use crate::support::{
    Answer, Connection, DEADLINE, MockShard, Router, ShardPlan, eventually, sse_data, user, write_model,
};

const CHAT: &str = "/v1/chat/completions";

pub fn streaming(max_tokens: u32) -> Value {
    json!({"messages": user("x"), "max_tokens": max_tokens, "stream": true})
}

/// Makes the same calls as the example in the crate's documentation, which is not compiled.
#[tokio::test]
async fn the_documentations_example_serves_requests() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let model = Model::load(folder.path(), "my-model".into()).unwrap();
    let socket = folder.path().join("shard.sock");
    let server = Server::start(model, ServerLimits::default(), Access::open(), vec![socket]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server.run(listener, std::future::pending()));
    let answer = Connection::open(address).await.request("GET", "/livez", b"").await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn the_server_is_not_ready_until_the_shard_is() {
    let mut router = Router::start_without_shard(Limits::default()).await;
    assert_eq!(router.get("/livez").await.status, 200);
    for (path, kind) in [
        ("/readyz", "unhealthy"),
        ("/health", "healthcheck"),
        ("/ping", "healthcheck"),
        ("/info", "unhealthy"),
    ] {
        let answer = router.get(path).await;
        answer.fails(503, "model_loading");
        assert_eq!(answer.json()["error_type"], kind, "{path}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    router.post(CHAT, &streaming(1)).await.fails(503, "model_loading");
    router.get("/v1/models").await.fails(503, "model_loading");
    router.post("/v1/chat/completions/render", &streaming(1)).await.fails(503, "model_loading");
    // `/info`, the chat, the models and the rendering count as rejections. Probes do not.
    assert_eq!(router.metric("trunkline_rejections_total{code=\"model_loading\"}").await, 4.0);
    router.start_shard(ShardPlan::default()).await;
    assert_eq!(router.get("/readyz").await.status, 200);
    for path in ["/health", "/ping"] {
        let answer = router.get(path).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
    assert_eq!(router.post(CHAT, &streaming(1)).await.status, 200);
}

/// Limits of a router that does not wait for another shard.
fn impatient() -> Limits {
    Limits { shard_restart_timeout: Duration::ZERO, ..Limits::default() }
}

#[tokio::test]
async fn without_patience_a_killed_shard_ends_streams_with_an_error_and_the_next_one_serves() {
    let mut router = Router::start(ShardPlan::endless(), impatient()).await;
    let mut stream = router.begin(CHAT, &streaming(8000)).await;
    assert!(stream.read_until(|bytes| bytes.len() > 2000).await);
    router.kill_shard();
    assert!(stream.read_until(|bytes| bytes.ends_with(b"0\r\n\r\n")).await);
    let events = sse_data(&stream.received().replace("\r\n", "\n\n"));
    assert_eq!(events.last().unwrap()["error"]["code"], "shard_lost");
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
    assert_eq!(router.get("/readyz").await.status, 503);
    let away = router.post(CHAT, &streaming(1)).await;
    away.fails(503, "shard_away");
    assert_eq!(away.header("retry-after"), Some("1"));
    assert_eq!(router.get("/livez").await.status, 200);

    router.start_shard(ShardPlan::default()).await;
    let answer = router.post(CHAT, &json!({"messages": user("x")})).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello wörld 🙂!");
    router.wait_idle().await;
}

#[tokio::test]
async fn killed_shard_ends_tgis_requests_with_tgis_error() {
    let mut router = Router::start(ShardPlan::endless().held(), impatient()).await;
    let mut connection = router.begin("/generate", &json!({"inputs": "x"})).await;
    router.wait_running(1).await;
    router.kill_shard();
    let answer = connection.answer().await;
    answer.fails(424, "shard_lost");
    assert_eq!(answer.json()["error_type"], "generation");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_line_whether_it_is_refused_or_fails_later() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let shard = MockShard::start(&folder.path().join("shard.sock"), ShardPlan::endless());
    let mut settings = settings(folder.path());
    settings.limits.shard_restart_timeout = Duration::ZERO;
    let mut command = Command::new(PROGRAM);
    command.env("TRUNKLINE_API_KEY", "sk-0123456789abcdef");
    let process = Process::start(command.with_settings(folder.path(), &settings));
    process.wait_until_ready().await;
    let address = process.address;
    let send = async move |method: &str, path: &str, body: &str| {
        let headers = [("authorization", "Bearer sk-0123456789abcdef")];
        Connection::open(address).await.request_with(method, path, &headers, body.as_bytes()).await
    };
    let body = json!({"prompt": vec![7; 20], "max_tokens": 8000}).to_string();
    let failing = tokio::spawn({
        let body = body.clone();
        async move { send("POST", "/v1/completions", &body).await }
    });
    let is_some =
        |line: &str| line.strip_prefix("trunkline_output_tokens_total ").is_some_and(|count| count != "0");
    eventually("a token", async || send("GET", "/metrics", "").await.text().lines().any(is_some)).await;
    shard.kill();
    failing.await.unwrap().fails(502, "shard_lost");
    process.wait_for_log("shard lost", 1);
    send("POST", "/v1/completions", &body).await.fails(503, "shard_away");
    process.wait_for_log("code=shard_away", 1);
    let log = process.end().1;
    let lines = |code: &str| -> Vec<String> {
        log.lines().filter(|line| line.contains(&format!("code={code}"))).map(str::to_owned).collect()
    };
    let [failed, refused] = ["shard_lost", "shard_away"].map(lines);
    assert_eq!((failed.len(), refused.len()), (1, 1), "{log}");
    assert!(failed[0].contains("request ended") && failed[0].contains("prompt_tokens=20"), "{failed:?}");
    assert!(refused[0].contains("request refused"), "{refused:?}");
}

/// A shard whose reply to each prompt is a count with many numbers, which takes many steps.
pub fn counting() -> ShardPlan {
    ShardPlan::saying(&(0..100).map(|number| format!("{number} ")).collect::<String>())
}

/// Requests of different kinds, each with an answer of many tokens.
pub fn kinds() -> Vec<(&'static str, Value)> {
    let messages = user("count");
    let schema = json!({"type": "json_object", "value": {"type": "string", "maxLength": 60}});
    vec![
        (CHAT, json!({"messages": messages, "max_tokens": 200, "stream_options": {"include_usage": true}})),
        (CHAT, json!({"messages": messages, "max_tokens": 200, "n": 3, "logprobs": true, "top_logprobs": 2})),
        ("/v1/completions", json!({"prompt": "count", "max_tokens": 150, "logprobs": 1, "echo": true})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 150, "model": "test/model"})),
        ("/v1/responses", json!({"input": "count", "max_output_tokens": 150, "store": false})),
        ("/generate", json!({"inputs": "count", "parameters": {"max_new_tokens": 60, "grammar": schema}})),
    ]
}

/// Returns an answer's JSON, or that of its events, without ids and times, which differ from answer to answer.
pub fn comparable(answer: &Answer) -> Vec<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| {
                    !name.ends_with("id") && !name.ends_with("created") && !name.ends_with("_at")
                });
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let is_stream = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let text = answer.text();
    let parse = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| Value::from(json));
    let mut values: Vec<Value> = if is_stream {
        text.lines().filter_map(|line| line.strip_prefix("data:")).map(|data| parse(data.trim())).collect()
    } else {
        vec![parse(&text)]
    };
    assert!(!values.is_empty(), "{text}");
    values.iter_mut().for_each(strip);
    // The order of different choices' events depends on the steps.
    values.sort_by_key(|value| value["choices"][0]["index"].as_u64());
    values
}

#[tokio::test]
async fn every_kind_of_answer_survives_two_killed_shards() {
    for (path, body) in kinds() {
        for stream in [false, true] {
            let mut body = body.clone();
            let path = if stream && path == "/generate" { "/generate_stream" } else { path };
            if !path.starts_with("/generate") {
                body["stream"] = json!(stream);
            }
            let mut router = Router::with(counting()).await;
            let expected = router.post(path, &body).await;
            assert_eq!(expected.status, 200, "{}", expected.text());
            // Each shard has permits for a few steps only, so it is in the middle of the answer when it is killed.
            router.kill_shard();
            router.wait("the loss", |app| app.served.shard_info().is_err()).await;
            let mut connection = router.begin(path, &body).await;
            for num_steps in [9, 14] {
                router.start_shard(counting().held()).await;
                router.add_steps(num_steps);
                router.wait("the steps", |_| router.shard().steps.available_permits() == 0).await;
                router.kill_shard();
                router.wait("the loss", |app| app.served.shard_info().is_err()).await;
            }
            router.start_shard(counting()).await;
            let answer = connection.answer().await;
            let is_same = comparable(&answer) == comparable(&expected);
            assert!(is_same, "{path}, stream {stream}:\n{}\ninstead of\n{}", answer.text(), expected.text());
            router.wait_idle().await;
            let stats = *router.app.served.stats.borrow();
            assert!(stats.replays > 0 && stats.convictions == 0, "{path} stream {stream}: {stats:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_crashes_the_shard_fails_by_itself() {
    let plan = ShardPlan { poison: Some(u32::from(b'%')), pace: Duration::from_millis(1), ..counting() };
    let router = Router::with(plan).await;
    let ask = async |text| router.post(CHAT, &json!({"messages": user(text), "max_tokens": 100})).await;
    let calm = ask("a").await.ok()["choices"][0]["message"]["content"].clone();
    let (one, two, poison, three) = tokio::join!(ask("a"), ask("b"), ask("100 %"), ask("c"));
    poison.fails(502, "crashed_shard");
    assert_eq!(poison.header("x-should-retry"), Some("false"));
    for answer in [one, two, three] {
        assert_eq!(answer.ok()["choices"][0]["message"]["content"], calm);
    }
    router.wait_idle().await;
    assert_eq!(router.metric("trunkline_sequences_convicted_total").await, 1.0);

    // The same request again crashes nothing, whatever its seed and its client's patience.
    for more in
        [json!({}), json!({"seed": 3}), json!({"max_tokens": 7}), json!({"timeout": 60, "stream": true})]
    {
        let mut body = json!({"messages": user("100 %"), "max_tokens": 100});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = router.post(CHAT, &body).await;
        refused.fails(400, "poison_request");
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        assert!(refused.text().contains("refused for 600 s"), "{}", refused.text());
    }
    assert_eq!(router.app.served.stats.borrow().excused_losses, 2);

    let generate = json!({"inputs": "50 %", "parameters": {"max_new_tokens": 50}});
    for (status, code) in [(424, "crashed_shard"), (422, "poison_request")] {
        let answer = router.post("/generate", &generate).await;
        answer.fails(status, code);
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    assert_eq!(router.app.served.stats.borrow().excused_losses, 4);
    assert_eq!(router.metric("trunkline_sequences_convicted_total").await, 2.0);
}

#[tokio::test]
async fn a_shard_lost_in_a_drain_ends_its_requests_at_once() {
    let mut router = Router::with(ShardPlan::endless().held()).await;
    let mut connection = router.begin(CHAT, &streaming(8000)).await;
    router.wait_running(1).await;
    router.terminate();
    router.wait("the drain", |app| app.served.readiness().is_err()).await;
    router.kill_shard();
    assert!(connection.answer().await.text().contains("shard_lost"));
}

#[tokio::test]
async fn a_drain_ends_requests_that_wait_for_a_lost_shard() {
    let mut router = Router::with(ShardPlan::endless().held()).await;
    let mut connection = router.begin(CHAT, &streaming(8000)).await;
    router.wait_running(1).await;
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    router.terminate();
    assert!(connection.answer().await.text().contains("shard_lost"));
}

#[tokio::test]
async fn another_contract_version_is_never_ready() {
    let mut router = Router::start_without_shard(Limits::default()).await;
    let plan = ShardPlan { contract_version: 99, ..ShardPlan::default() };
    let wrong = MockShard::start(&router.socket, plan);
    router.wait("a health answer", |app| app.served.health.borrow()[0].last != Check::Away).await;
    assert!(matches!(router.app.served.shards.borrow()[0], ShardStatus::Loading));
    wrong.kill();
    std::fs::remove_file(&router.socket).unwrap();
    router.start_shard(ShardPlan::default()).await;
}

#[tokio::test]
async fn a_stuck_step_makes_the_server_not_ready() {
    let mut router = Router::start_without_shard(Limits::default()).await;
    let plan = ShardPlan { step_running_ms: 61_000, ..ShardPlan::default() };
    router.shard = Some(MockShard::start(&router.socket, plan));
    router
        .wait("shard and health", |app| {
            matches!(app.served.shards.borrow()[0], ShardStatus::Ready(_))
                && app.served.health.borrow()[0].last != Check::Away
        })
        .await;
    router.get("/readyz").await.fails(503, "shard_stuck");
    assert_eq!(router.get("/livez").await.status, 200);
}

#[tokio::test]
async fn a_server_is_not_alive_while_its_shard_hangs_again_and_again() {
    let short = Duration::from_millis(10);
    let limits = Limits { stuck_step_timeout: short, hung_shard_factor: 1, ..Limits::default() };
    let mut limits = ServerLimits::from(limits);
    (limits.timeouts.health_interval, limits.timeouts.health) = (short / 2, short);
    let mut router = Router::start_without_shard(limits).await;
    let plan = ShardPlan { step_running_ms: 61_000, ..ShardPlan::default() };
    router.shard = Some(MockShard::start(&router.socket, plan));
    router.wait("the third hang", |app| app.served.health.borrow()[0].hangs >= 3).await;
    router.get("/livez").await.fails(503, "shard_hung");

    router.kill_shard();
    router.start_shard(ShardPlan::default()).await;
    router.wait("a good while", |app| app.served.health.borrow()[0].hangs == 0).await;
    assert_eq!(router.get("/livez").await.status, 200);
}

#[tokio::test]
async fn drain_finishes_streams_and_refuses_new_requests() {
    let mut router = Router::with(ShardPlan::endless().held()).await;
    let mut stream = router.begin(CHAT, &streaming(30)).await;
    router.wait_running(1).await;
    router.terminate();
    router.wait("the drain", |app| app.served.readiness().is_err()).await;
    let refused = router.post(CHAT, &streaming(1)).await;
    refused.fails(503, "draining");
    router.get("/v1/models").await.fails(503, "draining");
    router.post("/v1/chat/completions/render", &streaming(1)).await.fails(503, "draining");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(router.get("/readyz").await.json()["code"], "draining");
    assert_eq!(router.get("/livez").await.status, 200);
    let tokens = router.post("/tokenize", &json!({"inputs": "hello"})).await.ok();
    assert!(!tokens.as_array().unwrap().is_empty(), "what needs no shard is answered");
    router.add_steps(1000);
    let events = stream.answer().await.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn drain_that_takes_too_long_ends_streams_with_an_error() {
    let graceful_termination_timeout = Duration::from_millis(20);
    let limits = ServerLimits { graceful_termination_timeout, ..ServerLimits::default() };
    let mut router = Router::start(ShardPlan::endless().held(), limits).await;
    let mut stream = router.begin(CHAT, &streaming(30)).await;
    router.add_steps(5);
    // The prompt takes the first step.
    let has_five = |bytes: &[u8]| String::from_utf8_lossy(bytes).matches("\"content\":").count() > 4;
    assert!(stream.read_until(has_five).await);
    router.terminate();
    let events = stream.answer().await.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "terminated");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("the server stopped after 5 tokens of the output"), "{message}");
    assert!(message.contains("`continue_final_message`"), "{message}");
    let num_cut = tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
    assert_eq!(num_cut, 1);
}

/// Waits until the router has closed its listener, which no other process holds.
async fn refuses_connections(router: &Router) {
    eventually("a closed port", async || TcpStream::connect(router.address).await.is_err()).await;
}

#[tokio::test]
async fn a_replaced_router_serves_its_open_connections_to_their_end() {
    let mut router = Router::with(ShardPlan::endless().held()).await;
    let (mut early, mut probe, mut late) =
        (router.connect().await, router.connect().await, router.connect().await);
    for connection in [&mut early, &mut probe, &mut late] {
        let answer = connection.request("GET", "/readyz", b"").await;
        assert_eq!((answer.status, answer.header("connection")), (200, None));
    }
    early.send("POST", CHAT, streaming(30).to_string().as_bytes()).await;
    router.add_steps(3);
    assert!(early.read_until(|bytes| String::from_utf8_lossy(bytes).contains("data:")).await);
    router.replace();
    refuses_connections(&router).await;

    let ready = probe.request("GET", "/readyz", b"").await;
    assert_eq!((ready.status, ready.header("connection")), (200, Some("close")));
    late.send("POST", CHAT, streaming(20).to_string().as_bytes()).await;
    let max_open = router.app.limits.max_open;
    router.wait("the second request", |app| app.admission.open.available_permits() == max_open - 2).await;
    router.add_steps(1000);
    for (connection, closes) in [(&mut early, None), (&mut late, Some("close"))] {
        let answer = connection.answer().await;
        assert_eq!(answer.header("connection"), closes);
        let events = answer.events();
        assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    }
    // The first answer began before the router was replaced, so its connection is still open.
    let again = early.request("POST", CHAT, streaming(2).to_string().as_bytes()).await;
    assert_eq!((again.status, again.header("connection")), (200, Some("close")));
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_replaced_router_closes_connections_that_stay_idle() {
    let mut router = Router::default().await;
    let mut idle = router.connect().await;
    assert_eq!(idle.request("GET", "/livez", b"").await.status, 200);
    router.replace();
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
    assert!(!idle.read_until(|_| false).await, "the connection is closed");
}

#[tokio::test]
async fn a_replaced_router_drains_after_the_time_limit() {
    let graceful_termination_timeout = Duration::from_millis(20);
    let limits = ServerLimits { graceful_termination_timeout, ..ServerLimits::default() };
    let mut router = Router::start(ShardPlan::endless().held(), limits).await;
    let mut stream = router.begin(CHAT, &streaming(30)).await;
    router.wait_running(1).await;
    router.replace();
    let events = stream.answer().await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "terminated");
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_router_beside_another_answers_once_its_shard_is_ready() {
    let mut router = Router::start_beside_another().await;
    let mut connection = router.connect().await;
    connection.send("GET", "/readyz", b"").await;
    router.start_shard(ShardPlan::default()).await;
    assert_eq!(connection.answer().await.status, 200, "a router that answers too early says 503");

    let mut never_ready = Router::start_beside_another().await;
    never_ready.terminate();
    tokio::time::timeout(DEADLINE, &mut never_ready.running).await.unwrap().unwrap().unwrap();
}

/// Returns the command for a router with the model in `folder`, but without a shard.
fn command(folder: &Path, port: u16) -> Command {
    let mut settings = settings(folder);
    settings.server.port = port;
    settings.logging.log_format = Some(LogFormat::Json);
    let mut command = Command::new(PROGRAM);
    command.with_settings(folder, &settings).stdin(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a router that cannot start, and returns the one line that it prints.
fn failure(mut command: Command) -> String {
    let done = command.output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    stderr
}

#[test]
fn port_in_use_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let line = failure(command(folder.path(), port));
    assert!(line.starts_with(&format!("error: cannot listen on 127.0.0.1:{port}: ")), "{line}");
    let mut settings = settings(folder.path());
    settings.server.metrics_port = port;
    let mut command = Command::new(PROGRAM);
    command.with_settings(folder.path(), &settings);
    let line = failure(command);
    assert!(line.contains("hint: choose another `--metrics-port` or `--metrics-hostname`"), "{line}");
}

#[test]
fn unusable_settings_are_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let with_settings = |settings: ServeSettings| {
        let mut command = Command::new(PROGRAM);
        command.with_settings(folder.path(), &settings);
        failure(command)
    };
    let with_arguments = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        failure(command)
    };
    let mut out_of_range = settings(folder.path());
    out_of_range.limits.max_tools = 70_000;
    let mut without_shards = settings(folder.path());
    without_shards.shard_sockets.clear();
    let mut only_prefill = settings(folder.path());
    only_prefill.limits.prefill_replicas = 1;
    let mut without_disk = settings(folder.path());
    without_disk.shard_sockets.push("other.sock".into());
    without_disk.limits.prefill_replicas = 1;
    let model_path = folder.path().join("model.gguf");
    let (empty, missing) = (folder.path().join("empty.json"), folder.path().join("missing.json"));
    std::fs::write(&empty, "{}").unwrap();
    for (line, wanted) in [
        (with_settings(out_of_range), "`--max-tools` is `70000`; expected a whole number from 0 to 4096"),
        (with_settings(without_shards), "the settings name no socket in `shard_sockets`"),
        (with_settings(only_prefill), "`--prefill-replicas` is 1, but the number of shards is 1; hint: "),
        (with_settings(without_disk), "`--prefill-replicas` needs `--kv-disk-path`, through which "),
        (with_settings(ServeSettings { model_path, ..settings(folder.path()) }), "model.gguf"),
        (with_arguments(&[]), "`--settings` is missing; hint: start the router with `trunkline serve`"),
        (with_arguments(&["--port"]), "unknown argument `--port`; hint: "),
        (with_arguments(&["--settings"]), "`--settings` needs a file; hint: "),
        (with_arguments(&["--settings", empty.to_str().unwrap()]), "missing field `shard_sockets`"),
        (with_arguments(&["--settings", missing.to_str().unwrap()]), "No such file"),
    ] {
        assert!(line.starts_with("error: ") && line.contains(wanted), "{line}");
    }
}

#[test]
fn version_and_help_go_to_stdout() {
    for (argument, wanted) in [("--version", "trunkline-router "), ("--help", "--settings <FILE>")] {
        let done = Command::new(PROGRAM).arg(argument).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty());
        assert!(String::from_utf8(done.stdout).unwrap().contains(wanted));
    }
}

#[test]
fn end_of_the_lifeline_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let mut child = command(folder.path(), 0).arg("--lifeline").spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"still here").unwrap();
    // The process listens. Dropping the other end of the lifeline then ends it.
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (entry["message"].as_str(), entry["target"].as_str()),
        (Some("router is listening"), Some("router"))
    );
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
