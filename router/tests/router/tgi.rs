//! The routes of TGI's API.

use serde_json::{Value, json};

use crate::support::{END, Router, ShardPlan, bytes, prompt_of, user, with};
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_scheduler::Watermark;

#[tokio::test]
async fn generate_returns_only_text_by_default() {
    let router = Router::default().await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 5}});
    assert_eq!(router.post("/generate", &body).await.ok(), json!({"generated_text": "Hello"}));
    assert_eq!(router.post("/", &body).await.ok(), json!([{"generated_text": "Hello"}]));
    let whole = router.post("/generate", &json!({"inputs": "abc"})).await.ok();
    assert_eq!(whole["generated_text"], "Hello wörld 🙂!");
    let sampling = router.last_sampling();
    assert_eq!(sampling.temperature, 0.0, "greedy is the default");
}

#[tokio::test]
async fn details_name_every_token() {
    let router = Router::saying("hö").await;
    let parameters = json!({"details": true, "do_sample": true, "seed": 5, "top_n_tokens": 1});
    let body = router.post("/generate", &json!({"inputs": "abc", "parameters": parameters})).await.ok();
    let token = |id: u32, text: &str| json!({"id": id, "text": text, "logprob": -0.125, "special": false});
    let mut end = token(END, "<|end|>");
    end["special"] = true.into();
    assert_eq!(body["generated_text"], "hö");
    assert_eq!(
        body["details"]["tokens"],
        json!([token(b'h'.into(), "h"), token(0xc3, ""), token(0xb6, "ö"), end])
    );
    assert_eq!(body["details"]["finish_reason"], "eos_token");
    assert_eq!(body["details"]["generated_tokens"], 4);
    assert_eq!(body["details"]["seed"], 5);
    assert_eq!(body["details"]["prefill"], json!([]));
    assert_eq!(body["details"]["top_tokens"][0], json!([token(b'h'.into(), "h")]));
}

#[tokio::test]
async fn a_stream_has_an_event_for_each_token_and_the_text_in_the_last() {
    let router = Router::saying("hö").await;
    let body = json!({"inputs": "abc", "parameters": {"details": true}});
    let events = router.post("/generate_stream", &body).await.events();
    let texts: Vec<&Value> = events.iter().map(|event| &event["token"]["text"]).collect();
    assert_eq!(texts, ["h", "", "ö", "<|end|>"]);
    let indices: Vec<&Value> = events.iter().map(|event| &event["index"]).collect();
    assert_eq!(indices, [1, 2, 3, 4]);
    assert!(events[..3].iter().all(|event| event["generated_text"].is_null() && event["details"].is_null()));
    assert_eq!(events[3]["generated_text"], "hö");
    assert_eq!(
        events[3]["details"],
        json!({"finish_reason": "eos_token", "generated_tokens": 4, "seed": null, "input_length": 3})
    );
    // `stream` on the other routes gives the same events.
    let streamed = with(body, json!({"stream": true}));
    assert_eq!(router.post("/generate", &streamed).await.events(), events);
    assert_eq!(router.post("/", &streamed).await.events(), events);
}

#[tokio::test]
async fn stop_string_stays_in_the_output() {
    let router = Router::default().await;
    let parameters = json!({"stop": ["wör"], "details": true, "return_full_text": true});
    let body = router.post("/generate", &json!({"inputs": "abc ", "parameters": parameters})).await.ok();
    assert_eq!(body["generated_text"], "abc Hello wör");
    assert_eq!(body["details"]["finish_reason"], "stop_sequence");
    router.wait_idle().await;
}

#[tokio::test]
async fn truncate_keeps_the_last_prompt_tokens() {
    let router = Router::default().await;
    router.post("/generate", &json!({"inputs": "abcdef", "parameters": {"truncate": 2}})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, bytes("ef"));
    router.post("/generate", &json!({"inputs": "abc", "parameters": {"truncate": 20}})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, bytes("abc"));
}

#[tokio::test]
async fn parameters_that_need_sampling_turn_it_on() {
    let router = Router::default().await;
    for (parameters, temperature) in [
        (json!({"temperature": 0.5}), 0.5),
        (json!({"top_k": 5}), 1.0),
        (json!({"top_p": 0.5}), 1.0),
        (json!({"do_sample": true}), 1.0),
        (json!({"typical_p": 0.5}), 1.0),
        (json!({"do_sample": false}), 0.0),
        (json!({"typical_p": 1.0, "watermark": false, "best_of": 1, "grammar": null}), 0.0),
    ] {
        router.post("/generate", &json!({"inputs": "abc", "parameters": parameters})).await.ok();
        let sampling = router.last_sampling();
        assert_eq!(sampling.temperature, temperature, "{parameters}");
    }
}

#[tokio::test]
async fn a_request_for_a_watermark_gets_the_servers() {
    let watermark = Watermark { gamma: 0.25, delta: 3.5, key: 1 << 40 | 7 };
    let limits = ServerLimits { watermark, ..ServerLimits::default() };
    let router = Router::start(ShardPlan::saying("yes"), limits).await;
    for (parameters, is_marked) in [
        (json!({"watermark": true}), true),
        (json!({"watermark": false}), false),
        (json!({"watermark": null}), false),
        (json!({}), false),
    ] {
        router.post("/generate", &json!({"inputs": "abc", "parameters": parameters})).await.ok();
        let sampling = router.last_sampling();
        let sent = sampling.watermark.map(|sent| (sent.gamma, sent.delta, sent.key));
        assert_eq!(sent, is_marked.then_some((0.25, 3.5, 1 << 40 | 7)), "{parameters}");
        assert_eq!(sampling.temperature, 0.0, "it does not turn sampling on");
    }
    let body = json!({"inputs": "abc", "parameters": {"watermark": true, "best_of": 2, "do_sample": true}});
    router.post("/generate", &body).await.ok();
    assert!(router.last_sampling().watermark.is_some(), "of each output");
}

#[tokio::test]
async fn tokenize_returns_offsets_in_characters() {
    let router = Router::default().await;
    let tokens = router.post("/tokenize", &json!({"inputs": "aö<|end|>b"})).await.ok();
    assert_eq!(
        tokens,
        json!([
            {"id": 97, "text": "a", "start": 0, "stop": 1},
            {"id": 0xc3, "text": "ö", "start": 1, "stop": 2},
            {"id": 0xb6, "text": "ö", "start": 1, "stop": 2},
            {"id": END, "text": "<|end|>", "start": 2, "stop": 9},
            {"id": 98, "text": "b", "start": 9, "stop": 10},
        ])
    );
}

#[tokio::test]
async fn tokenize_answers_in_the_form_of_the_field_with_the_text() {
    let router = Router::default().await;
    let tokenize = async |body: Value| router.post("/tokenize", &body).await.ok();
    let answer = tokenize(json!({"prompt": "aö", "model": "test/model"})).await;
    let max_model_len = router.get("/v1/models").await.ok()["data"][0]["max_model_len"].clone();
    let vllm = |tokens: &Value, strs| {
        let count = tokens.as_array().unwrap().len();
        json!({"count": count, "max_model_len": max_model_len, "tokens": tokens, "token_strs": strs})
    };
    assert_eq!(answer, vllm(&json!([97, 0xc3, 0xb6]), Value::Null));
    let answer = tokenize(json!({"prompt": "ab", "return_token_strs": true})).await;
    assert_eq!(answer, vllm(&json!([97, 98]), json!(["a", "b"])));
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let prompt = router.post("/chat_tokenize", &chat).await.ok();
    let ids: Vec<&Value> =
        prompt["tokenize_response"].as_array().unwrap().iter().map(|token| &token["id"]).collect();
    assert_eq!(tokenize(chat.clone()).await, vllm(&json!(ids), Value::Null));
    assert_eq!(tokenize(json!({"content": "ab"})).await, json!({"tokens": [97, 98]}));
    let answer = tokenize(json!({"content": "a", "with_pieces": true, "add_special": false})).await;
    assert_eq!(answer, json!({"tokens": [{"id": 97, "piece": "a"}]}));
    router.post("/tokenize", &with(chat, json!({"model": "other"}))).await.fails(404, "model_not_found");
}

#[tokio::test]
async fn detokenize_returns_the_text_under_the_names_of_vllm_and_llama_cpp() {
    let router = Router::default().await;
    let answer = router.post("/detokenize", &json!({"tokens": [97, 0xc3, 0xb6, END, 98]})).await.ok();
    assert_eq!(answer, json!({"prompt": "aö<|end|>b", "content": "aö<|end|>b"}));
    let empty = router.post("/detokenize", &json!({"tokens": [], "model": "test/model"})).await.ok();
    assert_eq!(empty["prompt"], "");
}

#[tokio::test]
async fn info_names_model_and_limits() {
    let limits =
        Limits { max_input_tokens: Some(100), max_concurrent_requests: Some(7), ..Limits::default() };
    let router = Router::start(ShardPlan { max_step_tokens: 32, ..ShardPlan::default() }, limits).await;
    let info = router.get("/info").await.ok();
    assert_eq!(info["model_id"], "test/model");
    assert_eq!(info["max_input_tokens"], 100);
    assert_eq!(info["max_total_tokens"], 8192);
    assert_eq!(info["max_batch_prefill_tokens"], 32);
    // The answer has every field that TGI's document requires, and those that may be null.
    assert!(info["validation_workers"].as_u64().unwrap() >= 1);
    assert_eq!(info["max_client_batch_size"], 7);
    for field in ["model_sha", "sha", "docker_label"] {
        assert_eq!(info.get(field), Some(&Value::Null), "{field}");
    }
}

#[tokio::test]
async fn headers_report_times_and_token_counts() {
    let router = Router::saying("hö").await;
    let body = json!({"inputs": "äbc", "parameters": {"do_sample": true, "best_of": 2}});
    let answer = router.post("/generate", &body).await;
    for (name, value) in
        [("x-compute-characters", "3"), ("x-prompt-tokens", "4"), ("x-generated-tokens", "4")]
    {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let number = |name: &str| answer.header(name).unwrap().parse::<f64>().unwrap();
    let (seconds, total) = (number("x-compute-time"), number("x-total-time"));
    assert_eq!((seconds * 1e3).floor(), total);
    let parts = number("x-validation-time") + number("x-queue-time") + number("x-inference-time");
    assert!(parts <= total && total < parts + 3.0, "{parts} of {total}: each part is cut to milliseconds");
    assert!(number("x-time-per-token") <= number("x-inference-time"));
    assert!(answer.header("x-compute-type").is_some());
    let events = router.post("/generate_stream", &json!({"inputs": "äbc"})).await;
    assert_eq!(events.header("x-compute-characters"), Some("3"));
    assert_eq!(events.header("x-generated-tokens"), None, "the number is not known yet");
}

#[tokio::test]
async fn outputs_end_after_1024_tokens_by_default_and_on_request_not_at_end_tokens() {
    let router = Router::saying(&"x".repeat(2000)).await;
    let body = json!({"inputs": "abc", "parameters": {"details": true}});
    let answer = router.post("/generate", &body).await.ok();
    assert_eq!(answer["details"]["generated_tokens"], 1024);
    assert_eq!(answer["details"]["finish_reason"], "length");
    let router = Router::saying("ab").await;
    let parameters = json!({"details": true, "ignore_eos_token": true, "max_new_tokens": 9});
    let answer = router.post("/generate", &json!({"inputs": "abc", "parameters": parameters})).await.ok();
    assert_eq!(answer["details"]["generated_tokens"], 9);
}

#[tokio::test]
async fn chat_tokenize_returns_the_chats_prompt() {
    let router = Router::default().await;
    let body = json!({"messages": user("hö <|end|>")});
    let answer = router.post("/chat_tokenize", &body).await.ok();
    let text = "<|start|>user\nhö <|end|><|end|><|start|>assistant\n";
    assert_eq!(answer["templated_text"], text);
    let tokens = answer["tokenize_response"].as_array().unwrap();
    // The name of a control token in a message stays text.
    let ids: Vec<u32> = tokens.iter().map(|token| token["id"].as_u64().unwrap() as u32).collect();
    assert_eq!(ids, prompt_of("hö <|end|>"));
    let texts: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(texts, text);
    assert_eq!(tokens[0], json!({"id": 256, "text": "<|start|>", "start": 0, "stop": 9}));
    let last = &tokens[tokens.len() - 1];
    assert_eq!(last["stop"], text.chars().count());
}

#[tokio::test]
async fn invocations_accept_the_bodies_of_other_routes() {
    let router = Router::saying("hi").await;
    for (body, pointer) in [
        (json!({"inputs": "x"}), "/0/generated_text"),
        (json!({"messages": user("x")}), "/choices/0/message/content"),
        (json!({"prompt": "x"}), "/choices/0/text"),
    ] {
        let answer = router.post("/invocations", &body).await.ok();
        assert_eq!(answer.pointer(pointer), Some(&json!("hi")), "{answer}");
    }
    let events = router.post("/invocations", &json!({"inputs": "x", "stream": true})).await.events();
    assert_eq!(events.last().unwrap()["generated_text"], "hi");
    router.wait_idle().await;
}

#[tokio::test]
async fn vertex_returns_a_prediction_for_each_instance() {
    let router = Router::saying("hello").await;
    let body = json!({"instances": [
        {"inputs": "a"},
        {"inputs": "b", "parameters": {"max_new_tokens": 2, "return_full_text": true}},
        {"inputs": "c", "parameters": null},
        {"messages": user("d"), "max_tokens": 3},
    ]});
    let answer = router.post("/vertex", &body).await.ok();
    assert_eq!(answer, json!({"predictions": ["hello", "bhe", "hello", "hel"]}));
    assert_eq!(router.shard().last_start().token_ids, prompt_of("d"));
    router.wait_idle().await;
}
