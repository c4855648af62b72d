//! Errors of clients: status, code and text in the dialect's form. Rejected requests hold no places.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{Router, ShardPlan};
use trunkline_router::limits::Limits;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Body fields, the code, and words that the message must contain.
const CHAT_FIELDS: &[(&str, &str, &str)] = &[
    (r#"{"max_tokens": 0}"#, "invalid_value", "`max_tokens` is 0, must be at least 1"),
    (r#"{"max_tokens": -1}"#, "invalid_value", "`max_tokens` is -1"),
    (r#"{"max_completion_tokens": 0}"#, "invalid_value", "`max_completion_tokens` is 0"),
    (r#"{"max_tokens": 1.5}"#, "invalid_type", "`max_tokens`"),
    (r#"{"max_tokens": "5"}"#, "invalid_type", "`max_tokens`"),
    (
        r#"{"max_tokens": 1000000000000}"#,
        "context_length_exceeded",
        "this model's maximum context length is 8192",
    ),
    (r#"{"max_tokens": 3, "max_completion_tokens": 4}"#, "invalid_value", "send only one of them"),
    (
        r#"{"temperature": -0.1}"#,
        "invalid_value",
        "`temperature` is -0.1, must be at least 0 and at most 100",
    ),
    (r#"{"temperature": 1e30}"#, "invalid_value", "`temperature`"),
    (r#"{"temperature": 1e999}"#, "invalid_type", "`temperature` is out of range"),
    (r#"{"temperature": NaN}"#, "invalid_json", "line 1 column"),
    (r#"{"temperature": "hot"}"#, "invalid_type", "`temperature` must be a number, not a string"),
    (r#"{"top_p": -0.1}"#, "invalid_value", "`top_p` is -0.1, must be at least 0"),
    (r#"{"top_p": 1.01}"#, "invalid_value", "`top_p`"),
    (r#"{"top_k": -2}"#, "invalid_value", "`top_k` is -2"),
    (r#"{"top_k": 1000000000000}"#, "invalid_value", "`top_k`"),
    (r#"{"min_p": 2}"#, "invalid_value", "`min_p`"),
    (r#"{"seed": 1180591620717411303424}"#, "invalid_type", "`seed`"),
    (r#"{"seed": "x"}"#, "invalid_type", "`seed`"),
    (r#"{"stop": 5}"#, "invalid_type", "`stop`"),
    (r#"{"stop": [5]}"#, "invalid_type", "`stop[0]`"),
    (r#"{"stop": [""]}"#, "invalid_value", "`stop[0]` is empty"),
    (r#"{"stop": ["1","2","3","4","5"]}"#, "invalid_value", "`stop` has 5 strings, the limit is 4"),
    (r#"{"logprobs": true, "top_logprobs": 21}"#, "invalid_value", "`top_logprobs` is 21, the limit is 20"),
    (r#"{"logprobs": true, "top_logprobs": -1}"#, "invalid_value", "`top_logprobs`"),
    (r#"{"top_logprobs": 2}"#, "invalid_value", "needs `logprobs`"),
    (r#"{"presence_penalty": 3}"#, "invalid_value", "`presence_penalty`"),
    (r#"{"frequency_penalty": -3}"#, "invalid_value", "`frequency_penalty`"),
    (r#"{"repetition_penalty": 0}"#, "invalid_value", "`repetition_penalty`"),
    (r#"{"repetition_penalty": 5e-324}"#, "invalid_value", "`repetition_penalty`"),
    (r#"{"min_tokens": -1}"#, "invalid_value", "`min_tokens`"),
    (
        r#"{"min_tokens": 9, "max_tokens": 8}"#,
        "invalid_value",
        "`min_tokens` is 9, more than `max_tokens` (8)",
    ),
    (r#"{"min_tokens": 1000000000}"#, "invalid_value", "`min_tokens`"),
    (r#"{"min_tokens": 1, "min_tokens": 2}"#, "invalid_type", "`min_tokens` occurs twice"),
    (r#"{"n": 0}"#, "invalid_value", "`n` is 0, must be at least 1"),
    (r#"{"n": 129}"#, "invalid_value", "`n` is 129, the limit is 128; hint: raise `--max-best-of`"),
    (r#"{"best_of": 2}"#, "unsupported_field", "`best_of`"),
    (r#"{"stream": "yes"}"#, "invalid_type", "`stream`"),
    (r#"{"tools": [{"type": "function"}]}"#, "missing_field", "`tools[0].function` is missing"),
    (r#"{"response_format": {"type": "xml"}}"#, "invalid_value", "`response_format.type`"),
    (
        r#"{"logit_bias": {"5": 101}}"#,
        "invalid_value",
        "`logit_bias.5` is 101, must be at least -100 and at most 100",
    ),
    (r#"{"logit_bias": {"five": 1}}"#, "invalid_value", "`logit_bias` has the token \"five\""),
    (r#"{"logit_bias": [5]}"#, "invalid_type", "`logit_bias`"),
    (
        r#"{"stop_token_ids": [259]}"#,
        "invalid_value",
        "`stop_token_ids[0]` is 259, but token ids are from 0 to 258",
    ),
    (r#"{"allowed_token_ids": []}"#, "invalid_value", "`allowed_token_ids` is empty"),
    (r#"{"truncate_prompt_tokens": 0}"#, "invalid_value", "`truncate_prompt_tokens` is 0"),
    (r#"{"typical_p": 0}"#, "invalid_value", "`typical_p` is 0, must be greater than 0 and at most 1"),
    (r#"{"prompt_logprobs": 21}"#, "invalid_value", "`prompt_logprobs` is 21, must be from 0 to 20"),
    (r#"{"prompt_logprobs": 1, "stream": true}"#, "invalid_value", "`prompt_logprobs` cannot be streamed"),
    (
        r#"{"prompt_logprobs": 1, "guided_regex": "a"}"#,
        "invalid_value",
        "`prompt_logprobs` cannot be combined with `guided_regex`",
    ),
    (r#"{"prediction": {"type": "x", "content": "a"}}"#, "invalid_value", "`prediction.type` must be"),
    (r#"{"prediction": {"type": "content", "content": 5}}"#, "invalid_value", "`prediction.content` must be"),
    (r#"{"prediction": {"content": "a"}}"#, "missing_field", "`prediction.type` is missing"),
    (r#"{"bad_words": ["a"]}"#, "unsupported_field", "`bad_words`"),
    (r#"{"modalities": ["audio"]}"#, "unsupported_field", "`modalities`"),
    (r#"{"model": "other"}"#, "model_not_found", "`other`"),
    (r#"{"messages": []}"#, "invalid_value", "`messages` is empty"),
    (r#"{"messages": "hi"}"#, "invalid_type", "`messages`"),
    (r#"{"messages": [{"content": "x"}]}"#, "missing_field", "`messages[0].role` is missing"),
    (r#"{"messages": [{"role": "user", "content": 5}]}"#, "invalid_type", "`messages[0].content`"),
    (r#"{"messages": [{"role": "user"}]}"#, "missing_field", "`messages[0].content` is missing"),
    (r#"{"messages": [{"role": "king", "content": "x"}]}"#, "invalid_value", "`messages[0].role`"),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
        "invalid_value",
        "content[0].type",
    ),
];

#[tokio::test]
async fn wrong_chat_fields_are_named() {
    let limits = Limits { max_stop_sequences: 4, ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    for (fields, code, words) in CHAT_FIELDS {
        let body = match fields.contains("\"messages\"") {
            true => (*fields).to_owned(),
            false => format!(
                "{}, \"messages\": [{{\"role\": \"user\", \"content\": \"secret\"}}]}}",
                &fields[..fields.len() - 1]
            ),
        };
        let answer = router.post_bytes(CHAT, body.as_bytes()).await;
        let expected = if *code == "model_not_found" { 404 } else { 400 };
        assert_eq!(answer.status, expected, "{fields}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["code"], *code, "{fields}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{fields}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(!answer.text().contains("secret"));
    }
    assert_eq!(router.app.served.stats.borrow().prompt_tokens, 0, "nothing of it reached the scheduler");
}

#[tokio::test]
async fn neutral_values_of_unsupported_fields_are_accepted() {
    let router = Router::default().await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "n": 1, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "logit_bias": {}, "bad_words": [], "prompt_logprobs": false, "modalities": ["text"], "user": "me", "store": true,
        "metadata": {"a": 1}, "service_tier": "auto", "stop": null, "seed": null, "model": "", "temperature": null});
    router.post(CHAT, &body).await.ok();
    router.post(CHAT, &json!({"model": "tgi", "messages": [{"role": "user", "content": "x"}]})).await.ok();
}

#[tokio::test]
async fn malformed_bodies_are_400_and_never_500() {
    let router = Router::default().await;
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [&[u8]; 8] = [
        b"",
        b"hello",
        b"[]",
        b"{\"messages\": [{\"role\": \"user\"",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]} x",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        deep.as_bytes(),
    ];
    for body in bodies {
        for path in [CHAT, COMPLETIONS] {
            let answer = router.post_bytes(path, body).await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.json()["error"]["message"].is_string());
        }
        for path in ["/generate", "/tokenize", "/"] {
            let answer = router.post_bytes(path, body).await;
            assert!([400, 422].contains(&answer.status), "{}", answer.text());
            assert!(answer.json()["error"].is_string() && answer.json()["error_type"] == "validation");
        }
    }
}

#[tokio::test]
async fn missing_fields_have_their_own_error() {
    let router = Router::default().await;
    for (path, body, code, param) in [
        (CHAT, "{}", "missing_field", Some("messages")),
        (CHAT, r#"{"messages": [{"content": "x"}]}"#, "missing_field", Some("messages[0].role")),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#,
            "missing_field",
            Some("messages[0].content[0].text"),
        ),
        (COMPLETIONS, "{}", "missing_field", Some("prompt")),
        (COMPLETIONS, r#"{"prompt": 5}"#, "invalid_type", Some("prompt")),
        (COMPLETIONS, "[]", "invalid_type", None),
        (COMPLETIONS, "{", "invalid_json", None),
    ] {
        let answer = router.post_bytes(path, body.as_bytes()).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{body}: {error}");
        assert_eq!(error["param"], json!(param), "{body}: {error}");
        assert_eq!(answer.text().contains("not valid JSON"), code == "invalid_json", "{body}: {error}");
    }
    for (path, body, status, code) in [
        ("/generate", "{}", 422, "missing_field"),
        ("/generate_stream", "{}", 422, "missing_field"),
        ("/", "{}", 422, "missing_field"),
        ("/tokenize", "{}", 422, "missing_field"),
        ("/generate", "[]", 422, "invalid_type"),
        ("/generate", r#"{"inputs": "x", "parameters": []}"#, 422, "invalid_type"),
        ("/generate", "{", 400, "invalid_json"),
    ] {
        let answer = router.post_bytes(path, body.as_bytes()).await;
        let error = answer.json();
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{path} {body}: {error}");
        assert_eq!(error["error_type"], "validation");
    }
}

#[tokio::test]
async fn wrong_prompts_are_named() {
    let limits = Limits { max_input_tokens: Some(100), ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let long = "x".repeat(101);
    for (prompt, code, words) in [
        (json!(""), "invalid_value", "`prompt` is empty"),
        (json!([]), "invalid_value", "`prompt` is empty"),
        (json!([1, 259]), "invalid_value", "`prompt[1]` is 259, token ids are below 259"),
        (json!([1, -1]), "invalid_type", "`prompt[1]`"),
        (json!([1, 1.5]), "invalid_type", "`prompt[1]`"),
        (json!([1, "a"]), "invalid_type", "`prompt[1]`"),
        (json!(["a", 1]), "invalid_type", "`prompt` must be a string like those before it, not the number 1"),
        (json!(["a", ""]), "invalid_value", "`prompt` is empty"),
        (json!(vec!["a"; 129]), "invalid_value", "asks for 129 outputs at once, the limit is 128"),
        (json!(5), "invalid_type", "`prompt`"),
        (json!(long), "context_length_exceeded", "the prompt has 101 tokens, the limit is 100"),
        (json!([vec![1; 101]]), "context_length_exceeded", "maximum context length is 8192"),
    ] {
        let answer = router.post(COMPLETIONS, &json!({"prompt": prompt})).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let missing = router.post(COMPLETIONS, &json!({})).await;
    assert!(missing.json()["error"]["message"].as_str().unwrap().contains("`prompt` is missing"));
}

#[tokio::test]
async fn the_block_pool_bounds_prompts_too() {
    let plan = ShardPlan { num_blocks: 4, ..ShardPlan::default() };
    let router = Router::start(plan, Limits::default()).await;
    let answer = router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 3})).await;
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert!(answer.text().contains("maximum context length is 32 tokens"), "{}", answer.text());
    router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 2})).await.ok();
}

#[tokio::test]
async fn tgi_errors_have_tgis_shape() {
    let router = Router::default().await;
    let with = |parameters: Value| json!({"inputs": "x", "parameters": parameters});
    for (body, words) in [
        (json!({"inputs": ""}), "`inputs` is empty"),
        (json!({}), "`inputs` is missing"),
        (json!({"inputs": 5}), "`inputs`"),
        (with(json!({"best_of": 3})), "`best_of` is more than 1, but the output is greedy"),
        (with(json!({"grammar": {"type": "json"}})), "`grammar.value` is missing"),
        (with(json!({"typical_p": 1.5})), "`typical_p` is 1.5, must be greater than 0 and at most 1"),
        (with(json!({"num_beams": 2})), "`parameters.num_beams`"),
        (with(json!({"watermark": "yes"})), "`parameters.watermark`"),
        (with(json!({"temperature": 0})), "`temperature` is 0, must be greater than 0"),
        (with(json!({"max_new_tokens": 0})), "`max_new_tokens` is 0"),
        (with(json!({"max_new_tokens": 9000})), "maximum context length is 8192"),
        (with(json!({"min_new_tokens": -1})), "`min_new_tokens` is -1"),
        (with(json!({"min_new_tokens": 9000})), "`min_new_tokens` is 9000, the limit is 8192"),
        (
            with(json!({"min_new_tokens": 9, "max_new_tokens": 8})),
            "`min_new_tokens` is 9, more than `max_new_tokens` (8)",
        ),
        (with(json!({"min_new_tokens": 1025})), "`min_new_tokens` is 1025, but only 1024"),
        (with(json!({"truncate": 0})), "`truncate` is 0"),
        (with(json!({"top_n_tokens": 21})), "`top_n_tokens` is 21"),
        (with(json!({"top_k": "x"})), "`parameters.top_k`"),
    ] {
        for path in ["/generate", "/generate_stream"] {
            let answer = router.post(path, &body).await;
            assert!([400, 422].contains(&answer.status), "{body}: {}", answer.text());
            let error = answer.json();
            assert!(error["error"].as_str().unwrap().contains(words), "{body}: {error}");
            assert_eq!(error["error_type"], "validation");
        }
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_have_errors_of_their_own() {
    let router = Router::default().await;
    let answer = router.get("/v1/nothing").await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (404, Some("route_not_found")));
    let answer = router.get("/nothing").await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (404, Some("route_not_found")));
    let answer = router.get(CHAT).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (405, Some("method_not_allowed")));
}

#[tokio::test]
async fn a_body_of_50_mb_gets_413_and_is_not_kept() {
    let router = Router::default().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut connection = router.connect().await;
    connection.stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..50 {
        connection.stream.write_all(&chunk).await.unwrap();
    }
    connection.stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = connection.answer().await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (413, Some("body_too_large")));
    assert!(answer.text().contains("8388608") && answer.text().contains("--max-body-bytes"));

    let announced = router.post_bytes("/generate", &vec![b' '; (8 << 20) + 1]).await;
    assert_eq!((announced.status, announced.json()["code"].as_str()), (413, Some("body_too_large")));
    // A body beyond the limit of discarded bytes is refused because of its `content-length`.
    let mut connection = router.connect().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
    connection.stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(connection.answer().await.status, 413);
}

#[tokio::test]
async fn too_many_open_requests_get_429() {
    let plan = ShardPlan::default().held();
    let steps = plan.steps.clone();
    let limits = Limits { max_concurrent_requests: 1, ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let mut first = router.connect().await;
    first.send("POST", "/generate", br#"{"inputs": "x"}"#).await;
    router.wait("the first to run", |app| app.served.stats.borrow().num_running == 1).await;
    let second = router.post("/generate", &json!({"inputs": "x"})).await;
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")));
    assert_eq!(second.json()["error_type"], "overloaded");
    let second = router.post(CHAT, &json!({})).await;
    assert_eq!((second.status, second.json()["error"]["code"].as_str()), (429, Some("too_many_requests")));
    // Operational routes still answer.
    assert_eq!(router.metric("trunkline_rejections_total{code=\"too_many_requests\"}").await, 2.0);
    steps.add_permits(1000);
    assert_eq!(first.answer().await.status, 200);
}

#[tokio::test]
async fn a_full_queue_gives_429_with_retry_after_also_for_streams() {
    // There is room for one sequence. The second one waits, and the third is refused.
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let steps = plan.steps.clone();
    let limits = Limits { max_queued_requests: Some(1), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20}).to_string();
    let mut running = router.connect().await;
    running.send("POST", COMPLETIONS, body(1).as_bytes()).await;
    router.wait("one to run", |app| app.served.stats.borrow().num_running == 1).await;
    let mut waiting = router.connect().await;
    waiting.send("POST", COMPLETIONS, body(2).as_bytes()).await;
    router.wait("one to wait", |app| app.served.stats.borrow().num_waiting == 1).await;
    let refused =
        router.post(COMPLETIONS, &json!({"prompt": vec![3; 40], "max_tokens": 20, "stream": true})).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert!(refused.text().contains("queue is full (1 of 1 requests waiting"), "{}", refused.text());
    steps.add_permits(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn an_unreachable_deadline_gets_429() {
    // 8 tokens took 1000 s of device time, and 40 tokens wait. The next request would start after 5000 s.
    let plan = ShardPlan { num_blocks: 8, device_time_us: 1_000_000_000, ..ShardPlan::default().held() };
    let steps = plan.steps.clone();
    let limits = Limits { request_timeout: Duration::from_secs(600), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    steps.add_permits(1);
    router.post(COMPLETIONS, &json!({"prompt": vec![9; 8], "max_tokens": 1})).await.ok();
    router.wait_idle().await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20});
    let mut running = router.connect().await;
    running.send("POST", COMPLETIONS, body(1).to_string().as_bytes()).await;
    router.wait("one to run", |app| app.served.stats.borrow().num_running == 1).await;
    let mut waiting = router.connect().await;
    waiting.send("POST", COMPLETIONS, body(2).to_string().as_bytes()).await;
    router.wait("one to wait", |app| app.served.stats.borrow().num_waiting == 1).await;

    let refused = router.post(COMPLETIONS, &body(3)).await;
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (429, &json!("deadline_unreachable")), "{error}");
    assert_eq!(error["type"], "rate_limit_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("deadline") && message.contains("`--request-timeout`"), "{message}");
    assert!(message.contains("predicted wait is 5000.0 s") && !message.contains("queue"), "{message}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 4400);
    let refused = router.post("/generate", &json!({"inputs": "x"})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("deadline_unreachable")));
    assert_eq!(refused.json()["error_type"], "overloaded");
    assert_eq!(router.metric("trunkline_rejections_total{code=\"deadline_unreachable\"}").await, 2.0);
    steps.add_permits(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_prompt_too_long_for_the_reconnected_shard_names_the_clients_field() {
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let mut router = Router::start(plan, Limits::default()).await;
    let mut running = router.connect().await;
    let body = json!({"prompt": vec![1; 40], "max_tokens": 20});
    running.send("POST", COMPLETIONS, body.to_string().as_bytes()).await;
    router.wait("one to run", |app| app.served.stats.borrow().num_running == 1).await;
    let chat = |field: &str| json!({"messages": [{"role": "user", "content": "x"}], field: 33});
    let mut waiting = Vec::new();
    for (path, body, field) in [
        ("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 33}}), "max_new_tokens"),
        (CHAT, chat("max_tokens"), "max_tokens"),
        (CHAT, chat("max_completion_tokens"), "max_completion_tokens"),
    ] {
        let mut connection = router.connect().await;
        connection.send("POST", path, body.to_string().as_bytes()).await;
        waiting.push((connection, field));
    }
    router.wait("three to wait", |app| app.served.stats.borrow().num_waiting == 3).await;
    router.kill_shard();
    router.start_shard(ShardPlan { num_blocks: 4, ..ShardPlan::default() }).await;
    assert_eq!(running.answer().await.status, 502);
    for (mut connection, field) in waiting {
        let answer = connection.answer().await;
        assert!(answer.text().contains("context_length_exceeded"), "{}", answer.text());
        assert!(answer.text().contains(&format!("`{field}` asks for 33 more")), "{}", answer.text());
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn compressed_bodies_are_refused() {
    let router = Router::default().await;
    let body = br#"{"prompt": "x", "max_tokens": 1}"#;
    let post = async |encoding| {
        let headers = [("content-encoding", encoding)];
        router.connect().await.request_with("POST", COMPLETIONS, &headers, body).await
    };
    assert_eq!(post("identity").await.status, 200);
    let answer = post("gzip").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("invalid_type")));
    assert!(answer.text().contains("has the encoding `gzip`; hint: send it without"), "{}", answer.text());
}
