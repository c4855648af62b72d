//! Errors of clients: status, code and text in the dialect's form. Rejected requests hold no places.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{Router, ShardPlan, user, with};
use trunkline_base::limits::Limits;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const VALUE: &str = "invalid_value";
const TYPE: &str = "invalid_type";
const MISSING: &str = "missing_field";
const UNSUPPORTED: &str = "unsupported_field";
const TOO_LONG: &str = "context_length_exceeded";

/// Body fields, the code, and words that the message must contain.
const CHAT_FIELDS: &[(&str, &str, &str)] = &[
    (r#"{"max_tokens": 0}"#, VALUE, "`max_tokens` is 0, must be at least 1"),
    (r#"{"max_tokens": -1}"#, VALUE, "`max_tokens` is -1"),
    (r#"{"max_completion_tokens": 0}"#, VALUE, "`max_completion_tokens` is 0"),
    (r#"{"max_tokens": 1.5}"#, TYPE, "`max_tokens`"),
    (r#"{"max_tokens": "5"}"#, TYPE, "`max_tokens`"),
    (r#"{"max_tokens": 1000000000000}"#, TOO_LONG, "maximum context length is 8192"),
    (r#"{"max_tokens": 3, "max_completion_tokens": 4}"#, VALUE, "send only one of them"),
    (r#"{"temperature": -0.1}"#, VALUE, "`temperature` is -0.1, must be at least 0 and at most 100"),
    (r#"{"temperature": 1e30}"#, VALUE, "`temperature`"),
    (r#"{"temperature": 1e999}"#, TYPE, "`temperature` is out of range"),
    (r#"{"temperature": NaN}"#, "invalid_json", "line 1 column"),
    (r#"{"temperature": "hot"}"#, TYPE, "`temperature` must be a number, not a string"),
    (r#"{"top_p": -0.1}"#, VALUE, "`top_p` is -0.1, must be at least 0"),
    (r#"{"top_p": 1.01}"#, VALUE, "`top_p`"),
    (r#"{"top_k": -2}"#, VALUE, "`top_k` is -2"),
    (r#"{"top_k": 1000000000000}"#, VALUE, "`top_k`"),
    (r#"{"min_p": 2}"#, VALUE, "`min_p`"),
    (r#"{"seed": 1180591620717411303424}"#, TYPE, "`seed`"),
    (r#"{"seed": "x"}"#, TYPE, "`seed`"),
    (r#"{"stop": 5}"#, TYPE, "`stop`"),
    (r#"{"stop": [5]}"#, TYPE, "`stop[0]`"),
    (r#"{"stop": [""]}"#, VALUE, "`stop[0]` is empty"),
    (r#"{"stop": ["1","2","3","4","5"]}"#, VALUE, "`stop` has 5 strings, the limit is 4"),
    (r#"{"logprobs": true, "top_logprobs": 21}"#, VALUE, "`top_logprobs` is 21, the limit is 20"),
    (r#"{"logprobs": true, "top_logprobs": -1}"#, VALUE, "`top_logprobs`"),
    (r#"{"top_logprobs": 2}"#, VALUE, "needs `logprobs`"),
    (r#"{"presence_penalty": 3}"#, VALUE, "`presence_penalty`"),
    (r#"{"frequency_penalty": -3}"#, VALUE, "`frequency_penalty`"),
    (r#"{"repetition_penalty": 0}"#, VALUE, "`repetition_penalty`"),
    (r#"{"repetition_penalty": 5e-324}"#, VALUE, "`repetition_penalty`"),
    (r#"{"min_tokens": -1}"#, VALUE, "`min_tokens`"),
    (r#"{"min_tokens": 9, "max_tokens": 8}"#, VALUE, "`min_tokens` is 9, more than `max_tokens` (8)"),
    (r#"{"min_tokens": 1000000000}"#, VALUE, "`min_tokens`"),
    (r#"{"min_tokens": 1, "min_tokens": 2}"#, TYPE, "`min_tokens` occurs twice"),
    (r#"{"n": 0}"#, VALUE, "`n` is 0, must be at least 1"),
    (r#"{"n": 129}"#, VALUE, "`n` is 129, the limit is 128; hint: raise `--max-best-of`"),
    (r#"{"best_of": 2}"#, UNSUPPORTED, "`best_of`"),
    (r#"{"stream": "yes"}"#, TYPE, "`stream`"),
    (r#"{"tools": [{"type": "function"}]}"#, MISSING, "`tools[0].function` is missing"),
    (r#"{"response_format": {"type": "xml"}}"#, VALUE, "`response_format.type`"),
    (r#"{"logit_bias": {"5": 101}}"#, VALUE, "`logit_bias.5` is 101, must be at least -100 and at most 100"),
    (r#"{"logit_bias": {"five": 1}}"#, VALUE, "`logit_bias` has the token \"five\""),
    (
        r#"{"logit_bias": {"five": 1, "5": 1, "259": 2, "-1": 3}}"#,
        VALUE,
        "`logit_bias` has the tokens \"five\", \"259\", \"-1\", but token ids are from 0 to 258",
    ),
    (r#"{"logit_bias": [5]}"#, TYPE, "`logit_bias`"),
    (r#"{"stop_token_ids": [259]}"#, VALUE, "`stop_token_ids[0]` is 259, but token ids are from 0 to 258"),
    (r#"{"allowed_token_ids": []}"#, VALUE, "`allowed_token_ids` is empty"),
    (r#"{"truncate_prompt_tokens": 0}"#, VALUE, "`truncate_prompt_tokens` is 0"),
    (r#"{"typical_p": 0}"#, VALUE, "`typical_p` is 0, must be greater than 0 and at most 1"),
    (r#"{"prompt_logprobs": 21}"#, VALUE, "`prompt_logprobs` is 21, must be from 0 to 20"),
    (r#"{"prompt_logprobs": 1, "stream": true}"#, VALUE, "`prompt_logprobs` cannot be streamed"),
    (
        r#"{"prompt_logprobs": 1, "guided_regex": "a"}"#,
        VALUE,
        "`prompt_logprobs` cannot be combined with `guided_regex`",
    ),
    (r#"{"prediction": {"type": "x", "content": "a"}}"#, VALUE, "`prediction.type` must be"),
    (r#"{"prediction": {"type": "content", "content": 5}}"#, VALUE, "`prediction.content` must be"),
    (r#"{"prediction": {"content": "a"}}"#, MISSING, "`prediction.type` is missing"),
    (r#"{"mirostat": 2}"#, UNSUPPORTED, "`mirostat`"),
    (r#"{"modalities": ["audio"]}"#, UNSUPPORTED, "`modalities`"),
    (r#"{"model": "other"}"#, "model_not_found", "`other`"),
    (r#"{"messages": []}"#, VALUE, "`messages` is empty"),
    (r#"{"messages": "hi"}"#, TYPE, "`messages`"),
    (r#"{"messages": [{"content": "x"}]}"#, MISSING, "`messages[0].role` is missing"),
    (r#"{"messages": [{"role": "user", "content": 5}]}"#, TYPE, "`messages[0].content`"),
    (r#"{"messages": [{"role": "user"}]}"#, MISSING, "`messages[0].content` is missing"),
    (r#"{"messages": [{"role": "king", "content": "x"}]}"#, VALUE, "`messages[0].role`"),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
        VALUE,
        "content[0].type` is `image_url`, but images are not supported by this model",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}"#,
        VALUE,
        "content[0].type` is `input_audio`, but audio inputs are not supported by this model",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}"#,
        VALUE,
        "content[0].type` is `video_url`, but videos are not supported by this model",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "file"}]}]}"#,
        VALUE,
        "content[1].type` is `file`, but files are not supported by this model",
    ),
    (
        r#"{"messages": [{"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]}]}"#,
        VALUE,
        "content[0].type` is `image_url`, but images are not supported by this model",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "x"}]}]}"#,
        VALUE,
        "content[0].type` must be `text` or `refusal`; this server accepts only text",
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
        let message = answer.fails(if *code == "model_not_found" { 404 } else { 400 }, code);
        assert!(message.contains(words), "{fields}: {message}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
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
    router.post(CHAT, &json!({"model": "tgi", "messages": user("x")})).await.ok();
}

#[tokio::test]
async fn malformed_bodies_are_400_and_never_500() {
    let router = Router::default().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    // The second one is a field that is refused.
    let [deep, refused] =
        ["messages", "modalities"].map(|field| format!("{{\"{field}\": {deep}, \"z\": {deep}}}"));
    let bodies: [&[u8]; 9] = [
        b"",
        b"hello",
        b"[]",
        b"{\"messages\": [{\"role\": \"user\"",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]} x",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        deep.as_bytes(),
        refused.as_bytes(),
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
        (CHAT, "{}", MISSING, Some("messages")),
        (CHAT, r#"{"messages": [{"content": "x"}]}"#, MISSING, Some("messages[0].role")),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#,
            MISSING,
            Some("messages[0].content[0].text"),
        ),
        (COMPLETIONS, "{}", MISSING, Some("prompt")),
        (COMPLETIONS, r#"{"prompt": 5}"#, TYPE, Some("prompt")),
        (COMPLETIONS, "[]", TYPE, None),
        (COMPLETIONS, "{", "invalid_json", None),
    ] {
        let answer = router.post_bytes(path, body.as_bytes()).await;
        let message = answer.fails(400, code);
        assert_eq!(answer.json()["error"]["param"], json!(param), "{body}: {message}");
        assert_eq!(message.contains("not valid JSON"), code == "invalid_json", "{body}: {message}");
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
        answer.fails(status, code);
        assert_eq!(answer.json()["error_type"], "validation");
    }
}

#[tokio::test]
async fn wrong_prompts_are_named() {
    let limits = Limits { max_input_tokens: Some(100), ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let long = "x".repeat(101);
    for (prompt, code, words) in [
        (json!(""), VALUE, "`prompt` is empty"),
        (json!([]), VALUE, "`prompt` is empty"),
        (json!([1, 259]), VALUE, "`prompt[1]` is 259, token ids are below 259"),
        (json!([1, -1]), TYPE, "`prompt[1]`"),
        (json!([1, 1.5]), TYPE, "`prompt[1]`"),
        (json!([1, "a"]), TYPE, "`prompt[1]`"),
        (json!(["a", 1]), TYPE, "`prompt` must be a string like those before it, not the number 1"),
        (json!(["a", ""]), VALUE, "`prompt` is empty"),
        (json!(vec!["a"; 129]), VALUE, "asks for 129 outputs at once, the limit is 128"),
        (json!(5), TYPE, "`prompt`"),
        (json!(long), TOO_LONG, "the prompt has 101 tokens, the limit is 100"),
        (json!([vec![1; 101]]), TOO_LONG, "maximum context length is 8192"),
    ] {
        let message = router.post(COMPLETIONS, &json!({"prompt": prompt})).await.fails(400, code);
        assert!(message.contains(words), "{message}");
    }
    router.post(COMPLETIONS, &json!({})).await.refuses(400, "`prompt` is missing");
}

#[tokio::test]
async fn the_block_pool_bounds_prompts_too() {
    let plan = ShardPlan { num_blocks: 4, ..ShardPlan::default() };
    let router = Router::with(plan).await;
    let answer = router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 3})).await;
    let message = answer.fails(400, "context_length_exceeded");
    assert!(message.contains("maximum context length is 32 tokens"), "{message}");
    router.post(COMPLETIONS, &json!({"prompt": vec![1; 30], "max_tokens": 2})).await.ok();
}

#[tokio::test]
async fn a_prompt_that_is_too_long_names_what_would_help() {
    let input = Limits { max_input_tokens: Some(100), ..Limits::default() };
    let too_large = Limits { max_input_tokens: Some(9000), ..Limits::default() };
    let total = Limits { max_total_tokens: Some(200), ..Limits::default() };
    let small_pool = ShardPlan { num_blocks: 4, ..ShardPlan::default() };
    for (plan, limits, hint) in [
        (ShardPlan::default(), input, "shorten the prompt or raise `--max-input-tokens`"),
        (ShardPlan::default(), total, "shorten the prompt or raise `--max-total-tokens`"),
        (small_pool, Limits::default(), "shorten the prompt or raise `--max-batch-total-tokens`"),
        (ShardPlan::default(), too_large, "shorten the prompt"),
    ] {
        let router = Router::start(plan, limits.clone()).await;
        let answer = router.post(COMPLETIONS, &json!({"prompt": vec![1; 8192]})).await;
        let message = answer.fails(400, "context_length_exceeded");
        assert!(message.ends_with(&format!("; hint: {hint}")), "{message}");
        let shard = router.app.served.shard_info().unwrap();
        let useless = router.app.served.validator(&shard).useless_limits(&router.app.limits);
        let is_useless = limits.max_input_tokens == Some(9000);
        let line = "`--max-input-tokens` is 9000, but model and KV cache allow only 8191 tokens of a prompt";
        assert_eq!(useless, if is_useless { vec![line.to_owned()] } else { vec![] });
    }
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
    for (path, words) in [
        ("/v1/nothing", "`/docs` lists all routes"),
        ("/nothing", "`/docs` lists all routes"),
        ("/chat/completions", "hint: use `/v1/chat/completions`"),
        ("/v1/v1/chat/completions", "hint: use `/v1/chat/completions`"),
        ("/v1/models/", "hint: use `/v1/models`"),
        ("/v1/generate", "hint: use `/generate`"),
    ] {
        let message = router.get(path).await.fails(404, "route_not_found");
        assert!(message.contains(words), "{message}");
    }
    for (path, allow, words) in [
        (CHAT, "POST", "hint: use `POST`"),
        ("/v1/messages", "POST", "hint: use `POST`"),
        ("/generate", "POST", "hint: use `POST`"),
    ] {
        let answer = router.get(path).await;
        let message = answer.fails(405, "method_not_allowed");
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.header("allow"), Some(allow));
    }
    let answer = router.post("/v1/responses/x", &json!({})).await;
    assert!(answer.fails(405, "method_not_allowed").ends_with("hint: use `GET` or `DELETE`"));
}

#[tokio::test]
async fn a_body_that_is_not_json_is_called_so_whatever_it_begins_with() {
    let router = Router::default().await;
    for body in ["[1,", "[1, 2", "\"a", "", "nul", "{\"messages\": [}"] {
        router.post_bytes(CHAT, body.as_bytes()).await.fails(400, "invalid_json");
        router.post_bytes("/generate", body.as_bytes()).await.fails(400, "invalid_json");
    }
    for body in ["[1]", "5", "\"a\"", "null"] {
        router.post_bytes(CHAT, body.as_bytes()).await.fails(400, "invalid_type");
    }
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
    let message = answer.fails(413, "body_too_large");
    assert!(message.contains("8388608") && message.contains("--max-body-bytes"));

    router.post_bytes("/generate", &vec![b' '; (8 << 20) + 1]).await.fails(413, "body_too_large");
    // A body beyond the limit of discarded bytes is refused because of its `content-length`.
    let mut connection = router.connect().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
    connection.stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(connection.answer().await.status, 413);
}

#[tokio::test]
async fn too_many_open_requests_get_429() {
    let plan = ShardPlan::default().held();
    let limits = Limits { max_concurrent_requests: 1, ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let mut first = router.begin("/generate", &json!({"inputs": "x"})).await;
    router.wait_running(1).await;
    let second = router.post("/generate", &json!({"inputs": "x"})).await;
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")));
    assert_eq!(second.json()["error_type"], "overloaded");
    router.post(CHAT, &json!({})).await.fails(429, "too_many_requests");
    // Operational routes still answer.
    assert_eq!(router.metric("trunkline_rejections_total{code=\"too_many_requests\"}").await, 2.0);
    router.add_steps(1000);
    assert_eq!(first.answer().await.status, 200);
}

#[tokio::test]
async fn a_full_queue_gives_429_with_retry_after_also_for_streams() {
    // There is room for one sequence. The second one waits, and the third is refused.
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let limits = Limits { max_queued_requests: Some(1), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20});
    let mut running = router.begin(COMPLETIONS, &body(1)).await;
    router.wait_running(1).await;
    let mut waiting = router.begin(COMPLETIONS, &body(2)).await;
    router.wait_queued(1).await;
    let refused = router.post(COMPLETIONS, &with(body(3), json!({"stream": true}))).await;
    let message = refused.fails(429, "queue_full");
    assert!(message.contains("queue is full (1 of 1 requests waiting"), "{message}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    router.add_steps(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn an_unreachable_deadline_gets_429() {
    // 8 tokens took 1000 s of device time, and 40 tokens wait. The next request would start after 5000 s.
    let plan = ShardPlan { num_blocks: 8, device_time_us: 1_000_000_000, ..ShardPlan::default().held() };
    let limits = Limits { request_timeout: Duration::from_secs(600), ..Limits::default() };
    let router = Router::start(plan, limits).await;
    router.add_steps(1);
    router.post(COMPLETIONS, &json!({"prompt": vec![9; 8], "max_tokens": 1})).await.ok();
    router.wait_idle().await;
    let body = |first: u32| json!({"prompt": vec![first; 40], "max_tokens": 20});
    let mut running = router.begin(COMPLETIONS, &body(1)).await;
    router.wait_running(1).await;
    let mut waiting = router.begin(COMPLETIONS, &body(2)).await;
    router.wait_queued(1).await;

    let refused = router.post(COMPLETIONS, &body(3)).await;
    let message = refused.fails(429, "deadline_unreachable");
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert!(message.contains("deadline") && message.contains("`--request-timeout`"), "{message}");
    assert!(message.contains("predicted wait is 5000.0 s") && !message.contains("queue"), "{message}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 4400);
    let refused = router.post("/generate", &json!({"inputs": "x"})).await;
    refused.fails(429, "deadline_unreachable");
    assert_eq!(refused.json()["error_type"], "overloaded");
    assert_eq!(router.metric("trunkline_rejections_total{code=\"deadline_unreachable\"}").await, 2.0);
    router.add_steps(10_000);
    assert_eq!(running.answer().await.status, 200);
    assert_eq!(waiting.answer().await.status, 200);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_prompt_too_long_for_the_reconnected_shard_names_the_clients_field() {
    let plan = ShardPlan { num_blocks: 8, ..ShardPlan::default().held() };
    let mut router = Router::with(plan).await;
    let mut running = router.connect().await;
    let body = json!({"prompt": vec![1; 40], "max_tokens": 20});
    running.send("POST", COMPLETIONS, body.to_string().as_bytes()).await;
    router.wait_running(1).await;
    let chat = |field: &str| json!({"messages": user("x"), field: 33});
    let mut waiting = Vec::new();
    for (path, body, field) in [
        ("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 33}}), "max_new_tokens"),
        (CHAT, chat("max_tokens"), "max_tokens"),
        (CHAT, chat("max_completion_tokens"), "max_completion_tokens"),
    ] {
        waiting.push((router.begin(path, &body).await, field));
    }
    router.wait_queued(3).await;
    router.kill_shard();
    router.start_shard(ShardPlan { num_blocks: 4, ..ShardPlan::default() }).await;
    assert_eq!(running.answer().await.status, 502);
    for (mut connection, field) in waiting {
        let text = connection.answer().await.text();
        assert!(text.contains("context_length_exceeded"), "{text}");
        assert!(text.contains(&format!("`{field}` asks for 33 more")), "{text}");
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
    let message = post("gzip").await.fails(400, "invalid_type");
    assert!(message.contains("has the encoding `gzip`; hint: send it without"), "{message}");
}
