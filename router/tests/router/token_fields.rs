//! Fields about individual tokens, and their effect on the shard's parameters and on the answer.

use serde_json::json;

use crate::support::{END, Router, ShardPlan, bytes, prompt_of, user, with};
use trunkline_contract::range;
use trunkline_router::limits::Limits;
use trunkline_settings::Speculate;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn bias_allowed_tokens_and_typical_p_reach_the_shard() {
    let router = Router::saying("hab").await;
    let bias = json!({"104": -100, "7": 0.5});
    for (route, prompt) in [(CHAT, json!({"messages": user("x")})), (COMPLETIONS, json!({"prompt": "x"}))] {
        let fields = json!({"logit_bias": bias, "typical_p": 0.25, "allowed_token_ids": [97, 98, 105, END]});
        let answer = router.post(route, &with(prompt, fields)).await.ok();
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        assert_eq!(text, Some("iab"), "the next token replaces an excluded one");
        let sampling = router.last_sampling();
        let bias: Vec<_> = sampling.logit_bias.iter().map(|bias| (bias.token_id, bias.bias)).collect();
        assert_eq!(bias, [(104, -100.0), (7, 0.5)]);
        assert_eq!(sampling.allowed_token_ids, [97, 98, 105, END]);
        assert_eq!(sampling.typical_p, 0.25);
    }
    // A tiny value reaches it within its range.
    for tiny in [1e-40, 1e-300] {
        router.post(COMPLETIONS, &json!({"prompt": "x", "typical_p": tiny})).await.ok();
        assert_eq!(router.last_sampling().typical_p, *range::TYPICAL_P.start(), "{tiny}");
    }
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
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("one"), &json!("stop")));
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
