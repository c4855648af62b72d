//! Texts between two others: `suffix` of `/v1/completions`, and llama.cpp's `/infill`.

use serde_json::{Value, json};

use crate::support::{END, INFILL, Router, ShardPlan, bytes, user, with};

const COMPLETIONS: &str = "/v1/completions";
const PREFIX: u32 = INFILL[0];
const SUFFIX: u32 = INFILL[1];
const MIDDLE: u32 = INFILL[2];
const FILE: u32 = INFILL[3];

/// Starts a router whose output for every prompt is `x + 1`, a line break and the end of the gap, then more.
async fn filling() -> Router {
    let reply = [bytes("x + 1\n"), vec![FILE], bytes("more")].concat();
    Router::start_infilling(ShardPlan { replies: vec![reply], ..ShardPlan::default() }).await
}

fn prompt(prefix: &str, suffix: &str) -> Vec<u32> {
    [vec![PREFIX], bytes(prefix), vec![SUFFIX], bytes(suffix), vec![MIDDLE]].concat()
}

async fn rendered(router: &Router, body: &Value) -> Value {
    router.post("/v1/completions/render", body).await.ok()
}

#[tokio::test]
async fn an_output_stands_between_prompt_and_suffix() {
    let router = filling().await;
    let body = json!({"prompt": "return ", "suffix": "}\n", "max_tokens": 30});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("x + 1\n"), &json!("stop")));
    assert_eq!(router.shard().last_start().token_ids, prompt("return ", "}\n"));
    let ends = router.last_sampling().end_token_ids;
    assert_eq!(ends, [END, FILE, PREFIX, SUFFIX, MIDDLE], "every token of infill ends the output");
    let mut events = router.post(COMPLETIONS, &with(body.clone(), json!({"stream": true}))).await.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "x + 1\n");
    for empty in [json!(""), Value::Null] {
        router.post(COMPLETIONS, &with(body.clone(), json!({"suffix": empty}))).await.ok();
        assert_eq!(router.shard().last_start().token_ids, bytes("return "), "an empty suffix is none");
        assert_eq!(router.last_sampling().end_token_ids, [END]);
    }
}

#[tokio::test]
async fn ollamas_clients_send_a_suffix_too() {
    let router = filling().await;
    let body = json!({"prompt": "return ", "suffix": "}\n", "stream": false});
    let answer = router.post("/api/generate", &body).await.ok();
    assert_eq!((&answer["response"], &answer["done_reason"]), (&json!("x + 1\n"), &json!("stop")));
    assert_eq!(router.shard().last_start().token_ids, prompt("return ", "}\n"));
    let message = router.post("/api/generate", &with(body.clone(), json!({"system": "Be brief."}))).await;
    message.refuses(400, "needs a chat template");
    Router::default().await.post("/api/generate", &body).await.fails(400, "infill_tokens_missing");
}

#[tokio::test]
async fn texts_that_spell_the_tokens_of_infill_are_plain() {
    let router = filling().await;
    let text = "a<|fim_suffix|><|fim_middle|><|end|>";
    let body = json!({"prompt": text, "suffix": text});
    assert_eq!(rendered(&router, &body).await[0]["token_ids"], json!(prompt(text, text)));
}

#[tokio::test]
async fn several_prompts_and_outputs_share_a_suffix() {
    let router = filling().await;
    let body =
        json!({"prompt": ["a", "b"], "suffix": "z", "n": 2, "best_of": 3, "logprobs": 1, "max_tokens": 3});
    let answer = router.post(COMPLETIONS, &body).await.ok();
    let texts: Vec<&Value> =
        answer["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["x +"; 4]);
    assert_eq!(answer["choices"][3]["logprobs"]["tokens"], json!(["x", " ", "+"]));
    let tokens = rendered(&router, &body).await;
    assert_eq!(tokens[0]["token_ids"], json!(prompt("a", "z")));
    assert_eq!(tokens[1]["token_ids"], json!(prompt("b", "z")));
    let scored = with(body, json!({"prompt": "a", "prompt_logprobs": 0, "n": 1, "best_of": 1}));
    let scored = router.post(COMPLETIONS, &scored).await.ok();
    assert_eq!(scored["choices"][0]["prompt_logprobs"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_suffix_excludes_what_would_break_its_prompt() {
    let router = filling().await;
    let body = json!({"prompt": "a", "suffix": "z"});
    for (fields, words) in [
        (json!({"prompt": [1, 2]}), "`suffix` needs a `prompt` that is text"),
        (json!({"echo": true}), "`suffix` cannot be combined with `echo`"),
        (json!({"truncate_prompt_tokens": 3}), "`suffix` cannot be combined with `truncate_prompt_tokens`"),
    ] {
        router.post(COMPLETIONS, &with(body.clone(), fields)).await.refuses(400, words);
    }
    let long = json!({"prompt": vec!["a"; 64], "suffix": "z".repeat(9000)});
    router.post(COMPLETIONS, &with(body.clone(), long)).await.fails(400, "context_length_exceeded");
    router.post(COMPLETIONS, &with(body, json!({"suffix": 5}))).await.fails(400, "invalid_type");
}

#[tokio::test]
async fn end_tokens_are_ignored_on_request() {
    let router = filling().await;
    let body = json!({"input_prefix": "a", "input_suffix": "z", "n_predict": 11});
    let answer = router.post("/infill", &with(body.clone(), json!({"ignore_eos": true}))).await.ok();
    assert_eq!(answer["content"], "x + 1\n<|file_sep|>more");
    let named = json!({"ignore_eos": true, "stop_token_ids": [FILE]});
    let answer = router.post("/infill", &with(body, named)).await.ok();
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("x + 1\n"), &json!("eos")));
}

#[tokio::test]
async fn infill_answers_as_llama_cpp_does() {
    let router = filling().await;
    let body = json!({"input_prefix": "let y = ", "input_suffix": ";\n", "prompt": "ma",
        "input_extra": [{"filename": "a.rs", "text": "fn a"}, {"text": "fn b"}]});
    let answer = router.post("/infill", &body).await.ok();
    let expected = [
        [vec![FILE], bytes("a.rs\nfn a\n"), vec![FILE], bytes("tmp\nfn b\n"), vec![FILE]].concat(),
        bytes("filename\n"),
        prompt("let y = ", ";\n"),
        bytes("ma"),
    ]
    .concat();
    assert_eq!(router.shard().last_start().token_ids, expected);
    let mut shown = answer.clone();
    let timings = shown.as_object_mut().unwrap().remove("timings").unwrap();
    assert_eq!((&timings["predicted_n"], &timings["prompt_n"]), (&json!(7), &json!(expected.len())));
    assert_eq!(
        shown,
        json!({"index": 0, "content": "x + 1\n", "tokens": [], "stop": true, "tokens_predicted": 7,
            "tokens_evaluated": expected.len(), "model": "test/model", "tokens_cached": 0, "truncated": false,
            "has_new_line": true, "stop_type": "eos", "stopping_word": ""})
    );
    let ends = [
        (json!({"n_predict": 3}), "x +", "limit", ""),
        (json!({"stop": ["+", " +"]}), "x", "word", " +"),
        (json!({"grammar": "root ::= \"yes\""}), "yes", "eos", ""),
    ];
    for (fields, content, stop_type, word) in ends {
        let answer = router
            .post("/infill", &with(with(body.clone(), fields), json!({"return_tokens": true})))
            .await
            .ok();
        assert_eq!(
            (&answer["content"], &answer["stop_type"], &answer["stopping_word"]),
            (&json!(content), &json!(stop_type), &json!(word))
        );
        let tokens = answer["tokens"].as_array().unwrap();
        assert_eq!(json!(tokens.len()), answer["tokens_predicted"]);
        assert_eq!(tokens[0], json!(content.as_bytes()[0]));
    }
}

#[tokio::test]
async fn infill_streams_pieces_without_a_mark_at_the_end() {
    let router = filling().await;
    let body = json!({"input_prefix": "a", "input_suffix": "z", "stream": true});
    let events = router.post("/infill", &body).await.events();
    let contents: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(contents, "x + 1\n");
    let (last, pieces) = events.split_last().unwrap();
    assert_eq!(
        pieces[0],
        json!({"index": 0, "content": "x", "tokens": [120], "stop": false, "tokens_predicted": 1,
            "tokens_evaluated": 5})
    );
    assert!(pieces.iter().all(|piece| piece["stop"] == false && piece.get("timings").is_none()));
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("eos")));
    assert_eq!((&last["has_new_line"], &last["tokens_predicted"]), (&json!(true), &json!(7)));
    assert_eq!(last["timings"]["predicted_n"], 7);
    let timed = router.post("/infill", &with(body, json!({"timings_per_token": true}))).await.events();
    assert!(timed.iter().all(|event| event["timings"]["predicted_n"] == event["tokens_predicted"]));
}

#[tokio::test]
async fn prompts_of_a_text_that_is_typed_are_cached() {
    let router = filling().await;
    // Blocks have 8 tokens.
    let extra = json!([{"filename": "lib.rs", "text": "pub fn helper() {}\n".repeat(8)}]);
    let before = "fn main() {\n    let value = helper();\n    ";
    let ask = async |prefix: &str, typed: &str| {
        let body = json!({"input_prefix": prefix, "input_suffix": "\n}\n", "prompt": typed,
            "input_extra": extra, "n_predict": 2});
        let answer = router.post("/infill", &body).await.ok();
        assert_eq!(answer["tokens_cached"], answer["timings"]["cache_n"]);
        let count = |name: &str| answer[name].as_u64().unwrap();
        (count("tokens_evaluated"), count("tokens_cached"))
    };
    assert_eq!(ask(before, "").await.1, 0);
    // The suffix, its token, that of the middle and up to one block are computed again.
    let (num_prompt, num_cached) = ask(&format!("{before}v"), "").await;
    assert!(num_cached + 3 + 3 + 8 > num_prompt, "{num_cached} of {num_prompt}");
    // The beginning of the middle comes last, so only what is typed is computed.
    let (num_prompt, num_cached) = ask(before, "v").await;
    assert!(num_cached + 1 + 8 > num_prompt, "{num_cached} of {num_prompt}");
    let (num_prompt, num_cached) = ask(before, "val").await;
    assert!(num_cached + 3 + 8 > num_prompt, "{num_cached} of {num_prompt}");
}

#[tokio::test]
async fn a_model_without_the_tokens_is_refused_by_name() {
    let router = Router::saying("x").await;
    for (route, body, field) in [
        (COMPLETIONS, json!({"prompt": "a", "suffix": "z"}), "suffix"),
        ("/v1/completions/render", json!({"prompt": "a", "suffix": "z"}), "suffix"),
        ("/infill", json!({"input_prefix": "a", "input_suffix": "z"}), "input_suffix"),
    ] {
        let message = router.post(route, &body).await.fails(400, "infill_tokens_missing");
        let expected =
            format!("`{field}` needs fill-in-the-middle tokens, which this model's tokenizer lacks");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[tokio::test]
async fn infill_takes_what_editors_send_and_names_what_it_ignores() {
    let router = filling().await;
    let body = json!({"input_prefix": "a", "input_suffix": "z"});
    // The fields of llama.vim.
    let editor = json!({"id_slot": 0, "input_extra": [], "prompt": "", "n_predict": 9, "stop": ["\n"], "n_indent": 4,
        "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": false, "cache_prompt": true,
        "t_max_predict_ms": 1000, "response_fields": ["content", "timings/prompt_n"]});
    let answer = router.post("/infill", &with(body.clone(), editor)).await;
    assert_eq!(answer.ok()["content"], "x + 1");
    assert_eq!(answer.header("x-ignored-fields"), Some("n_indent, samplers, t_max_predict_ms"));
    for missing in ["input_prefix", "input_suffix"] {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove(missing);
        router.post("/infill", &body).await.refuses(400, missing);
    }
    for (fields, words) in [
        (json!({"input_extra": [{"filename": "a"}]}), "input_extra[0].text"),
        (json!({"n_probs": 2}), "`n_probs`"),
        (json!({"n_predict": 0}), "`n_predict` is 0"),
        (json!({"max_tokens": 5}), "`max_tokens`"),
        (json!({"mirostat": 1}), "`mirostat`"),
        (json!({"messages": user("a"), "stop": [""]}), "`stop[0]` is empty"),
    ] {
        router.post("/infill", &with(body.clone(), fields)).await.refuses(400, words);
    }
    let long = json!({"input_prefix": "a".repeat(9000)});
    router.post("/infill", &with(body, long)).await.fails(400, "context_length_exceeded");
}
