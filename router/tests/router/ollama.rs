//! The routes of Ollama's API.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, END, Router, ShardPlan, bytes, prompt_of, user, with, write_model};
use crate::vectors::vectors;
use trunkline_base::limits::Limits;
use trunkline_generation::model::{Model, ReplyStyle};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const TEXT: &str = "Hello wörld 🙂!";
const CONTEXT: usize = 8192;

/// Returns a body for `/api/chat` whose answer is one object.
fn chat(fields: Value) -> Value {
    with(json!({"messages": user("hi"), "stream": false}), fields)
}

/// Returns a body for `/api/generate` whose answer is one object.
fn prompt(fields: Value) -> Value {
    with(json!({"prompt": "hi", "stream": false}), fields)
}

/// Returns the concatenated texts at a JSON pointer of all lines.
fn joined(lines: &[Value], pointer: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect()
}

fn times(answer: &Value) -> [u64; 4] {
    ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"]
        .map(|name| answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}")))
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece_on_request() {
    let router = Router::default().await;
    let answer = router.post(CHAT, &chat(json!({"model": "test/model"}))).await.ok();
    assert_eq!(answer["message"], json!({"role": "assistant", "content": TEXT}));
    assert_eq!(
        json!([answer["model"], answer["done"], answer["done_reason"]]),
        json!(["test/model", true, "stop"])
    );
    assert_eq!(answer["prompt_eval_count"], prompt_of("hi").len());
    assert_eq!(answer["eval_count"], bytes(TEXT).len() + 1);
    let [total, parts @ ..] = times(&answer);
    assert!(parts.iter().sum::<u64>() <= total, "{answer}");
    assert!(humantime_like(answer["created_at"].as_str().unwrap()), "{answer}");
    assert_eq!(router.shard().last_start().token_ids, prompt_of("hi"));
    router.wait_idle().await;
}

/// Returns true for a time such as `2026-11-29T12:00:00.123456789Z`.
fn humantime_like(text: &str) -> bool {
    text.len() == 30 && text.ends_with('Z') && text.as_bytes()[10] == b'T'
}

#[tokio::test]
async fn a_chat_is_streamed_as_lines_by_default() {
    let router = Router::default().await;
    let lines = router.post(CHAT, &json!({"messages": user("hi")})).await.lines();
    let (last, pieces) = lines.split_last().unwrap();
    assert_eq!(joined(&lines, "/message/content"), TEXT);
    assert!(pieces.iter().all(|line| line["done"] == false && line.get("eval_count").is_none()));
    assert!(lines.iter().all(|line| line["message"]["role"] == "assistant" && line["model"] == "test/model"));
    assert_eq!(
        json!([last["message"]["content"], last["done"], last["done_reason"]]),
        json!(["", true, "stop"])
    );
    assert_eq!(last["eval_count"], bytes(TEXT).len() + 1);
    let [total, parts @ ..] = times(last);
    assert!(parts.iter().sum::<u64>() <= total, "{last}");
}

#[tokio::test]
async fn a_prompt_becomes_a_chat_unless_it_is_raw() {
    let router = Router::default().await;
    let answer = router.post(GENERATE, &prompt(json!({}))).await.ok();
    assert_eq!((&answer["response"], &answer["done_reason"]), (&json!(TEXT), &json!("stop")));
    assert_eq!(answer.get("message"), None);
    assert_eq!(router.shard().last_start().token_ids, prompt_of("hi"));
    router.post(GENERATE, &prompt(json!({"raw": true}))).await.ok();
    assert_eq!(router.shard().last_start().token_ids, bytes("hi"));
    router.post(GENERATE, &prompt(json!({"system": "Be brief."}))).await.ok();
    assert!(router.last_prompt().contains("system\nBe brief."), "{}", router.last_prompt());
    let lines = router.post(GENERATE, &json!({"prompt": "hi"})).await.lines();
    assert_eq!(joined(&lines, "/response"), TEXT);
    assert_eq!(lines.last().unwrap()["done"], true);
    let refused = router.post(GENERATE, &prompt(json!({"raw": true, "system": "s"}))).await;
    assert!(refused.fails(400, "invalid_value").starts_with("`system` needs a chat template"));
}

#[tokio::test]
async fn a_model_without_a_template_continues_prompts() {
    let router = Router::start_without_template(ShardPlan::default()).await;
    assert_eq!(router.post(GENERATE, &prompt(json!({}))).await.ok()["response"], TEXT);
    assert_eq!(router.shard().last_start().token_ids, bytes("hi"));
    router.post(GENERATE, &prompt(json!({"system": "s"}))).await.fails(400, "invalid_value");
    assert_ne!(router.post(CHAT, &chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn options_reach_the_shard() {
    let router = Router::default().await;
    let options = json!({
        "num_predict": 5, "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "typical_p": 0.75,
        "repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": -1.0, "seed": 42,
        "num_ctx": 4096, "num_keep": 4, "num_gpu": 99, "num_thread": 8, "repeat_last_n": -1,
    });
    for (route, body) in
        [(CHAT, chat(json!({"options": options}))), (GENERATE, prompt(json!({"options": options})))]
    {
        let answer = router.post(route, &body).await;
        assert_eq!(answer.header("x-ignored-fields"), None);
        let answer = answer.ok();
        assert_eq!((&answer["done_reason"], &answer["eval_count"]), (&json!("length"), &json!(5)));
        let sampling = router.last_sampling();
        assert_eq!(
            [sampling.temperature, sampling.top_p, sampling.min_p, sampling.typical_p],
            [0.5, 0.5, 0.25, 0.75]
        );
        assert_eq!(
            [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty],
            [1.5, 1.0, -1.0]
        );
        assert_eq!((sampling.top_k, sampling.seed), (7, 42));
    }
    let stopped =
        router.post(CHAT, &chat(json!({"options": {"stop": ["🙂"], "num_predict": -1}}))).await.ok();
    assert_eq!(
        (&stopped["message"]["content"], &stopped["done_reason"]),
        (&json!("Hello wörld "), &json!("stop"))
    );
    // -1 is a random seed, as if none was sent.
    let seed = async || {
        router.post(CHAT, &chat(json!({"options": {"seed": -1, "num_predict": -2}}))).await.ok();
        router.last_sampling().seed
    };
    assert_ne!(seed().await, seed().await);
}

#[tokio::test]
async fn bad_fields_are_named_in_ollamas_form() {
    let router = Router::default().await;
    let unsupported = "unsupported_field";
    for (fields, code, words) in [
        (
            json!({"options": {"num_predict": 0}}),
            "invalid_value",
            "`options.num_predict` is 0, must be at least 1, or -1",
        ),
        (json!({"options": {"num_predict": -3}}), "invalid_value", "`options.num_predict` is -3"),
        (
            json!({"options": {"num_predict": "x"}}),
            "invalid_type",
            "`options.num_predict` must be an integer",
        ),
        (
            json!({"options": {"num_ctx": 0}}),
            "invalid_value",
            "`options.num_ctx` is 0, this server's context has 1 to 8192",
        ),
        (json!({"options": {"num_ctx": 8193}}), "invalid_value", "`options.num_ctx` is 8193"),
        (json!({"options": {"temperature": -1}}), "invalid_value", "`temperature` is -1"),
        (json!({"options": {"repeat_penalty": 0}}), "invalid_value", "`options.repeat_penalty` is 0"),
        (json!({"options": {"repeat_last_n": 64}}), unsupported, "`options.repeat_last_n`"),
        (json!({"options": {"mirostat": 2}}), unsupported, "`options.mirostat`"),
        (json!({"options": {"temprature": 1}}), unsupported, "`options.temprature`"),
        (json!({"options": {"stop": [""]}}), "invalid_value", "`options.stop[0]` is empty"),
        (json!({"options": []}), "invalid_type", "`options` must be a JSON object"),
        (json!({"think": "hard"}), "invalid_type", "`think` must be true, false, `low`"),
        (
            json!({"think": true}),
            "invalid_value",
            "`think` asks for reasoning, which this model does not have",
        ),
        (
            json!({"keep_alive": "5"}),
            "invalid_type",
            "`keep_alive` must be a number of seconds, or a duration",
        ),
        (json!({"keep_alive": []}), "invalid_type", "`keep_alive`"),
        (json!({"format": "yaml"}), "invalid_type", "`format` must be `json` or a JSON schema"),
        (json!({"format": {"type": "strin"}}), "invalid_schema", "`format`"),
        (json!({"stream": "yes"}), "invalid_type", "`stream` must be true or false"),
        (json!({"top_logprobs": 2}), "invalid_value", "`top_logprobs` needs `logprobs`"),
        (json!({"logprobs": true, "top_logprobs": 21}), "invalid_value", "`top_logprobs` is 21"),
        (json!({"truncate": true}), unsupported, "`truncate`"),
        (json!({"shift": true}), unsupported, "`shift`"),
    ] {
        for (route, body) in [(CHAT, chat(fields.clone())), (GENERATE, prompt(fields.clone()))] {
            let answer = router.post(route, &body).await;
            let json = answer.json();
            assert_eq!(json.as_object().unwrap().len(), 2, "{json}");
            let message = answer.fails(400, code);
            assert!(message.starts_with(words), "{route} {fields}: {message}");
        }
    }
    for (fields, code, words) in [
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            "invalid_value",
            "`messages[0].role` must be `system`",
        ),
        (json!({"messages": [{"content": "x"}]}), "missing_field", "`messages[0].role` is missing"),
        (json!({"messages": [{"role": "user", "content": ["x"]}]}), "invalid_type", "`messages[0].content`"),
        (
            json!({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}),
            unsupported,
            "`messages[0].images`",
        ),
        (json!({"messages": "x"}), "invalid_type", "`messages` must be a list"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "invalid_value",
            "`tools[0]`",
        ),
    ] {
        let message = router.post(CHAT, &chat(fields)).await.fails(400, code);
        assert!(message.starts_with(words), "{message}");
    }
    for (field, value) in
        [("template", json!("{{ .Prompt }}")), ("context", json!([1, 2])), ("images", json!(["aGk="]))]
    {
        let message = router.post(GENERATE, &prompt(json!({field: value}))).await.fails(400, unsupported);
        assert!(message.starts_with(&format!("`{field}` is not supported; hint: ")), "{message}");
    }
    let empty = json!({"suffix": "", "template": "", "context": [], "images": [], "system": "", "truncate": false,
                       "format": "", "options": null, "think": null, "keep_alive": "5m"});
    router.post(GENERATE, &prompt(empty)).await.ok();
    let fields = |value: &str| {
        format!("{{\"messages\": {value}, \"prompt\": {value}, \"name\": {value}, \"input\": {value}}}")
    };
    let deep = fields(&("[".repeat(100_000) + &"]".repeat(100_000)));
    let surrogate = fields("\"\\ud800\"");
    for body in
        [&b""[..], b"hello", b"[]", b"{\"options\": {", b"{} x", surrogate.as_bytes(), deep.as_bytes()]
    {
        for route in [CHAT, GENERATE, "/api/show", "/api/embed"] {
            let answer = router.post_bytes(route, body).await;
            assert!(answer.status == 400 && answer.json()["error"].is_string(), "{}", answer.text());
        }
    }
    let unknown = router.post(CHAT, &chat(json!({"nobody_knows": 1}))).await;
    assert_eq!(unknown.header("x-ignored-fields"), Some("nobody_knows"));
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_refused_and_never_cut() {
    let router = Router::default().await;
    let long = "x".repeat(CONTEXT);
    for (route, body) in
        [(CHAT, chat(json!({"messages": user(long.clone())}))), (GENERATE, prompt(json!({"prompt": long})))]
    {
        for is_stream in [false, true] {
            let answer = router.post(route, &with(body.clone(), json!({"stream": is_stream}))).await;
            let message = answer.fails(400, "context_length_exceeded");
            assert!(message.contains("hint: shorten the prompt"), "{message}");
        }
    }
    let num_prompt = prompt_of("hi").len();
    let told = async |options: Value| router.post(CHAT, &chat(json!({"options": options}))).await;
    let message = told(json!({"num_ctx": num_prompt})).await.fails(400, "context_length_exceeded");
    assert!(message.contains("raise `options.num_ctx`"), "{message}");
    let message = told(json!({"num_ctx": num_prompt + 3, "num_predict": 4}))
        .await
        .fails(400, "context_length_exceeded");
    assert!(message.contains("lower `options.num_predict` to at most 3"), "{message}");
    // The output ends where the context does.
    let answer = told(json!({"num_ctx": num_prompt + 3})).await.ok();
    assert_eq!((&answer["eval_count"], &answer["done_reason"]), (&json!(3), &json!("length")));
}

#[tokio::test]
async fn a_request_without_a_prompt_loads_the_model() {
    let router = Router::default().await;
    for fields in [json!({}), json!({"messages": []}), json!({"messages": null}), json!({"keep_alive": -1})] {
        let answer = router.post(CHAT, &fields).await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let answer = answer.ok();
        assert_eq!(answer["message"], json!({"role": "assistant", "content": ""}));
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")));
    }
    for fields in
        [json!({}), json!({"prompt": ""}), json!({"model": "test/model:latest", "keep_alive": "10m"})]
    {
        let answer = router.post(GENERATE, &fields).await.ok();
        assert_eq!(
            json!([answer["response"], answer["done"], answer["done_reason"]]),
            json!(["", true, "load"])
        );
    }
    router.post(GENERATE, &json!({"model": "nobody"})).await.fails(404, "model_not_found");
    router.post(CHAT, &json!({"keep_alive": "soon"})).await.fails(400, "invalid_type");
    assert_eq!(router.app.served.stats.borrow().prompt_tokens, 0);
    router.wait_places().await;
}

#[tokio::test]
async fn names_may_have_the_usual_tag() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    let model = Model::load(folder.path(), "small:latest".to_owned()).unwrap();
    assert!(model.is_named("small:latest") && model.is_named("small") && !model.is_named("small:8b"));
    let router = Router::default().await;
    for model in ["test/model", "test/model:latest"] {
        assert_eq!(router.post(CHAT, &chat(json!({"model": model}))).await.ok()["model"], "test/model");
    }
    for model in ["test/model:8b", "other", "other:latest"] {
        let message = router.post(CHAT, &chat(json!({"model": model}))).await.fails(404, "model_not_found");
        assert!(message.contains("is not served"), "{message}");
    }
}

#[tokio::test]
async fn a_format_constrains_the_output() {
    let router = Router::saying("{\"a\": 1}").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                        "additionalProperties": false});
    for format in [json!("json"), schema] {
        let answer = router.post(CHAT, &chat(json!({"format": format}))).await.ok();
        let parsed: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
        assert_eq!(parsed, json!({"a": 1}));
        let answer = router.post(GENERATE, &prompt(json!({"format": format, "raw": true}))).await.ok();
        assert_eq!(serde_json::from_str::<Value>(answer["response"].as_str().unwrap()).unwrap(), parsed);
    }
}

#[tokio::test]
async fn reasoning_is_separate_and_can_be_switched() {
    const THOUGHT: &str = "Let me see";
    let plan = ShardPlan::saying(&format!("<think>{THOUGHT}</think>It rains."));
    let style = ReplyStyle { reasons: true, ..ReplyStyle::default() };
    let router = Router::start_with_replies(plan, style).await;
    for (think, variables) in
        [(Value::Null, ""), (json!(true), "[thinking true]"), (json!("high"), "[thinking true][effort high]")]
    {
        let fields = json!({"think": think});
        let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
        assert_eq!(
            answer["message"],
            json!({"role": "assistant", "content": "It rains.", "thinking": THOUGHT})
        );
        assert!(router.last_prompt().starts_with(variables), "{}", router.last_prompt());
        let lines = router.post(CHAT, &chat(with(fields.clone(), json!({"stream": true})))).await.lines();
        assert_eq!(joined(&lines, "/message/thinking"), THOUGHT);
        assert_eq!(joined(&lines, "/message/content"), "It rains.");
        let answer = router.post(GENERATE, &prompt(fields.clone())).await.ok();
        assert_eq!((&answer["thinking"], &answer["response"]), (&json!(THOUGHT), &json!("It rains.")));
        let lines = router.post(GENERATE, &prompt(with(fields, json!({"stream": true})))).await.lines();
        assert_eq!(joined(&lines, "/thinking"), THOUGHT);
    }
    let answer = router.post(CHAT, &chat(json!({"think": false}))).await.ok();
    assert_eq!(answer["message"], json!({"role": "assistant", "content": "It rains."}));
    assert!(router.last_prompt().starts_with("[thinking false]"));
    // The reasoning of earlier turns goes to the template.
    let messages = json!([{"role": "user", "content": "a"},
                          {"role": "assistant", "content": "b", "thinking": "hm"}, {"role": "user", "content": "c"}]);
    router.post(CHAT, &chat(json!({"messages": messages, "think": "low"}))).await.ok();
    assert!(router.last_prompt().contains("[reasoning hm]"), "{}", router.last_prompt());
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

fn with_tools(fields: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "d",
                      "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    with(chat(json!({"tools": [tool]})), fields)
}

#[tokio::test]
async fn calls_have_objects_as_arguments() {
    let router = Router::saying(&format!("I look.\n{CALL}{CALL}")).await;
    let answer = router.post(CHAT, &with_tools(json!({}))).await.ok();
    assert_eq!((&answer["message"]["content"], &answer["done_reason"]), (&json!("I look."), &json!("stop")));
    let calls = answer["message"]["tool_calls"].as_array().unwrap();
    let function =
        |index: usize| json!({"index": index, "name": "get_weather", "arguments": {"city": "Rome"}});
    assert_eq!(calls.iter().map(|call| &call["function"]).collect::<Vec<_>>(), [&function(0), &function(1)]);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0]["id"] != calls[1]["id"]);
    let lines = router.post(CHAT, &with_tools(json!({"stream": true}))).await.lines();
    let streamed: Vec<&Value> = lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert_eq!(streamed.len(), 2, "each call is in one line");
    assert_eq!(streamed[1][0]["function"], function(1));
    assert_eq!(joined(&lines, "/message/content"), "I look.");
    // A call that the limit cuts off is shown without its arguments.
    let cut = json!({"options": {"num_predict": 70}});
    let answer = router.post(CHAT, &with_tools(cut.clone())).await.ok();
    assert_eq!((&answer["done_reason"], &answer["eval_count"]), (&json!("length"), &json!(70)));
    let lines = router.post(CHAT, &with_tools(with(cut, json!({"stream": true})))).await.lines();
    let streamed: Vec<&Value> = lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert_eq!(streamed.len(), 1, "{lines:?}");
    assert_eq!(streamed[0][0]["function"], json!({"index": 0, "name": "get_weather", "arguments": {}}));
}

/// Renders the ids by which calls and results belong together.
const IDS: &str = "{% for message in messages %}{% if message.tool_calls is defined %}\
                   {% for call in message.tool_calls %}({{ call.id }} {{ call.function.name }} \
                   {{ call.function.arguments.n }}){% endfor %}{% endif %}{% if message.role == 'tool' %}\
                   [{{ message.tool_call_id }} {{ message.name }} {{ message.content }}]{% endif %}{% endfor %}";

#[tokio::test]
async fn results_belong_to_calls_by_name_and_order() {
    let router = Router::start_with_template(ShardPlan::default(), IDS).await;
    let call = |name: &str, n: u32| json!({"function": {"name": name, "arguments": {"n": n}}});
    let result = |fields: Value| with(json!({"role": "tool", "content": "r"}), fields);
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call("a", 0), call("b", 1), call("a", 2)]},
        result(json!({"tool_name": "b"})), result(json!({"tool_name": "a"})), result(json!({})),
        {"role": "assistant", "tool_calls": [with(call("a", 3), json!({"id": "own"}))]},
        result(json!({"tool_call_id": "own"})),
    ]);
    router.post(CHAT, &chat(json!({"messages": messages, "options": {"num_predict": 1}}))).await.ok();
    assert_eq!(
        router.last_prompt(),
        "(call_0 a 0)(call_1 b 1)(call_2 a 2)[call_1 b r][call_0 a r][call_2 a r](own a 3)[own a r]"
    );
}

#[tokio::test]
async fn the_reply_continues_a_last_message_of_the_assistant() {
    let router = Router::default().await;
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "Assistant", "content": "So "}]);
    router.post(CHAT, &chat(json!({"messages": messages}))).await.ok();
    assert_eq!(router.shard().last_start().token_ids, [prompt_of("hi"), bytes("So ")].concat());
}

#[tokio::test]
async fn logprobs_come_with_their_tokens() {
    let router = Router::saying("hö").await;
    let fields = json!({"logprobs": true, "top_logprobs": 1});
    let tokens = |answer: &Value| -> Vec<Value> {
        let list = answer["logprobs"].as_array().into_iter().flatten();
        list.map(|token| json!([token["bytes"], token["top_logprobs"][0]["bytes"], token["logprob"]]))
            .collect()
    };
    let expected = [b'h', 0xc3, 0xb6].map(|byte| json!([[byte], [byte], -0.125]));
    for (route, body) in [(CHAT, chat(fields.clone())), (GENERATE, prompt(fields))] {
        assert_eq!(tokens(&router.post(route, &body).await.ok()), expected);
        let lines = router.post(route, &with(body, json!({"stream": true}))).await.lines();
        assert_eq!(lines.iter().flat_map(tokens).collect::<Vec<_>>(), expected);
        assert_eq!(tokens(&lines[1]).len(), 2, "the character ends with its second token");
    }
}

#[tokio::test]
async fn an_error_in_a_stream_is_its_last_line() {
    let limits = Limits { shard_restart_timeout: Duration::ZERO, ..Limits::default() };
    let mut router = Router::start(ShardPlan::endless().held(), limits).await;
    let mut connection = router.begin(CHAT, &json!({"messages": user("hi")})).await;
    router.wait_running(1).await;
    router.add_steps(3);
    assert!(connection.read_until(|bytes| String::from_utf8_lossy(bytes).contains("\"done\":false")).await);
    router.kill_shard();
    let lines = connection.answer().await.lines();
    let last = lines.last().unwrap();
    assert_eq!(last["code"], "shard_lost", "{last}");
    assert!(last["error"].as_str().unwrap().starts_with("the shard was lost"), "{last}");
}

#[tokio::test]
async fn the_served_model_is_listed_and_described() {
    let plan = ShardPlan { vectors: Some(vectors(3, &[])), ..ShardPlan::default() };
    let router = Router::start(plan, Limits { max_total_tokens: Some(500), ..Limits::default() }).await;
    let tags = router.get("/api/tags").await.ok();
    let model = &tags["models"][0];
    assert_eq!(tags["models"].as_array().unwrap().len(), 1);
    assert_eq!(json!([model["name"], model["model"]]), json!(["test/model:latest", "test/model:latest"]));
    assert_eq!(json!([model["size"], model["details"]["family"]]), json!([1, "mock"]));
    let running = router.get("/api/ps").await.ok();
    let model = &running["models"][0];
    assert_eq!(json!([model["name"], model["context_length"]]), json!(["test/model:latest", 500]));
    assert!(model["expires_at"].as_str().unwrap() > "2300", "{model}");
    for body in
        [json!({"model": "test/model"}), json!({"name": "test/model:latest", "model": "", "verbose": true})]
    {
        let shown = router.post("/api/show", &body).await.ok();
        assert_eq!(shown["capabilities"], json!(["completion", "embedding"]));
        let info = &shown["model_info"];
        assert_eq!(json!([info["general.architecture"], info["mock.context_length"]]), json!(["mock", 500]));
        assert!(shown["template"].as_str().unwrap().contains("<|start|>"), "{shown}");
    }
    router.post("/api/show", &json!({"model": "other"})).await.fails(404, "model_not_found");
    router.post("/api/show", &json!({"system": "x"})).await.fails(400, "unsupported_field");
    assert!(router.get("/api/version").await.ok()["version"].is_string());
}

#[tokio::test]
async fn while_the_model_loads_nothing_is_listed() {
    let router = Router::start_without_shard(Limits::default()).await;
    for path in ["/api/tags", "/api/ps"] {
        router.get(path).await.fails(503, "model_loading");
    }
    router.post(CHAT, &json!({})).await.fails(503, "model_loading");
    router.get("/api/version").await.ok();
}

#[tokio::test]
async fn routes_that_do_not_exist_have_errors_in_ollamas_form() {
    let router = Router::default().await;
    let own = |answer: &Answer| answer.json().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for path in ["/api/create", "/api/copy", "/api/push", "/api/nothing"] {
        let answer = router.post(path, &json!({"model": "x"})).await;
        assert!(answer.fails(404, "route_not_found").contains(path));
        assert_eq!(own(&answer), ["error", "code"]);
    }
    let answer = router.get(CHAT).await;
    answer.fails(405, "method_not_allowed");
    assert_eq!(own(&answer), ["error", "code"]);
}

#[tokio::test]
async fn embeddings_have_ollamas_forms() {
    let router = Router::with(ShardPlan { vectors: Some(vectors(2, &[])), ..ShardPlan::default() }).await;
    let body = json!({"model": "test/model:latest", "input": ["ac", "b"], "keep_alive": "5m", "options": {"num_ctx": 5}});
    let answer = router.post("/api/embed", &body).await.ok();
    assert_eq!(json!([answer["model"], answer["prompt_eval_count"]]), json!(["test/model", 3]));
    for vector in answer["embeddings"].as_array().unwrap() {
        let squares: f64 = vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
        assert!((squares - 1.0).abs() < 1e-6, "{vector}");
    }
    let short = router.post("/api/embed", &json!({"input": "ac", "dimensions": 1})).await.ok();
    assert_eq!(short["embeddings"], json!([[1.0]]));
    // The mean of "ac" is 98.
    let one = router.post("/api/embeddings", &json!({"prompt": "ac"})).await.ok();
    assert_eq!(one, json!({"embedding": [98.0, 99.0]}));
    let long = json!({"input": "x".repeat(CONTEXT + 1)});
    router.post("/api/embed", &long).await.fails(400, "context_length_exceeded");
    let cut = router.post("/api/embed", &with(long, json!({"truncate": true}))).await.ok();
    assert_eq!(cut["prompt_eval_count"], CONTEXT);
    router.post("/api/embed", &json!({})).await.fails(400, "missing_field");
    router.post("/api/embed", &json!({"input": "x", "keep_alive": "x"})).await.fails(400, "invalid_type");
    router.post("/api/embed", &json!({"input": "x", "model": "y"})).await.fails(404, "model_not_found");
}

#[tokio::test]
async fn an_empty_reply_is_one_line() {
    let router = Router::with(ShardPlan { replies: vec![vec![END]], ..ShardPlan::default() }).await;
    let lines = router.post(CHAT, &json!({"messages": user("hi")})).await.lines();
    assert_eq!(lines.len(), 1);
    assert_eq!(json!([lines[0]["message"]["content"], lines[0]["done"]]), json!(["", true]));
}
