//! TGI's routes.

use serde_json::{Value, json};

use crate::support::{END, Router, ShardPlan, bytes};
use trunkline_router::limits::Limits;

#[tokio::test]
async fn generate_gives_text_alone_unless_asked() {
    let router = Router::default().await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 5}});
    assert_eq!(router.post("/generate", &body).await.ok(), json!({"generated_text": "Hello"}));
    assert_eq!(router.post("/", &body).await.ok(), json!([{"generated_text": "Hello"}]));
    assert_eq!(
        router.post("/generate", &json!({"inputs": "abc"})).await.ok()["generated_text"],
        "Hello wörld 🙂!"
    );
    let sampling = router.shard().last_start().sampling.unwrap();
    assert_eq!(sampling.temperature, 0.0, "greedy is the default");
}

#[tokio::test]
async fn details_name_every_token() {
    let router = Router::start(ShardPlan::saying("hö"), Limits::default()).await;
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
async fn stream_has_an_event_per_token_and_the_text_in_the_last() {
    let router = Router::start(ShardPlan::saying("hö"), Limits::default()).await;
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
    // `stream` on the other routes is the same.
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
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
async fn truncate_keeps_the_last_tokens() {
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
        (json!({"do_sample": false}), 0.0),
        (json!({"typical_p": 1.0, "watermark": false, "best_of": 1, "grammar": null}), 0.0),
    ] {
        router.post("/generate", &json!({"inputs": "abc", "parameters": parameters})).await.ok();
        let sampling = router.shard().last_start().sampling.unwrap();
        assert_eq!(sampling.temperature, temperature, "{parameters}");
    }
}

#[tokio::test]
async fn tokenize_gives_places_in_characters() {
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
async fn info_names_model_and_limits() {
    let limits = Limits { max_input_tokens: Some(100), max_step_tokens: Some(32), ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let info = router.get("/info").await.ok();
    assert_eq!(info["model_id"], "test/model");
    assert_eq!(info["max_input_tokens"], 100);
    assert_eq!(info["max_total_tokens"], 8192);
    assert_eq!(info["max_batch_prefill_tokens"], 32);
}
