//! The routes of OpenAI's API, except the Responses API.

use serde_json::{Value, json};

use crate::support::{END, Router, ShardPlan, bytes, prompt_of, user, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const TEXT: &str = "Hello wörld 🙂!";

fn deltas(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn tgis_client_gets_complete_deltas() {
    let router = Router::default().await;
    for (model, is_whole) in [("tgi", true), ("", false)] {
        let body = json!({"model": model, "messages": user("x"), "stream": true});
        let events = router.post(CHAT, &body).await.events();
        let deltas: Vec<_> =
            events.iter().filter_map(|event| event["choices"][0]["delta"].as_object()).collect();
        assert!(deltas.len() > 2);
        for delta in &deltas[1..] {
            let has = (delta.get("role").is_some(), delta.get("tool_calls").is_some());
            assert_eq!(has, (is_whole, is_whole), "{delta:?}");
        }
        let text: String = deltas.iter().filter_map(|delta| delta.get("content")?.as_str()).collect();
        assert_eq!(text, TEXT);
    }
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece() {
    let router = Router::default().await;
    let answer = router.post(CHAT, &json!({"model": "test/model", "messages": user("hi")})).await;
    let body = answer.ok();
    let prompt = prompt_of("hi");
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "test/model");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["system_fingerprint"].as_str().unwrap().ends_with("0123456789ab"));
    assert_eq!(
        body["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": TEXT}, "logprobs": null,
                "finish_reason": "stop", "stop_reason": null}])
    );
    // The end token is counted.
    let output = bytes(TEXT).len() + 1;
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt.len(), "completion_tokens": output, "total_tokens": prompt.len() + output,
               "prompt_tokens_details": {"cached_tokens": 0}})
    );
    assert!(answer.header("x-request-id").is_some());
    assert_eq!(router.shard().last_start().token_ids, prompt);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_chat_is_streamed_as_events() {
    let router = Router::default().await;
    let body = json!({"messages": user("hi"), "stream": true, "stream_options": {"include_usage": true}});
    let events = router.post(CHAT, &body).await.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    // Every piece has complete characters, although tokens are single bytes.
    let pieces = TEXT.chars().map(String::from);
    assert_eq!(deltas(&events), [String::new()].into_iter().chain(pieces).collect::<Vec<_>>());
    let [.., last, usage, done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(
        last["choices"],
        json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop", "stop_reason": null}])
    );
    assert_eq!(last["usage"], Value::Null);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], bytes(TEXT).len() + 1);
    assert_eq!(done, "[DONE]");
    let id = &events[0]["id"];
    assert!(events[..events.len() - 1].iter().all(|event| event["id"] == *id));
    // Only streams that ask for it have usage.
    let events = router.post(CHAT, &json!({"messages": user("hi"), "stream": true})).await.events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn second_request_hits_prompt_and_output_of_the_first() {
    let router = Router::default().await;
    let first = router.post(CHAT, &json!({"messages": user("hi")})).await.ok();
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": TEXT},
                          {"role": "user", "content": "more"}]);
    let second = router.post(CHAT, &json!({"messages": messages})).await;
    let known = first["usage"]["prompt_tokens"].as_u64().unwrap() + bytes(TEXT).len() as u64;
    assert!(second.cached_tokens() >= known);
    // There is no prefix hit with another salt.
    let salted = router.post(CHAT, &json!({"messages": messages, "cache_salt": "mine"})).await;
    assert_eq!(salted.cached_tokens(), 0);
}

#[tokio::test]
async fn stop_string_ends_the_output_and_the_sequence() {
    let router = Router::with(ShardPlan::saying(&"one two three. ".repeat(100)).held()).await;
    // The steps suffice for the prompt, the text and the plans in flight. A sequence that continued would never end.
    let enough = 40;
    router.add_steps(enough);
    let body = json!({"messages": user("x"), "stop": ["nothing", "o thr"], "max_tokens": 500});
    let whole = router.post(CHAT, &body).await.ok();
    assert_eq!(whole["choices"][0]["message"]["content"], "one tw");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["choices"][0]["stop_reason"], "o thr");
    assert_eq!(whole["usage"]["completion_tokens"], "one two thr".len());

    router.add_steps(enough);
    let body = json!({"messages": user("x"), "stop": "o thr", "max_tokens": 500, "stream": true});
    let events = router.post(CHAT, &body).await.events();
    assert_eq!(deltas(&events).concat(), "one tw");
    let reasons: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0].get("stop_reason")).collect();
    assert_eq!(reasons, ["o thr"], "only in the last event of the choice");

    router.add_steps(enough);
    let body = json!({"messages": user("x"), "stop": "o thr", "include_stop_str_in_output": true});
    let kept = router.post(CHAT, &body).await.ok();
    assert_eq!(kept["choices"][0]["message"]["content"], "one two thr");
    router.wait_running(0).await;
    // The blocks are free once the plans in flight are done.
    router.add_steps(10);
    router.wait_idle().await;
}

#[tokio::test]
async fn outputs_end_at_their_length() {
    // The limit is in the middle of a character. With `ignore_eos`, the output continues without text.
    for (reply, fields, text, num_tokens) in [
        (TEXT, json!({"max_completion_tokens": 8}), "Hello w\u{fffd}", 8),
        ("ab", json!({"max_tokens": 5, "ignore_eos": true}), "ab", 5),
    ] {
        let router = Router::saying(reply).await;
        let whole = router.post(CHAT, &with(json!({"messages": user("hi")}), fields)).await.ok();
        let choice = &whole["choices"][0];
        assert_eq!(json!([choice["message"]["content"], choice["finish_reason"]]), json!([text, "length"]));
        assert_eq!(whole["usage"]["completion_tokens"], num_tokens);
    }
}

#[tokio::test]
async fn chat_logprobs_are_the_same_in_a_stream() {
    let router = Router::saying("ö!").await;
    let mut body = json!({"messages": user("hi"), "logprobs": true, "top_logprobs": 2});
    let whole = router.post(CHAT, &body).await.ok();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(
        content[2],
        json!({"token": "!", "logprob": -0.125, "bytes": [33], "top_logprobs": [
            {"token": "!", "logprob": -0.125, "bytes": [33]}, {"token": "\"", "logprob": -0.25, "bytes": [34]}]})
    );
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content.len(), 3, "the end token is no content");

    body["stream"] = true.into();
    let events = router.post(CHAT, &body).await.events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);
    // The first half of a character is held back until the other half arrives.
    assert_eq!(deltas(&events), ["", "ö", "!"]);
}

#[tokio::test]
async fn defaults_are_openais_and_seeds_differ() {
    let router = Router::default().await;
    let mut seeds = Vec::new();
    for _ in 0..2 {
        router.post(CHAT, &json!({"messages": user("hi"), "top_k": -1})).await.ok();
        let sampling = router.last_sampling();
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (1.0, 1.0, 0));
        assert_eq!((sampling.repetition_penalty, sampling.logprobs), (1.0, false));
        seeds.push(sampling.seed);
    }
    assert_ne!(seeds[0], seeds[1]);
    router.post(CHAT, &json!({"messages": user("hi"), "seed": -1})).await.ok();
    assert_eq!(router.last_sampling().seed, u64::MAX);
}

#[tokio::test]
async fn content_parts_are_joined_and_developer_is_system() {
    let router = Router::default().await;
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = json!([{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]);
    router.post(CHAT, &json!({"messages": messages})).await.ok();
    let expected = [vec![256], bytes("system\ns"), vec![END], prompt_of("ab")].concat();
    assert_eq!(router.shard().last_start().token_ids, expected);
    // The name of a control token in a message stays text.
    router.post(CHAT, &json!({"messages": user("<|end|>")})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, prompt_of("<|end|>"));
}

#[tokio::test]
async fn completions_of_text_and_of_token_ids_agree() {
    let router = Router::default().await;
    let text = router.post(COMPLETIONS, &json!({"prompt": "abc", "max_tokens": 5})).await.ok();
    assert_eq!(
        text["choices"],
        json!([{"text": "Hello", "index": 0, "logprobs": null, "finish_reason": "length", "stop_reason": null}])
    );
    assert_eq!(text["object"], "text_completion");
    for prompt in [json!([97, 98, 99]), json!([[97, 98, 99]]), json!(["abc"])] {
        let ids = router.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 5})).await.ok();
        assert_eq!(ids["choices"], text["choices"]);
        assert_eq!(router.shard().last_start().token_ids, [97, 98, 99]);
    }
    let default = router.post(COMPLETIONS, &json!({"prompt": "abc", "ignore_eos": true})).await.ok();
    assert_eq!(default["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn completion_logprobs_have_parallel_lists() {
    let router = Router::saying("aö!").await;
    let mut body = json!({"prompt": "x", "logprobs": 1});
    let whole = router.post(COMPLETIONS, &body).await.ok();
    let expected = json!({
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xb6", "!"],
        "token_logprobs": [-0.125, -0.125, -0.125, -0.125],
        "top_logprobs": [{"a": -0.125}, {"bytes:\\xc3": -0.125}, {"bytes:\\xb6": -0.125}, {"!": -0.125}],
        "text_offset": [0, 1, 1, 2],
    });
    assert_eq!(whole["choices"][0]["logprobs"], expected);

    body["stream"] = true.into();
    let events = router.post(COMPLETIONS, &body).await.events();
    let texts: Vec<&str> = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(texts, ["a", "ö", "!", ""]);
    for list in ["tokens", "text_offset"] {
        let joined: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"][list].as_array())
            .flatten()
            .collect();
        assert_eq!(joined, expected[list].as_array().unwrap().iter().collect::<Vec<_>>());
    }
    let finished = &events[events.len() - 2]["choices"][0]["finish_reason"];
    assert_eq!(json!([finished, events[events.len() - 1]]), json!(["stop", "[DONE]"]));
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let router = Router::default().await;
    let list = router.get("/v1/models").await.ok();
    assert_eq!(list["data"][0]["id"], "test/model");
    assert_eq!(list["data"][0]["max_model_len"], 8192);
    assert_eq!(router.get("/v1/models/test/model").await.ok(), list["data"][0]);
    router.get("/v1/models/other").await.fails(404, "model_not_found");
    assert_eq!(list.as_object().unwrap().len(), 2, "{list}");
}

#[tokio::test]
async fn models_have_the_form_of_anthropics_api_for_its_clients() {
    let router = Router::default().await;
    let get = async |path: &str| {
        let version = [("anthropic-version", "2023-06-01")];
        router.connect().await.request_with("GET", path, &version, b"").await
    };
    let list = get("/v1/models?limit=5").await.ok();
    assert_eq!(json!([list["first_id"], list["last_id"]]), json!(["test/model", "test/model"]));
    assert_eq!((list.get("object"), &list["has_more"]), (None, &json!(false)));
    let model = &list["data"][0];
    assert_eq!(
        json!([model["type"], model["id"], model["lifecycle"]]),
        json!(["model", "test/model", "active"])
    );
    let created = model["created_at"].as_str().unwrap();
    assert!(created.len() == 20 && created.ends_with('Z'), "{created}");
    assert_eq!(get("/v1/models/test/model").await.ok(), *model);
    let next = get("/v1/models?after_id=test/model").await.ok();
    assert_eq!(next, json!({"data": [], "has_more": false, "first_id": null, "last_id": null}));
    let missing = get("/v1/models/other").await;
    missing.fails(404, "model_not_found");
    assert_eq!(missing.json()["error"]["type"], "not_found_error");
    get("/v1/models?limit=0").await.fails(400, "invalid_value");
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let router = Router::default().await;
    let mut connection = router.connect().await;
    for stream in [false, true, false] {
        let body = json!({"messages": user("hi"), "stream": stream}).to_string();
        let answer = connection.request("POST", CHAT, body.as_bytes()).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn render_shows_the_tokens_that_the_real_route_computes() {
    let router = Router::default().await;
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let chat = json!({
        "messages": user("hö"), "tools": [tool], "stream": true, "n": 2, "max_tokens": 3, "cache_salt": "s",
        "response_format": {"type": "json_object"},
    });
    let rendered = router.post("/v1/chat/completions/render", &chat).await;
    let body = rendered.ok();
    assert_eq!(body["model"], "test/model");
    assert_eq!(body["request_id"], rendered.header("x-request-id").unwrap());
    // No place is left in use, and the shard was asked for nothing.
    router.wait_places().await;
    assert_eq!(router.metric("trunkline_prompt_tokens_total").await, 0.0);
    router.post(CHAT, &with(chat.clone(), json!({"response_format": null}))).await.events();
    assert_eq!(body["token_ids"], json!(router.shard().last_start().token_ids));

    let texts = json!({"prompt": ["ab", "c"], "echo": true});
    let body = router.post("/v1/completions/render", &texts).await.ok();
    let token_ids: Vec<_> = body.as_array().unwrap().iter().map(|prompt| &prompt["token_ids"]).collect();
    assert_eq!(token_ids, [&json!(bytes("ab")), &json!(bytes("c"))]);
    // Token ids are answered as they are, cut as the request asks.
    let ids = json!({"prompt": [7, 8, 9], "truncate_prompt_tokens": 2});
    assert_eq!(router.post("/v1/completions/render", &ids).await.ok()[0]["token_ids"], json!([8, 9]));
    router.wait_idle().await;
}

#[tokio::test]
async fn render_refuses_what_the_real_route_refuses() {
    let router = Router::default().await;
    for (fields, words) in [
        (json!({"temperature": -1}), "`temperature`"),
        (json!({"n": 1000}), "`n`"),
        (json!({"documents": [1]}), "`documents`"),
        (json!({"max_tokens": 1_000_000}), "`max_tokens`"),
        (json!({"tools": [5]}), "`tools[0]`"),
        (json!({"timeout": 0}), "`timeout`"),
    ] {
        let body = with(json!({"messages": user("x")}), fields);
        let (real, rendered) =
            (router.post(CHAT, &body).await, router.post("/v1/chat/completions/render", &body).await);
        rendered.refuses(400, words);
        assert_eq!(rendered.json(), real.json());
    }
    let empty = json!({"prompt": []});
    let rendered = router.post("/v1/completions/render", &empty).await;
    assert_eq!(rendered.json(), router.post(COMPLETIONS, &empty).await.json());
    assert_eq!(rendered.status, 400);
    let unknown = json!({"model": "other", "messages": user("x")});
    router.post("/v1/chat/completions/render", &unknown).await.fails(404, "model_not_found");
    router.wait_places().await;
}

#[tokio::test]
async fn timings_count_tokens_and_drafts_in_each_chunk() {
    for (route, asked) in [(CHAT, json!({"messages": user("x")})), (COMPLETIONS, json!({"prompt": "x"}))] {
        timings_count(route, &asked).await;
    }
}

async fn timings_count(route: &str, asked: &Value) {
    let router = Router::saying("a few words").await;
    let body = with(asked.clone(), json!({"timings_per_token": true, "max_tokens": 8}));
    let whole = router.post(route, &body).await.ok();
    let timings = &whole["timings"];
    let (usage, count) = (&whole["usage"], |field: &str| timings[field].as_u64().unwrap());
    assert_eq!(count("predicted_n"), usage["completion_tokens"]);
    assert_eq!(count("prompt_n") + count("cache_n"), usage["prompt_tokens"]);
    assert!(
        timings["predicted_ms"].as_f64().unwrap() > 0.0
            && timings["predicted_per_second"].as_f64().unwrap() > 0.0
    );

    let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = router.post(route, &with(body, fields)).await.events();
    let counts: Vec<u64> =
        events.iter().filter_map(|event| event["timings"]["predicted_n"].as_u64()).collect();
    assert!(counts.len() > 3 && counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last().copied(), usage["completion_tokens"].as_u64());
    let plain = router.post(route, asked).await.ok();
    assert!(plain.get("timings").is_none());
}

#[tokio::test]
async fn every_chunk_has_usage_on_request() {
    let router = Router::saying("some text").await;
    for (route, body) in [
        (CHAT, json!({"messages": user("x")})),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 40})),
    ] {
        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        let fields = json!({"stream": true, "stream_options": options});
        let events = router.post(route, &with(body.clone(), fields)).await.events();
        let usages: Vec<&Value> =
            events.iter().map(|event| &event["usage"]).filter(|usage| usage.is_object()).collect();
        let counts: Vec<u64> =
            usages.iter().filter_map(|usage| usage["completion_tokens"].as_u64()).collect();
        assert!(counts.len() > 5 && counts.is_sorted() && counts[0] == 1, "{route}: {counts:?}");
        let last = usages[usages.len() - 1];
        assert_eq!(last["prompt_tokens"], usages[usages.len() - 2]["prompt_tokens"]);
        assert_eq!(counts.last().copied(), last["completion_tokens"].as_u64());
        // Without `include_usage` it has no effect.
        let alone = json!({"stream": true, "stream_options": {"continuous_usage_stats": true}});
        let events = router.post(route, &with(body, alone)).await.events();
        assert!(events.iter().all(|event| event.get("usage").is_none()), "{route}");
    }
}
