//! Request bodies, sent through the whole router with a mock shard.
//!
//! Every request must be answered in time, with a success or with a client error that has a message in the dialect's
//! own form.

use std::sync::OnceLock;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use trunkline_api::dialect::Errors;
use trunkline_api::openapi::ApiDoc;
use trunkline_api::route::{self, ROUTES, Route};
use trunkline_base::limits::ServerLimits;
use trunkline_base::tenants::Access;
use trunkline_generation::model::Model;
use trunkline_router::server::{Front, Server, routes};
use utoipa::OpenApi;

use crate::event::parse_events;
use crate::memory::peak_bytes;
use crate::mock::{MockShard, ShardPlan, bytes, write_model};

/// The longest wait for an answer, which is reached only if the router hangs.
const DEADLINE: Duration = Duration::from_secs(20);
const MAX_ANSWER_BYTES: usize = 256 << 20;

struct Fixture {
    runtime: Runtime,
    routes: axum::Router,
    // Kept alive because dropping them stops them.
    _server: Server,
    _shard: MockShard,
    _folder: tempfile::TempDir,
}

fn fixture() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let socket = folder.path().join("shard.sock");
        let model = Model::load(folder.path(), "test/model".into()).unwrap();
        let replies = [
            "Hi",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
            "<think>x</think>y",
        ];
        let plan =
            ShardPlan { replies: replies.map(bytes).to_vec(), keep_plans: false, ..ShardPlan::default() };
        let (server, shard) = runtime.block_on(async {
            let server =
                Server::start(model, ServerLimits::default(), Access::open(), vec![socket.clone()]).unwrap();
            let shard = MockShard::start(&socket, plan);
            let mut statuses = server.app.served.shards.clone();
            tokio::time::timeout(DEADLINE, async {
                while server.app.served.shard_info().is_err() {
                    statuses.changed().await.unwrap();
                }
            })
            .await
            .expect("the router finds its shard");
            (server, shard)
        });
        let routes = routes::routes_of(server.app.clone(), &Front::default());
        Fixture { runtime, routes, _server: server, _shard: shard, _folder: folder }
    })
}

/// Returns the routes that read a body, which the first byte of an input selects. An admin's bodies name files to open.
fn routes_with_body() -> &'static [&'static Route] {
    static FOUND: OnceLock<Vec<&Route>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let document = serde_json::to_value(ApiDoc::openapi()).unwrap();
        let has_body = |route: &&Route| {
            let method = route.method.as_str().to_lowercase();
            document["paths"][route.shown_path()][method].get("requestBody").is_some()
        };
        ROUTES.iter().filter(|route| route.access != route::Access::Admins).filter(has_body).collect()
    })
}

/// Runs an input that consists of one byte for the route and the body.
pub fn run(data: &[u8]) {
    let Some((&number, body)) = data.split_first() else { return };
    let routes = routes_with_body();
    let route = routes[usize::from(number) % routes.len()];
    let fixture = fixture();
    let request = Request::builder().method(route.method.clone()).uri(route.path.replace("{id}", "x"));
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let answered = async {
        let response = fixture.routes.clone().oneshot(request).await.unwrap();
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.map(|form| form.to_str().unwrap().to_owned()).unwrap_or_default();
        let status = response.status();
        (status, content_type, to_bytes(response.into_body(), MAX_ANSWER_BYTES).await.unwrap())
    };
    let answered = fixture.runtime.block_on(async { tokio::time::timeout(DEADLINE, answered).await });
    let (status, content_type, answer) = answered.expect("an answer comes in time");
    if content_type.starts_with("text/event-stream") {
        for event in parse_events(&answer) {
            assert!(event == "[DONE]" || serde_json::from_str::<Value>(&event).is_ok(), "{event}");
        }
        return;
    }
    if content_type.starts_with("application/x-ndjson") {
        for line in answer.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            assert!(serde_json::from_slice::<Value>(line).is_ok(), "{}", String::from_utf8_lossy(line));
        }
        return;
    }
    let value: Value = serde_json::from_slice(&answer).expect("answers are JSON");
    if status == StatusCode::OK {
        return;
    }
    assert!(status.is_client_error(), "{} answers {status} {value}", route.path);
    let error = &value["error"];
    // `/invocations` answers in the dialect of its body.
    let has_object = match route.errors {
        Errors::OpenAi | Errors::Anthropic => true,
        Errors::Ollama | Errors::Tgi => route.path == "/invocations" && error.is_object(),
    };
    let message = if has_object { &error["message"] } else { error };
    assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{} answers {value}", route.path);
    assert_eq!(value["type"] == "error", route.errors == Errors::Anthropic, "{value}");
}

/// Returns the answer to a request that must succeed.
pub fn answer_of(route: &str, body: &Value) -> Value {
    let fixture = fixture();
    let request = Request::post(route).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let answer = fixture.runtime.block_on(async {
        let response = fixture.routes.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{route}");
        to_bytes(response.into_body(), MAX_ANSWER_BYTES).await.unwrap()
    });
    serde_json::from_slice(&answer).unwrap()
}

/// Returns the status of a request's answer, and the most bytes that its handler allocated at any one time.
pub fn memory_of(route: &str, body: String) -> (StatusCode, usize) {
    let fixture = fixture();
    let request = Request::post(route).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body)).unwrap();
    let answered = fixture.routes.clone().oneshot(request);
    let mut status = StatusCode::OK;
    // The runtime runs the handler on this thread.
    let peak = peak_bytes(|| status = fixture.runtime.block_on(answered).unwrap().status());
    (status, peak)
}

pub fn words() -> Vec<String> {
    let document = serde_json::to_value(ApiDoc::openapi()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let names = schemas.values().filter_map(|schema| schema["properties"].as_object());
    names.flat_map(|properties| properties.keys().map(|name| format!("\"{name}\":"))).collect()
}

/// Returns bodies that together use most fields of every route.
pub fn seeds() -> Vec<Vec<u8>> {
    let user = json!([{"role": "user", "content": "x"}]);
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]});
    let function = json!({"name": "f", "description": "d", "parameters": schema});
    let parts = json!([{"role": "system", "content": "s"}, {"role": "user", "content": [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]);
    let called = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "2"}]);
    let blocks = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]}]}]);
    let bodies = [
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true},
            "logprobs": true, "top_logprobs": 2, "n": 2, "seed": -1, "stop": ["a", "b"], "temperature": 0.5,
            "top_p": 0.9, "top_k": 3, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": parts, "max_completion_tokens": 4, "prompt_cache_key": "k", "cache_salt": "s",
            "prompt_cache_retention": "24h", "cache_retention": {"priority": "high", "ttl_s": 9}}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "é", "text": "a",
            "cache_control": {"type": "ephemeral"}}, {"type": "text", "refusal": "b", "text": "🙂"}]}], "max_tokens": 4}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": called, "tools": [{"type": "function", "function": function}],
            "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 40}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 40, "response_format": {"type": "json_schema",
            "json_schema": {"name": "n", "strict": true, "schema": schema}}, "reasoning_effort": "low",
            "chat_template_kwargs": {"a": [1]}, "include_reasoning": false}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 9, "guided_regex": "[a-c]{2,3}", "continue_final_message": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": ["ab", [97, 98]], "max_tokens": 4, "best_of": 3, "n": 2, "echo": true, "logprobs": 2}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [97], "max_tokens": 9, "guided_grammar": "start: /a+/", "stream": true}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"}], "instructions": "i", "store": true,
            "tools": [{"type": "function", "name": "f", "parameters": schema}], "max_output_tokens": 4, "stream": true,
            "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]}, {"role": "assistant",
            "content": [{"type": "refusal", "refusal": "é", "text": "a"}]}, {"type": "item_reference", "id": "msg_x"}],
            "previous_response_id": "resp_x"}),
        ),
        (
            "/v1/messages",
            json!({"messages": blocks, "system": [{"type": "text", "text": "s"}], "max_tokens": 4, "stream": true,
            "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["z"]}),
        ),
        ("/v1/messages/count_tokens", json!({"messages": user, "system": "s"})),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"max_new_tokens": 4, "details": true, "do_sample": true, "best_of": 2,
            "top_n_tokens": 2, "truncate": 3, "return_full_text": true, "stop": ["q"], "seed": 1}}),
        ),
        (
            "/generate_stream",
            json!({"inputs": "x", "parameters": {"max_new_tokens": 40, "grammar": {"type": "json", "value": schema}}}),
        ),
        (
            "/",
            json!({"inputs": "x", "parameters": {"decoder_input_details": true, "typical_p": 0.5, "watermark": true, "max_new_tokens": 2}}),
        ),
        ("/tokenize", json!({"inputs": "xé🙂", "add_special_tokens": false})),
        (
            "/chat_tokenize",
            json!({"messages": parts, "add_generation_prompt": false, "tools": [{"type": "function", "function": function}]}),
        ),
        (
            "/invocations",
            json!({"messages": user, "max_tokens": 2, "stop_token_ids": [105], "logit_bias": {"97": -1.5}}),
        ),
        (
            "/invocations",
            json!({"prompt": "x", "max_tokens": 2, "prompt_logprobs": 1, "truncate_prompt_tokens": -1}),
        ),
        ("/invocations", json!({"inputs": "x", "stream": true, "parameters": {"max_new_tokens": 2}})),
        (
            "/vertex",
            json!({"instances": [{"inputs": "x", "parameters": {"max_new_tokens": 2}}, {"messages": user,
            "max_tokens": 2, "temperature": 0.5}]}),
        ),
        (
            "/api/chat",
            json!({"messages": user, "options": {"num_predict": 4, "top_k": 2}, "think": false, "format": "json"}),
        ),
        (
            "/api/generate",
            json!({"prompt": "x", "options": {"num_predict": 4}, "stream": false, "keep_alive": "5m"}),
        ),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 2, "input_extra": [{"text": "c"}]}),
        ),
        ("/detokenize", json!({"tokens": [97, 98]})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1})),
        ("/v1/kv/tree/{id}/pin", json!({"ttl_s": 9})),
    ];
    let number =
        |path: &str| routes_with_body().iter().position(|route| route.path == path).expect("a route") as u8;
    let seed = |(path, body): (&str, Value)| [&[number(path)], body.to_string().as_bytes()].concat();
    bodies.into_iter().map(seed).collect()
}
