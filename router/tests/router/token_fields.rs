//! Fields about individual tokens, and their effect on the shard's parameters and on the answer.

use prost::Message;
use serde_json::{Value, json};

use crate::mock::VOCAB_SIZE;
use crate::support::{END, Router, ShardPlan, bytes, prompt_of, user, with};
use trunkline_base::limits::Limits;
use trunkline_contract::TokenMask;
use trunkline_engine::shard::proto;
use trunkline_settings::Speculate;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Returns a number that reached the shard, by the name of a request's field.
fn number(sampling: &proto::SamplingParams, field: &str) -> f64 {
    let float = match field {
        "temperature" => sampling.temperature,
        "top_p" => sampling.top_p,
        "min_p" => sampling.min_p,
        "typical_p" => sampling.typical_p,
        "top_n_sigma" => sampling.top_n_sigma,
        "xtc_probability" => sampling.xtc_probability,
        "xtc_threshold" => sampling.xtc_threshold,
        "presence_penalty" => sampling.presence_penalty,
        "frequency_penalty" => sampling.frequency_penalty,
        "repetition_penalty" | "repeat_penalty" => sampling.repetition_penalty,
        "top_k" => return sampling.top_k.into(),
        "seed" => return sampling.seed as f64,
        "min_tokens" | "min_new_tokens" => return sampling.min_tokens.into(),
        _ => panic!("no number {field}"),
    };
    float.into()
}

#[tokio::test]
async fn the_numbers_of_every_dialect_reach_the_shard() {
    let router = Router::start_infilling(ShardPlan::default()).await;
    let document = router.get("/openapi.json").await.ok();
    let sent = json!({"temperature": 0.5, "top_p": 0.75, "min_p": 0.25, "typical_p": 0.375, "top_n_sigma": 1.5,
        "xtc_probability": 0.5, "xtc_threshold": 0.25, "presence_penalty": 1.5, "frequency_penalty": -1.5,
        "repetition_penalty": 1.25, "repeat_penalty": 1.125, "top_k": 40, "seed": 7, "min_tokens": 3,
        "min_new_tokens": 3});
    for (route, body, schema, num_fields) in [
        (CHAT, json!({"messages": user("x")}), "ChatCompletionRequest", 14),
        (COMPLETIONS, json!({"prompt": "x"}), "CompletionRequest", 14),
        ("/infill", json!({"input_prefix": "x", "input_suffix": ""}), "InfillRequest", 14),
        ("/v1/responses", json!({"input": "x"}), "ResponsesRequest", 5),
        ("/v1/messages", json!({"messages": user("x"), "max_tokens": 9}), "MessagesRequest", 5),
        ("/generate", json!({"inputs": "x", "parameters": {}}), "GenerateParameters", 10),
    ] {
        let described = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let fields = sent.as_object().unwrap().iter().filter(|(name, _)| described.contains_key(*name));
        assert_eq!(fields.clone().count(), num_fields, "{schema}");
        for (name, value) in fields {
            let mut body = body.clone();
            let holder = if route == "/generate" { &mut body["parameters"] } else { &mut body };
            holder[name] = value.clone();
            router.post(route, &body).await.ok();
            assert_eq!(number(&router.last_sampling(), name), value.as_f64().unwrap(), "{route} {name}");
        }
    }
}

#[tokio::test]
async fn bias_and_allowed_tokens_reach_the_shard() {
    let router = Router::saying("hab").await;
    let bias = json!({"104": -100, "7": 0.5});
    for (route, prompt) in [(CHAT, json!({"messages": user("x")})), (COMPLETIONS, json!({"prompt": "x"}))] {
        let fields = json!({"logit_bias": bias, "allowed_token_ids": [97, 98, 105, END]});
        let answer = router.post(route, &with(prompt, fields)).await.ok();
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        assert_eq!(text, Some("iab"), "the next token replaces an excluded one");
        let sampling = router.last_sampling();
        let bias: Vec<_> = sampling.logit_bias.iter().map(|bias| (bias.token_id, bias.bias)).collect();
        assert_eq!(bias, [(104, -100.0), (7, 0.5)]);
        let mask = TokenMask::of([97, 98, 105, END], VOCAB_SIZE);
        // The second request repeats the mask of the first.
        let is_first = route == CHAT;
        assert_eq!(sampling.allowed_tokens, if is_first { &mask.0[..] } else { &[] });
        assert_eq!(sampling.mask_id, 1);
    }
    // A tiny value reaches it within its range.
    for tiny in [1e-40, 1e-300] {
        router.post(COMPLETIONS, &json!({"prompt": "x", "typical_p": tiny})).await.ok();
        assert_eq!(router.last_sampling().typical_p, f32::MIN_POSITIVE, "{tiny}");
    }
}

#[tokio::test]
async fn all_choices_share_one_mask_of_allowed_tokens() {
    const NUM_CHOICES: usize = 32;
    let mut router = Router::saying("hab").await;
    let plain = json!({"prompt": "x", "n": NUM_CHOICES, "max_tokens": 8});
    // The whole vocabulary but one token, in any order and with some twice.
    let listed: Vec<u32> = (0..VOCAB_SIZE).rev().chain(0..9).filter(|id| *id != u32::from(b'h')).collect();
    let body = with(plain.clone(), json!({"allowed_token_ids": listed[..VOCAB_SIZE as usize]}));
    // The bytes of all sampling parameters that reach the shard.
    let sent = async |router: &Router, body: &Value| {
        router.shard().plans.lock().unwrap().clear();
        let answer = router.post(COMPLETIONS, body).await.ok();
        let plans = router.shard().plans.lock().unwrap().clone();
        let starts: Vec<_> = plans.into_iter().flat_map(|plan| plan.starts).collect();
        assert_eq!(starts.len(), NUM_CHOICES);
        (answer, starts.iter().map(|start| start.sampling.as_ref().unwrap().encoded_len()).sum::<usize>())
    };
    let (_, without) = sent(&router, &plain).await;
    let (answer, with_mask) = sent(&router, &body).await;
    let texts = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap());
    assert!(texts.clone().all(|text| text == "iab"), "{:?}", texts.collect::<Vec<_>>());
    let most = VOCAB_SIZE.div_ceil(8) as usize + 8 * NUM_CHOICES;
    assert!(with_mask - without <= most, "{} bytes for the mask, expected {most}", with_mask - without);

    // Another shard, on which they go on, gets it anew.
    router.kill_shard();
    router.start_shard(ShardPlan::saying("hab").held()).await;
    let before = router.app.served.stats.borrow().output_tokens;
    let mut connection = router.begin(COMPLETIONS, &body).await;
    router.add_steps(2);
    router.wait("a token", |app| app.served.stats.borrow().output_tokens > before).await;
    router.kill_shard();
    router.start_shard(ShardPlan::saying("hab")).await;
    let again = connection.answer().await.ok();
    assert_eq!(again["choices"], answer["choices"]);
    assert!(router.app.served.stats.borrow().replays > 0);
    let plans = router.shard().plans.lock().unwrap().clone();
    let params = plans.iter().flat_map(|plan| &plan.starts).map(|start| start.sampling.as_ref().unwrap());
    let masks: Vec<usize> = params.map(|params| params.allowed_tokens.len()).collect();
    assert_eq!(masks.iter().filter(|&&num_bytes| num_bytes > 0).count(), 1, "{masks:?}");
}

#[tokio::test]
async fn answers_have_token_ids_if_the_request_asks() {
    let router = Router::saying("h\u{e9}y.").await;
    let expected = json!([bytes("h\u{e9}y."), vec![END]].concat());
    let ids_of = |events: &[Value], choice: u64| -> Value {
        let choices = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
        let ids = choices
            .filter(|piece| piece["index"] == choice)
            .filter_map(|piece| piece["token_ids"].as_array());
        ids.flatten().cloned().collect()
    };
    for fields in
        [json!({}), json!({"logprobs": 1}), json!({"stop": ["."], "include_stop_str_in_output": true})]
    {
        let body = with(json!({"prompt": ["x", "yz"], "return_token_ids": true}), fields.clone());
        // The output ends at the stop string.
        let expected = if fields["stop"].is_null() { expected.clone() } else { json!(bytes("h\u{e9}y.")) };
        let answer = router.post(COMPLETIONS, &body).await.ok();
        let events = router.post(COMPLETIONS, &with(body, json!({"stream": true}))).await.events();
        for (index, prompt) in [bytes("x"), bytes("yz")].into_iter().enumerate() {
            let choice = &answer["choices"][index];
            assert_eq!((&choice["prompt_token_ids"], &choice["token_ids"]), (&json!(prompt), &expected));
            assert_eq!(ids_of(&events, index as u64), expected, "{fields}");
            let pieces = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
            let prompts: Vec<_> = pieces
                .filter(|piece| piece["index"] == index)
                .map(|piece| piece.get("prompt_token_ids"))
                .collect();
            assert_eq!(prompts[0], Some(&json!(prompt)));
            assert!(prompts[1..].iter().all(Option::is_none));
        }
    }
    for fields in [json!({}), json!({"logprobs": true})] {
        let body = with(json!({"messages": user("x"), "n": 2, "return_token_ids": true}), fields);
        let answer = router.post(CHAT, &body).await.ok();
        let prompt = answer["prompt_token_ids"].as_array().unwrap();
        assert_eq!(prompt.len() as u64, answer["usage"]["prompt_tokens"].as_u64().unwrap());
        assert_eq!(answer["choices"][1]["token_ids"], expected);
        let events = router.post(CHAT, &with(body, json!({"stream": true}))).await.events();
        assert_eq!(events[0]["prompt_token_ids"], answer["prompt_token_ids"]);
        assert_eq!((ids_of(&events, 0), ids_of(&events, 1)), (expected.clone(), expected.clone()));
    }
    let plain = router.post(CHAT, &json!({"messages": user("x")})).await.ok();
    assert!(plain.get("prompt_token_ids").is_none() && plain["choices"][0].get("token_ids").is_none());
}

#[tokio::test]
async fn bad_words_do_not_occur() {
    let router = Router::saying("hab ab").await;
    let post = async |fields: Value| {
        let answer = router.post(COMPLETIONS, &with(json!({"prompt": "a"}), fields)).await.ok();
        answer["choices"][0].clone()
    };
    assert_eq!(post(json!({"bad_words": ["ab"]})).await["text"], "hac ac");
    assert_eq!(post(json!({"bad_words": ["h", " a"]})).await["text"], "iab bb", "the prompt does not count");
    assert_eq!(post(json!({"bad_words": []})).await["text"], "hab ab");
    // Fields beside them count as they do without them.
    let most = post(json!({"bad_words": ["ab"], "ignore_eos": true, "max_tokens": 8})).await;
    assert_eq!(json!([most["text"], most["finish_reason"]]), json!(["hac ac", "length"]));
    let chosen = json!({"bad_words": ["ab"], "guided_choice": ["hab", "hat"]});
    assert_eq!(post(chosen).await["text"], "hat");
    let chat = json!({"messages": user("x"), "bad_words": ["ab"]});
    let answer = router.post(CHAT, &chat).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "hac ac");
    // Nothing is left.
    let chosen = json!({"prompt": "a", "bad_words": ["ab"], "guided_choice": ["hab"]});
    router.post(COMPLETIONS, &chosen).await.refuses(400, "would complete words of `bad_words`");
}

#[tokio::test]
async fn dry_penalises_repeated_texts_in_prompt_and_output() {
    let router = Router::saying("-abcd").await;
    let post = async |prompt: &str, fields: Value| {
        let body = with(json!({"prompt": prompt, "dry_multiplier": 0.8}), fields);
        router.post(COMPLETIONS, &body).await.ok()["choices"][0]["text"].clone()
    };
    // The mock shard avoids tokens with a penalty of at least 1. After two tokens it is 0.8, after three 1.4.
    assert_eq!(post("abcd", json!({})).await, "-abce");
    assert_eq!(post("abcd", json!({"dry_multiplier": 0})).await, "-abcd");
    assert_eq!(post("abcd", json!({"dry_allowed_length": 3})).await, "-abcd");
    assert_eq!(
        post("abcd", json!({"dry_multiplier": 2})).await,
        "-abdd",
        "d no longer continues a repetition"
    );
    assert_eq!(post("abcd", json!({"dry_base": 1})).await, "-abcd");
    assert_eq!(post("abcd", json!({"dry_penalty_last_n": 7})).await, "-abcd");
    assert_eq!(post("abcd", json!({"dry_penalty_last_n": 8})).await, "-abce");
    assert_eq!(post("abcd", json!({"dry_sequence_breakers": ["bc"]})).await, "-abcd");
}

#[tokio::test]
async fn a_stop_token_ends_the_output_and_is_not_shown() {
    let router = Router::saying("one.two").await;
    let stop = json!({"messages": user("x"), "stop_token_ids": [b'.', b'!']});
    let answer = router.post(CHAT, &stop).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "one");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], b'.');
    assert_eq!(answer["usage"]["completion_tokens"], 4, "the stop token counts");
    // Before `min_tokens` tokens, neither the stop token nor the end token is sampled.
    let sampling = router.last_sampling();
    assert_eq!(sampling.end_token_ids, [END, b'.'.into(), b'!'.into()]);
    // With `ignore_eos`, only the stop token ends the output.
    let body = json!({"prompt": "x", "stop_token_ids": [b'z'], "ignore_eos": true, "max_tokens": 10});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let body = json!({"prompt": "x", "stop_token_ids": [b'.'], "ignore_eos": true});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(json!([choice["text"], choice["finish_reason"]]), json!(["one", "stop"]));
    // If the model's end token is in `stop_token_ids`, it is reported as the stop reason only with `ignore_eos`.
    for (ignore_eos, reason) in [(false, json!(null)), (true, json!(END))] {
        let body = json!({"prompt": "x", "stop_token_ids": [END], "ignore_eos": ignore_eos, "stream": true});
        let events = router.post(COMPLETIONS, &body).await.events();
        let last = &events[events.len() - 2]["choices"][0];
        assert_eq!((&last["finish_reason"], &last["stop_reason"]), (&json!("stop"), &reason));
    }
}

#[tokio::test]
async fn control_tokens_have_text_unless_skipped() {
    let mut reply = bytes("a");
    reply.extend([258, b'b'.into()]);
    let plan = ShardPlan { replies: vec![reply], ..ShardPlan::default() };
    let router = Router::with(plan).await;
    for (skip, text) in [(json!(true), "ab"), (json!(null), "ab"), (json!(false), "a<|pad|>b")] {
        let body = json!({"prompt": "x", "skip_special_tokens": skip});
        assert_eq!(router.post(COMPLETIONS, &body).await.ok()["choices"][0]["text"], text, "{skip}");
    }
}

#[tokio::test]
async fn truncate_prompt_tokens_keeps_the_last_tokens() {
    let router = Router::saying("!").await;
    let body = json!({"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": true});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(router.shard().last_start().token_ids, bytes("ef"));
    assert_eq!(answer["choices"][0]["text"], "ef!", "the kept tokens are echoed");
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    let body = json!({"messages": user("x"), "truncate_prompt_tokens": 5});
    router.post(CHAT, &body).await.ok();
    let prompt = prompt_of("x");
    assert_eq!(router.shard().last_start().token_ids, prompt[prompt.len() - 5..]);
    // -1 keeps as many tokens as fit together with the output.
    let body = json!({"prompt": "a".repeat(9000), "truncate_prompt_tokens": -1, "max_tokens": 92});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(answer["usage"]["prompt_tokens"], 8192 - 92);
}

#[tokio::test]
async fn predictions_and_drafts_change_only_the_number_of_steps() {
    let text = "Each line of this text is new. No two of its words are alike, except some.";
    let limits = Limits { speculate: Speculate::Always(8), ..Limits::default() };
    let router = Router::start(ShardPlan::saying(text), limits).await;
    let drafts = || {
        let plans = std::mem::take(&mut *router.shard().plans.lock().unwrap());
        let chunks: Vec<_> = plans.into_iter().flat_map(|plan| plan.chunks).collect();
        (chunks.len(), chunks.iter().map(|chunk| chunk.draft_token_ids.len()).sum::<usize>())
    };
    let plain = json!({"messages": user("x"), "speculation": false});
    let expected = router.post(CHAT, &plain).await.ok();
    assert!(expected["usage"].get("completion_tokens_details").is_none());
    let (num_plain, num_drafts) = drafts();
    assert_eq!(num_drafts, 0, "the request wants none");

    let half_wrong = text.replace("new. No", "old. Not");
    for content in [json!(text), json!([{"type": "text", "text": half_wrong}])] {
        let body = json!({"messages": user("x"), "prediction": {"type": "content", "content": content}});
        let answer = router.post(CHAT, &body).await.ok();
        assert_eq!(answer["choices"][0]["message"], expected["choices"][0]["message"]);
        let (num_chunks, num_drafts) = drafts();
        let details = &answer["usage"]["completion_tokens_details"];
        let count = |field: &str| details[field].as_u64().unwrap() as usize;
        let (accepted, rejected) = (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"));
        assert_eq!(accepted + rejected, num_drafts);
        assert!(accepted > text.len() / 2, "{details}");
        assert!(num_chunks < num_plain / 3, "{num_chunks} instead of {num_plain}");

        let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = router.post(CHAT, &with(body, streamed)).await.events();
        let [.., usage, _] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(usage["usage"]["completion_tokens_details"], *details);
        drafts();
    }
    let metrics = router.get("/metrics").await.text();
    let value =
        |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
    assert!(value("trunkline_accepted_draft_tokens_total").unwrap() > 100, "{metrics}");
    assert!(value("trunkline_drafted_tokens_total") > value("trunkline_accepted_draft_tokens_total"));
}
