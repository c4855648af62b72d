//! Several outputs in one response: choices and prompts.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan, bytes, prompt_of, user};
use trunkline_base::limits::Limits;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn choices_of_a_chat_share_the_prompt() {
    let router = Router::replying(&["one", "two", "three"]).await;
    let body = json!({"messages": user("hello there"), "n": 3, "seed": 7});
    let answer = router.post(CHAT, &body).await.ok();
    for (index, text) in ["one", "two", "three"].into_iter().enumerate() {
        let choice = &answer["choices"][index];
        assert_eq!(json!([choice["index"], choice["message"]["content"]]), json!([index, text]));
    }
    // The prompt is counted once. Each output is counted with its end token.
    assert_eq!(answer["usage"]["prompt_tokens"], prompt_of("hello there").len());
    assert_eq!(answer["usage"]["completion_tokens"], "onetwothree".len() + 3);
    // The prompt's full blocks were computed only once, so fewer tokens were planned than one prompt for each choice.
    let plans = router.shard().plans.lock().unwrap().clone();
    let planned: u32 = plans.iter().flat_map(|plan| &plan.chunks).map(|chunk| chunk.num_tokens).sum();
    let prompt = prompt_of("hello there").len() as u32;
    assert!(planned < 2 * prompt + "onetwothree".len() as u32, "{planned} tokens for a prompt of {prompt}");
    router.wait_idle().await;
}

#[tokio::test]
async fn choices_in_a_stream_are_numbered() {
    let router = Router::replying(&["one", "twenty", "3"]).await;
    let body =
        json!({"messages": user("x"), "n": 3, "stream": true, "stream_options": {"include_usage": true}});
    let events = router.post(CHAT, &body).await.events();
    let mut contents = vec![String::new(); 3];
    let mut ends = vec![0; 3];
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let index = choice["index"].as_u64().unwrap() as usize;
        contents[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        ends[index] += u32::from(choice["finish_reason"] == "stop");
    }
    assert_eq!((contents, ends), (vec!["one".into(), "twenty".into(), "3".into()], vec![1; 3]));
    let [.., usage, done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(usage["usage"]["completion_tokens"], "onetwenty3".len() + 3);
    assert_eq!(done, "[DONE]");
}

#[tokio::test]
async fn prompts_are_answered_in_their_order() {
    let router = Router::replying(&["a", "b"]).await;
    let body = json!({"prompt": ["first", "second"], "n": 2, "echo": true});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(texts(&answer), ["firsta", "firstb", "seconda", "secondb"]);
    assert_eq!(answer["usage"]["prompt_tokens"], "firstsecond".len());
    let ids = json!({"prompt": [bytes("first"), bytes("second")], "stream": true, "echo": true});
    let events = router.post(COMPLETIONS, &ids).await.events();
    let of = |index: u64| {
        let choices = events.iter().filter_map(|event| event["choices"].get(0));
        let mine = choices.filter(move |choice| choice["index"] == index);
        mine.map(|choice| choice["text"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!((of(0).as_str(), of(1).as_str()), ("firsta", "seconda"));
}

#[tokio::test]
async fn best_of_returns_the_likeliest_outputs() {
    // The mock gives higher choices likelier tokens.
    let router = Router::replying(&["a", "b", "c", "d"]).await;
    let body = json!({"prompt": "x", "n": 2, "best_of": 4});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(texts(&answer), ["d", "c"]);
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn choices_keep_their_order_with_logprobs() {
    let router = Router::replying(&["a", "b", "c"]).await;
    let answer = router.post(COMPLETIONS, &json!({"prompt": "x", "n": 3, "logprobs": 1})).await.ok();
    assert_eq!(texts(&answer), ["a", "b", "c"], "only `best_of` ranks");
}

#[tokio::test]
async fn prompts_of_one_kind_are_accepted() {
    let router = Router::default().await;
    for prompts in [json!(["a", "b"]), json!([[1], [2]]), json!([1, 2])] {
        router.post(COMPLETIONS, &json!({"prompt": prompts})).await.ok();
    }
}

#[tokio::test]
async fn tgis_best_of_returns_the_other_outputs_in_details() {
    let router = Router::replying(&["a", "b", "c"]).await;
    let parameters = json!({"best_of": 3, "do_sample": true, "details": true, "seed": 5});
    let answer = router.post("/generate", &json!({"inputs": "x", "parameters": parameters})).await.ok();
    assert_eq!(answer["generated_text"], "c");
    let others = answer["details"]["best_of_sequences"].as_array().unwrap();
    let others: Vec<&Value> = others.iter().map(|other| &other["generated_text"]).collect();
    assert_eq!(others, ["b", "a"]);
    let parameters = json!({"details": true});
    let answer = router.post("/generate", &json!({"inputs": "x", "parameters": parameters})).await.ok();
    assert!(answer["details"].get("best_of_sequences").is_none());
}

#[tokio::test]
async fn every_output_takes_a_place() {
    let limits = Limits { max_concurrent_requests: Some(4), ..Limits::default() };
    let router = Router::start(ShardPlan::endless().held(), limits).await;
    let first = router.begin(CHAT, &json!({"messages": user("x"), "n": 3, "stream": true})).await;
    router.wait("three places to be taken", |app| app.admission.open.available_permits() == 1).await;
    router.post(CHAT, &json!({"messages": user("x"), "n": 2})).await.fails(429, "too_many_requests");
    router
        .post(CHAT, &json!({"messages": user("x"), "n": 5}))
        .await
        .refuses(400, "--max-concurrent-requests");
    // Dropping the answer returns all places.
    drop(first);
    router.wait("the places to be free", |app| app.admission.open.available_permits() == 4).await;
}
