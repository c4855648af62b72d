//! Logprobs of the prompt. In the mock, the token at position p has the logprob -p/8 and is the likeliest.

use serde_json::{Value, json};

use crate::support::{END, Router, ShardPlan, bytes, user, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn echo_returns_the_prompts_logprobs_before_the_outputs() {
    let router = Router::saying("hö").await;
    let body = json!({"prompt": "aöb", "echo": true, "logprobs": 1});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(answer["choices"][0]["text"], "aöbhö");
    let logprobs = &answer["choices"][0]["logprobs"];
    // The end token has an entry too, because clients that score texts count tokens.
    let end = "<|end|>";
    let tokens = json!(["a", "bytes:\\xc3", "bytes:\\xb6", "b", "h", "bytes:\\xc3", "bytes:\\xb6", end]);
    assert_eq!(logprobs["tokens"], tokens);
    let prompt = json!([null, -0.125, -0.25, -0.375, -0.125, -0.125, -0.125, -0.125]);
    assert_eq!(logprobs["token_logprobs"], prompt);
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2, 3, 4, 4, 5]));
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][3], json!({"b": -0.375}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    // A stream has the same content.
    let events = router.post(COMPLETIONS, &with(body, json!({"stream": true}))).await.events();
    let (mut text, mut lists) =
        (String::new(), json!({"tokens": [], "token_logprobs": [], "text_offset": []}));
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        text.push_str(choice["text"].as_str().unwrap());
        for (name, list) in lists.as_object_mut().unwrap() {
            list.as_array_mut().unwrap().extend(choice["logprobs"][name].as_array().unwrap().clone());
        }
    }
    assert_eq!(text, "aöbhö");
    for (name, list) in lists.as_object().unwrap() {
        assert_eq!(*list, logprobs[name], "{name}");
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn a_text_is_scored_without_output() {
    let router = Router::saying("never said").await;
    let body = json!({"prompt": ["abc", "z"], "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices[0]["text"], "abc");
    assert_eq!(choices[0]["finish_reason"], "length");
    assert_eq!(choices[0]["logprobs"]["token_logprobs"], json!([null, -0.125, -0.25]));
    // A single token has nothing to be scored, so it needs no step.
    assert_eq!(choices[1]["text"], "z");
    assert_eq!(choices[1]["logprobs"]["token_logprobs"], json!([null]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let plans = router.shard().plans.lock().unwrap().clone();
    assert!(plans.iter().flat_map(|plan| &plan.chunks).all(|chunk| !chunk.sample));
    // A prompt that is echoed without logprobs needs no step either.
    let plain = router.post(COMPLETIONS, &json!({"prompt": "abc", "echo": true, "max_tokens": 0})).await.ok();
    let choice = &plain["choices"][0];
    assert_eq!(json!([choice["text"], choice["logprobs"]]), json!(["abc", null]));
    router.wait_idle().await;
}

#[tokio::test]
async fn choices_share_the_scores_of_their_prompt() {
    let replies = ["one", "two", "three"].map(bytes).to_vec();
    let plan = ShardPlan { replies, max_step_sequences: 8, ..ShardPlan::default() };
    let router = Router::with(plan).await;
    let prompt = "a prompt of more than a few positions";
    for stream in [false, true] {
        let body =
            json!({"prompt": prompt, "echo": true, "logprobs": 0, "n": 3, "seed": 1, "stream": stream});
        let num_plans = router.shard().plans.lock().unwrap().len();
        let lists: Vec<Vec<Value>> = if stream {
            let events = router.post(COMPLETIONS, &body).await.events();
            let choices: Vec<&Value> = events.iter().filter_map(|event| event["choices"].get(0)).collect();
            let of = |index: u64| choices.iter().filter(move |choice| choice["index"] == index);
            (0..3)
                .map(|index| {
                    of(index).flat_map(|c| c["logprobs"]["token_logprobs"].as_array().unwrap().clone())
                })
                .map(Iterator::collect)
                .collect()
        } else {
            let answer = router.post(COMPLETIONS, &body).await.ok();
            let choices = answer["choices"].as_array().unwrap().clone();
            choices.iter().map(|c| c["logprobs"]["token_logprobs"].as_array().unwrap().clone()).collect()
        };
        for list in &lists {
            let expected =
                (0..prompt.len()).map(|p| if p == 0 { Value::Null } else { json!(-0.125 * p as f64) });
            assert_eq!(list[..prompt.len()], expected.collect::<Vec<_>>(), "stream {stream}");
        }
        assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), 3 * prompt.len() + "onetwothree".len() + 3);
        // The prompt was scored once, in pieces, although the second round found all of it in the cache.
        let plans = router.shard().plans.lock().unwrap();
        let scored = plans[num_plans..].iter().flat_map(|plan| &plan.chunks).filter(|chunk| chunk.score);
        let num_tokens: Vec<u32> = scored.map(|chunk| chunk.num_tokens).collect();
        assert!(num_tokens.len() > 3 && num_tokens.iter().all(|count| *count <= 8), "{num_tokens:?}");
        assert!((prompt.len() - 1..=prompt.len()).contains(&(num_tokens.iter().sum::<u32>() as usize)));
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn prompt_logprobs_in_vllms_form() {
    let router = Router::saying("hi").await;
    let entry = |logprob: f64, rank: u32, text: &str| json!({"logprob": logprob, "rank": rank, "decoded_token": text});
    let answer = router.post(COMPLETIONS, &json!({"prompt": "ab", "prompt_logprobs": 2})).await.ok();
    let expected = json!([null, {"98": entry(-0.125, 1, "b"), "99": entry(-0.25, 2, "c")}]);
    assert_eq!(answer["choices"][0]["prompt_logprobs"], expected);
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["choices"][0]["text"], "hi");
    let body = json!({"messages": user("x"), "prompt_logprobs": 0, "n": 2});
    let answer = router.post(CHAT, &body).await.ok();
    let list = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(list.len() as u64, answer["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(list[1], json!({"117": entry(-0.125, 1, "u")}));
    // Both fields work together, each with its own number of tokens.
    let body = json!({"prompt": "ab", "prompt_logprobs": 1, "echo": true, "logprobs": 3, "max_tokens": 0});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["prompt_logprobs"][1].as_object().unwrap().len(), 1);
    assert_eq!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 3);
    router.wait_idle().await;
}

#[tokio::test]
async fn decoder_input_details_in_tgis_form() {
    let router = Router::saying("hi").await;
    let parameters = json!({"decoder_input_details": true});
    let answer = router.post("/generate", &json!({"inputs": "ab", "parameters": parameters})).await.ok();
    let prefill =
        json!([{"id": 97, "text": "a", "logprob": null}, {"id": 98, "text": "b", "logprob": -0.125}]);
    assert_eq!(answer["details"]["prefill"], prefill);
    assert_eq!(answer["details"]["tokens"][2]["id"], END);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_long_prompt_is_scored_piece_by_piece() {
    // The mock asserts that no step computes the logits of too many positions.
    let router = Router::saying("x").await;
    let body = json!({"prompt": "a".repeat(2000), "prompt_logprobs": 20, "max_tokens": 1});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let list = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(list.len(), 2000);
    assert_eq!(list[1999]["97"]["logprob"], json!(-0.125 * 1999.0));
    assert!(list[1..].iter().all(|place| place.as_object().unwrap().len() == 20));
    router.wait_idle().await;
}

#[tokio::test]
async fn a_long_echoed_prompt_streams_in_pieces() {
    let router = Router::saying("x").await;
    let prompt = "aö".repeat(2_000);
    for (fields, max_chars) in [(json!({"logprobs": 1}), 256), (json!({}), 4096)] {
        let body = with(json!({"prompt": [prompt, "b"], "echo": true, "n": 2, "max_tokens": 1}), fields);
        let whole = router.post(COMPLETIONS, &body).await.ok();
        let events = router.post(COMPLETIONS, &with(body, json!({"stream": true}))).await.events();
        for choice in whole["choices"].as_array().unwrap() {
            let of_choice = || {
                let choices = events.iter().filter_map(|event| event["choices"].get(0));
                choices.filter(|piece| piece["index"] == choice["index"])
            };
            let texts: Vec<&str> = of_choice().map(|piece| piece["text"].as_str().unwrap()).collect();
            assert_eq!(texts.concat(), choice["text"]);
            assert!(texts.iter().all(|text| text.chars().count() <= max_chars), "{max_chars}");
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let lists = of_choice().filter_map(|piece| piece["logprobs"][name].as_array());
                let joined: Vec<Value> = lists.flatten().cloned().collect();
                assert_eq!(joined, *choice["logprobs"][name].as_array().unwrap_or(&Vec::new()), "{name}");
            }
        }
    }
    router.wait_idle().await;
}

#[tokio::test]
async fn outputs_of_best_of_have_the_same_prompt() {
    let router = Router::replying(&["a", "b", "c"]).await;
    let parameters =
        json!({"best_of": 3, "do_sample": true, "decoder_input_details": true, "return_full_text": true});
    let answer = router.post("/generate", &json!({"inputs": "x\"y", "parameters": parameters})).await.ok();
    let details = &answer["details"];
    let prefill = |id: u32, text: &str, logprob: Value| json!({"id": id, "text": text, "logprob": logprob});
    let wanted = json!([
        prefill(120, "x", Value::Null),
        prefill(34, "\"", json!(-0.125)),
        prefill(121, "y", json!(-0.25)),
    ]);
    assert_eq!(details["prefill"], wanted);
    assert_eq!(answer["generated_text"], "x\"yc");
    for (other, text) in details["best_of_sequences"].as_array().unwrap().iter().zip(["x\"yb", "x\"ya"]) {
        assert_eq!((&other["prefill"], &other["generated_text"]), (&wanted, &json!(text)));
    }
    router.wait_idle().await;
}
