//! Embeddings, scores and classes. In the mock, element `i` of a vector is the mean of the prompt's bytes, plus `i`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use trunkline_base::limits::Limits;
use trunkline_engine::shard::proto::Pooling;

use crate::mock::MockVectors;
use crate::support::{Router, ShardPlan, bytes, user, with};

const EMBEDDINGS: &str = "/v1/embeddings";

pub fn vectors(size: u32, labels: &[&str]) -> MockVectors {
    MockVectors {
        pooling: Pooling::Last,
        size,
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
        whole_prompts: false,
        only_pools: false,
        asks_about_pairs: false,
    }
}

async fn serving(vectors: MockVectors) -> Router {
    Router::with(ShardPlan { vectors: Some(vectors), ..ShardPlan::saying("hi") }).await
}

/// Returns the prompts that the shard has begun.
fn prompts(router: &Router) -> Vec<Vec<u32>> {
    let plans = router.shard().plans.lock().unwrap();
    plans.iter().flat_map(|plan| &plan.starts).map(|start| start.token_ids.clone()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let near = found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6);
    assert!(near, "{found:?} is not {expected:?}");
}

#[tokio::test]
async fn embeddings_have_length_1_unless_the_request_says_otherwise() {
    let router = serving(vectors(3, &[])).await;
    // The mean of "ac" is 98.
    let answer = router.post(EMBEDDINGS, &json!({"input": "ac", "normalize": false})).await.ok();
    assert_eq!(
        answer["data"],
        json!([{"object": "embedding", "index": 0, "embedding": [98.0, 99.0, 100.0]}])
    );
    assert_eq!(answer["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let short = router.post(EMBEDDINGS, &json!({"input": ["ac", "b"], "dimensions": 2})).await.ok();
    for (entry, mean) in short["data"].as_array().unwrap().iter().zip([98.0, 98.0]) {
        let expected = [mean, mean + 1.0];
        let length = norm(&expected);
        assert_near(&numbers(&entry["embedding"]), &expected.map(|x| x / length));
    }
    // Token ids, and Base64 of the same numbers.
    let body = json!({"input": [[97, 99], [98]], "normalize": false, "encoding_format": "base64"});
    let coded = router.post(EMBEDDINGS, &body).await.ok();
    let bytes = BASE64_STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let floats: Vec<f32> = bytes.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    assert_eq!(floats, [98.0, 99.0, 100.0]);
    let tei = router.post("/embed", &json!({"inputs": ["b"], "normalize": false})).await.ok();
    assert_eq!(tei, json!([[98.0, 99.0, 100.0]]));
    router.wait_idle().await;
}

#[tokio::test]
async fn a_large_batch_is_computed_a_few_at_a_time_beside_a_chat() {
    let limits = Limits { max_concurrent_requests: Some(20), ..Limits::default() };
    let plan = ShardPlan { vectors: Some(vectors(1, &[])), ..ShardPlan::saying("hi") };
    let router = Router::start(plan, limits).await;
    let input: Vec<String> = (0..300).map(|index| "x".repeat(1 + index % 40)).collect();
    let body = json!({"input": input, "normalize": false});
    let chat = json!({"messages": user("hello")});
    let (embedded, chat) =
        tokio::join!(router.post(EMBEDDINGS, &body), router.post("/v1/chat/completions", &chat));
    assert_eq!(chat.ok()["choices"][0]["message"]["content"], "hi");
    let embedded = embedded.ok();
    let data = embedded["data"].as_array().unwrap();
    assert_eq!(data.len(), 300);
    assert!(
        data.iter()
            .enumerate()
            .all(|(index, entry)| entry["index"] == index && entry["embedding"] == json!([120.0]))
    );
    router.wait_idle().await;
}

#[tokio::test]
async fn a_step_has_only_as_many_vectors_as_one_message_holds() {
    // 16 texts run at once. Four of their vectors take 16 MB, and a message has 16 MiB.
    let plan = ShardPlan { vectors: Some(vectors(1_000_000, &[])), ..ShardPlan::default() };
    let router = Router::with(plan.held()).await;
    let input: Vec<String> = (0..16).map(|index| format!("{index:02}")).collect();
    let body = json!({"input": input, "dimensions": 1, "normalize": false});
    let mut connection = router.begin(EMBEDDINGS, &body).await;
    router
        .wait("all texts", |app| {
            let stats = *app.served.stats.borrow();
            stats.num_waiting + stats.num_running == 16
        })
        .await;
    router.add_steps(1000);
    let answer = connection.answer().await.ok();
    assert_eq!(answer["data"].as_array().unwrap().len(), 16);
    let plans = router.shard().plans.lock().unwrap().clone();
    let samples = plans.iter().map(|plan| plan.chunks.iter().filter(|chunk| chunk.sample).count());
    assert!(samples.clone().all(|count| count <= 4), "{:?} vectors in a step", samples.collect::<Vec<_>>());
    assert!(samples.max() >= Some(3));
    assert_eq!(router.app.served.stats.borrow().replays, 0, "no shard was lost");
    router.wait_idle().await;
}

#[tokio::test]
async fn mean_pooling_computes_every_position_and_encoders_compute_it_at_once() {
    for (pooling, whole_prompts) in [(Pooling::Last, false), (Pooling::Mean, false), (Pooling::First, true)] {
        let router = serving(MockVectors { pooling, whole_prompts, ..vectors(1, &[]) }).await;
        let body = json!({"input": "a text of more than one block"});
        for _ in 0..2 {
            router.post(EMBEDDINGS, &body).await.ok();
        }
        let plans = router.shard().plans.lock().unwrap().clone();
        let firsts: Vec<u32> =
            plans.iter().flat_map(|plan| &plan.chunks).map(|chunk| chunk.first_position).collect();
        assert_eq!(firsts.len(), 2, "{firsts:?}");
        assert_eq!(firsts[1] > 0, pooling == Pooling::Last, "{pooling:?} has a prefix hit: {firsts:?}");
    }
}

#[tokio::test]
async fn a_model_with_one_class_scores_pairs() {
    let router = serving(MockVectors { only_pools: true, ..vectors(1, &["LABEL_0"]) }).await;
    let body =
        json!({"query": "!", "documents": ["!", {"text": "\"\""}], "top_n": 1, "return_documents": true});
    let ranked = router.post("/v1/rerank", &body).await.ok();
    assert_eq!(ranked["results"].as_array().unwrap().len(), 1);
    assert_eq!(ranked["results"][0]["index"], 1);
    assert_eq!(ranked["results"][0]["document"]["text"], "\"\"");
    let tei = json!({"query": "!", "texts": ["!", "\"\""], "raw_scores": true});
    let tei = router.post("/rerank", &tei).await.ok();
    let order: Vec<_> =
        tei.as_array().unwrap().iter().map(|entry| entry["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [1, 0]);
    // The mean of 33, 34 and 34.
    assert_near(&[tei[0]["score"].as_f64().unwrap()], &[f64::from(101.0f32 / 3.0)]);
    let scored = router.post("/v1/score", &json!({"text_1": ["!", "!"], "text_2": ["!", "\"\""]})).await.ok();
    assert_near(&[scored["data"][1]["score"].as_f64().unwrap()], &[1.0]);
    assert_eq!(scored["usage"]["prompt_tokens"], 5);
    let problem = json!({"text_1": ["a", "b", "c"], "text_2": ["a", "b"]});
    let message = router.post("/v1/score", &problem).await.fails(400, "invalid_value");
    assert!(message.contains("has 3 texts, must have one or the 2 of `text_2`"), "{message}");
    // Nothing is generated.
    let message = router
        .post("/v1/chat/completions", &json!({"messages": user("hi")}))
        .await
        .fails(400, "generation_not_supported");
    assert!(message.contains("makes only vectors"), "{message}");
    router.post(EMBEDDINGS, &json!({"input": "x"})).await.fails(400, "embeddings_not_supported");
}

#[tokio::test]
async fn a_model_with_several_classes_names_the_likeliest() {
    let router = serving(vectors(3, &["sad", "calm", "glad"])).await;
    let answer = router.post("/v1/classify", &json!({"input": ["x"]})).await.ok();
    let entry = &answer["data"][0];
    assert_eq!((entry["label"].as_str(), entry["num_classes"].as_u64()), (Some("glad"), Some(3)));
    let powers = [1.0, 1f64.exp(), 2f64.exp()];
    let sum: f64 = powers.iter().sum();
    assert_near(&numbers(&entry["probs"]), &powers.map(|power| power / sum));
    let one = router.post("/predict", &json!({"inputs": "x", "raw_scores": true})).await.ok();
    assert_eq!(one[0], json!({"score": 122.0, "label": "glad"}));
    let each = router.post("/predict", &json!({"inputs": [["x"], ["x", "y"]]})).await.ok();
    assert_eq!(each.as_array().unwrap().len(), 2);
    let body = json!({"query": "a", "documents": ["b"]});
    router.post("/v1/rerank", &body).await.fails(400, "scores_not_supported");
}

#[tokio::test]
async fn embeddings_score_pairs_by_their_cosine() {
    let router = serving(vectors(2, &[])).await;
    let answer = router.post("/score", &json!({"text_1": "a", "text_2": ["a", "z"]})).await.ok();
    let cosine = |x: [f64; 2], y: [f64; 2]| {
        let dot = |x: [f64; 2], y: [f64; 2]| x[0] * y[0] + x[1] * y[1];
        dot(x, y) / (dot(x, x) * dot(y, y)).sqrt()
    };
    let scores: Vec<f64> = (0..2).map(|index| answer["data"][index]["score"].as_f64().unwrap()).collect();
    assert_near(&scores, &[1.0, cosine([97.0, 98.0], [122.0, 123.0])]);
}

#[tokio::test]
async fn long_texts_are_truncated_on_request_and_other_models_make_no_vectors() {
    let router = serving(vectors(2, &[])).await;
    let long = "x".repeat(9000);
    router.post("/embed", &json!({"inputs": long, "truncate": true})).await.ok();
    let plain = Router::saying("hi").await;
    let message = plain.post(EMBEDDINGS, &json!({"input": "a"})).await.fails(400, "embeddings_not_supported");
    assert!(message.contains("start the server with `--pooling last`"), "{message}");
}

#[tokio::test]
async fn fields_that_would_change_vectors_are_refused_and_unknown_ones_named() {
    let router = serving(vectors(2, &[])).await;
    for (path, field, body) in [
        (EMBEDDINGS, "input", json!({"truncation_direction": "left"})),
        (EMBEDDINGS, "input", json!({"late_chunking": true})),
        ("/v1/rerank", "query", json!({"documents": ["x"], "max_tokens_per_doc": 4})),
        ("/v1/score", "text_1", json!({"text_2": "x", "use_activation": false})),
    ] {
        let refused = router.post(path, &with(json!({field: "a"}), body)).await;
        refused.fails(400, "unsupported_field");
    }
    let known = json!({"input": "a", "user": "me", "priority": 1, "truncation_direction": "right"});
    let answer = router.post(EMBEDDINGS, &known).await;
    assert_eq!(answer.header("x-ignored-fields"), None);
    answer.ok();
    let unknown = json!({"query": "a", "documents": ["b"], "flavour": "sweet"});
    for path in ["/v1/rerank", "/rerank"] {
        assert_eq!(router.post(path, &unknown).await.header("x-ignored-fields"), Some("flavour"));
    }
}

#[tokio::test]
async fn the_tokens_of_pairs_are_those_of_their_texts_in_a_frame() {
    let router = serving(MockVectors { only_pools: true, ..vectors(1, &["LABEL_0"]) }).await;
    let documents: Vec<String> = (0..40).map(|index| format!("document {index}")).collect();
    let body = json!({"query": "a query", "documents": documents});
    let answer = router.post("/v1/rerank", &body).await.ok();
    let mut wanted: Vec<Vec<u32>> =
        documents.iter().map(|document| bytes(&format!("a query{document}"))).collect();
    let num_tokens: usize = wanted.iter().map(Vec::len).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], num_tokens);
    let mut found = prompts(&router);
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_query_is_charged_with_each_document_before_any_is_computed() {
    let key = "sk-alice-0123456789";
    let keys = format!("[tenants.alice]\nkeys = \"{key}\"\ntokens_per_minute = 1000\n");
    let plan = ShardPlan {
        vectors: Some(MockVectors { only_pools: true, ..vectors(1, &["LABEL_0"]) }),
        ..ShardPlan::default()
    };
    let router = Router::start_with_keys(&keys, plan, Limits::default()).await;
    let ask = |count: usize| {
        let body = json!({"query": "q".repeat(90), "documents": vec!["0123456789"; count]});
        let router = &router;
        async move { router.ask(key, "POST", "/v1/rerank", &body).await }
    };
    ask(5).await.ok();
    assert_eq!(prompts(&router).len(), 5);
    ask(6).await.fails(429, "rate_limit_exceeded");
    assert_eq!(prompts(&router).len(), 5);
    ask(4).await.ok();
}

#[tokio::test]
async fn questions_about_pairs_have_a_limit_on_their_text() {
    let limits = Limits { max_body_bytes: 8 << 20, ..Limits::default() };
    let plan = ShardPlan {
        vectors: Some(MockVectors { asks_about_pairs: true, only_pools: true, ..vectors(1, &["yes"]) }),
        ..ShardPlan::default()
    };
    let router = Router::start(plan, limits).await;
    let body = json!({"query": "q".repeat(1 << 20), "documents": vec!["d"; 65]});
    let message = router.post("/v1/rerank", &body).await.fails(400, "invalid_value");
    let words = "`documents` asks about 68157505 bytes of text, each pair counted, the limit is 67108864;";
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn documents_are_repeated_only_if_the_request_asks_for_them() {
    for labels in [&["LABEL_0"][..], &[]] {
        let router = serving(vectors(1, labels)).await;
        for (fields, text) in
            [(json!({}), Value::Null), (json!({"return_documents": true}), json!({"text": "two"}))]
        {
            let body = with(json!({"query": "one", "documents": ["two"]}), fields);
            let answer = router.post("/v1/rerank", &body).await.ok();
            assert_eq!(answer["results"][0]["document"], text);
        }
    }
}

#[tokio::test]
async fn token_ids_need_no_question() {
    let router =
        serving(MockVectors { asks_about_pairs: true, only_pools: true, ..vectors(1, &["yes"]) }).await;
    let body = json!({"input": [[97, 98, 99], [100]], "truncate_prompt_tokens": 2});
    router.post("/v1/classify", &body).await.ok();
    let mut found = prompts(&router);
    found.sort();
    assert_eq!(found, [vec![97, 98], vec![100]]);
    router.post("/v1/classify", &json!({"input": ["ab"]})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, bytes("ab"));
}
