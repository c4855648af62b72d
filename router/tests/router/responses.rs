//! The routes of OpenAI's Responses API.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_generation::model::ReplyStyle;
use trunkline_reply::{ReasoningMarks, ToolFormat};
use trunkline_text::ChatMessage;

use crate::support::{END, PAD, Router, START, ShardPlan, bytes, prompt_of, with};

const RESPONSES: &str = "/v1/responses";
const INPUT_TOKENS: &str = "/v1/responses/input_tokens";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str =
    "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";
const TEXT: &str = "Hello wörld 🙂!";
const CALL: &str = r#"So.
<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>"#;

#[tokio::test]
async fn a_response_is_returned_in_one_piece() {
    let router = Router::default().await;
    let answer = router.post(RESPONSES, &json!({"input": "hi", "metadata": {"a": "b"}})).await.ok();
    assert_eq!(json!([answer["object"], answer["status"]]), json!(["response", "completed"]));
    let item = &answer["output"][0];
    assert_eq!(json!([item["type"], item["role"]]), json!(["message", "assistant"]));
    assert_eq!(item["content"][0]["text"], TEXT);
    assert_eq!(answer["metadata"], json!({"a": "b"}));
    let (prompt, output) = (prompt_of("hi").len(), bytes(TEXT).len() + 1);
    assert_eq!(answer["usage"]["input_tokens"], prompt);
    assert_eq!(answer["usage"]["total_tokens"], prompt + output);
    assert_eq!(router.shard().last_start().token_ids, prompt_of("hi"));
    let cut = router.post(RESPONSES, &json!({"input": "hi", "max_output_tokens": 3})).await.ok();
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
    router.wait_idle().await;
}

#[tokio::test]
async fn metadata_and_tools_count_towards_the_stores_limit() {
    let limits = Limits { max_response_store_bytes: 70 << 10, ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let large = "x".repeat(20 << 10);
    let tool = json!({"type": "function", "name": "f", "description": large});
    let mut ids = Vec::new();
    for body in [
        json!({"input": "hi", "metadata": {"a": large}}),
        json!({"input": "hi", "tools": [tool], "tool_choice": "none"}),
        json!({"input": "hi", "metadata": {"c": {"d": [large]}}}),
        json!({"input": "hi", "metadata": {"b": large}}),
    ] {
        ids.push(router.post(RESPONSES, &body).await.ok()["id"].as_str().unwrap().to_owned());
    }
    for (id, status) in ids.iter().zip([404, 200, 200, 200]) {
        assert_eq!(router.get(&format!("{RESPONSES}/{id}")).await.status, status, "{id}");
    }
}

#[tokio::test]
async fn includes_of_unknown_items_are_ignored() {
    let router = Router::default().await;
    let body = json!({"input": "hi", "include": ["reasoning.encrypted_content"]});
    router.post(RESPONSES, &body).await.ok();
}

#[tokio::test]
async fn events_come_in_order() {
    let router = Router::default().await;
    let events = router.post(RESPONSES, &json!({"input": "hi", "stream": true})).await.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let num_deltas = names.iter().filter(|name| **name == "response.output_text.delta").count();
    let begin = ["created", "in_progress", "output_item.added", "content_part.added"];
    let end = ["output_text.done", "content_part.done", "output_item.done", "completed"];
    assert_eq!(names[..4], begin.map(|name| format!("response.{name}")));
    assert_eq!(names[4 + num_deltas..], end.map(|name| format!("response.{name}")));
    for (idx, (name, data)) in events.iter().enumerate() {
        assert_eq!(json!([data["type"], data["sequence_number"]]), json!([name, idx]));
    }
    let text: String = events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(text, TEXT);
    let item = &events[2].1["item"]["id"];
    let mut ids = events[4..].iter().filter_map(|(_, data)| data.get("item_id"));
    assert!(ids.all(|id| id == item));
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], TEXT);
    assert_eq!(last["usage"]["output_tokens"], bytes(TEXT).len() + 1);
}

#[tokio::test]
async fn a_stored_response_is_continued_and_deleted() {
    let router = Router::saying("ok").await;
    let body = json!({"input": "one", "instructions": "Be brief.", "stream": true});
    let first = router.post(RESPONSES, &body).await.named_events();
    let id = first.last().unwrap().1["response"]["id"].as_str().unwrap().to_owned();
    let body = json!({"input": "two", "previous_response_id": id});
    let second = router.post(RESPONSES, &body).await.ok();
    let prompt = router.last_prompt();
    let places: Vec<usize> =
        ["user\none", "assistant\nok", "user\ntwo"].iter().map(|part| prompt.find(part).unwrap()).collect();
    assert!(places.is_sorted() && !prompt.contains("Be brief."), "{prompt}");
    assert!(second["usage"]["input_tokens_details"]["cached_tokens"].is_u64());
    let path = format!("{RESPONSES}/{id}");
    let streamed = router.get(&format!("{path}?stream=true")).await;
    assert_eq!((streamed.status, &streamed.json()["error"]["param"]), (400, &json!("stream")));
    let kept = router.get(&path).await.ok();
    assert_eq!(json!([kept["id"], kept["instructions"]]), json!([id, "Be brief."]));
    let deleted = router.connect().await.request("DELETE", &path, b"").await;
    assert_eq!(deleted.ok()["deleted"], true);
    for answer in [router.get(&path).await, router.post(RESPONSES, &body).await] {
        answer.fails(404, "response_not_found");
    }
    // A response that continued it still has its messages.
    let body = json!({"input": "three", "previous_response_id": second["id"]});
    router.post(RESPONSES, &body).await.ok();
    assert!(router.last_prompt().contains("user\none"));
    // With `store: false` a response is not stored.
    let unkept = router.post(RESPONSES, &json!({"input": "x", "store": false})).await.ok();
    assert_eq!(router.get(&format!("{RESPONSES}/{}", unkept["id"].as_str().unwrap())).await.status, 404);
}

#[tokio::test]
async fn input_items_are_listed_in_pages() {
    let router = Router::saying("ok").await;
    let input = json!([
        {"role": "user", "content": "one"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
    ]);
    let first = router.post(RESPONSES, &json!({"input": input})).await.ok();
    let second = json!({"input": "two", "previous_response_id": first["id"]});
    let second = router.post(RESPONSES, &second).await.ok();
    let path = |answer: &Value, query: &str| {
        format!("{RESPONSES}/{}/input_items{query}", answer["id"].as_str().unwrap())
    };
    let items = router.get(&path(&first, "?order=asc")).await.ok();
    let kinds: Vec<&Value> = items["data"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call_output"]);
    let [message, call, result] = &items["data"].as_array().unwrap()[..] else { panic!("{items}") };
    assert_eq!(message["content"], json!([{"type": "input_text", "text": "one"}]));
    assert_eq!(json!([call["name"], call["arguments"]]), json!(["f", "{\"a\":1}"]));
    assert_eq!(json!([result["call_id"], result["output"]]), json!(["c1", "7"]));
    assert_eq!((&items["first_id"], &items["last_id"]), (&message["id"], &result["id"]));
    // The newest comes first, and a page goes on after an id.
    let page = router.get(&path(&first, "?limit=1")).await.ok();
    assert_eq!((&page["data"][0], &page["has_more"]), (result, &json!(true)));
    let next = path(&first, &format!("?after={}", page["last_id"].as_str().unwrap()));
    assert_eq!(router.get(&next).await.ok()["data"], json!([call, message]));
    // Neither the reply nor earlier turns are input.
    let own = router.get(&path(&second, "")).await.ok();
    assert_eq!(own["data"].as_array().unwrap().len(), 1);
    assert_eq!(own["data"][0]["content"][0]["text"], "two");
    for (query, words) in [("?order=up", "`order`"), ("?limit=101", "`limit`"), ("?after=x", "`after`")] {
        let message = router.get(&path(&first, query)).await.fails(400, "invalid_value");
        assert!(message.contains(words), "{message}");
    }
    router.get("/v1/responses/resp_x/input_items").await.fails(404, "response_not_found");
}

#[tokio::test]
async fn input_tokens_are_counted_without_generating() {
    let router = Router::saying("ok").await;
    let first = router.post(RESPONSES, &json!({"input": "one"})).await.ok();
    let body = json!({
        "input": "two", "previous_response_id": first["id"], "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    });
    let counted = router.post("/v1/responses/input_tokens", &body).await.ok();
    assert_eq!(counted["object"], "response.input_tokens");
    let answer = router.post(RESPONSES, &body).await.ok();
    assert_eq!(counted["input_tokens"], answer["usage"]["input_tokens"]);
    assert_eq!(answer["usage"]["input_tokens_details"]["cache_write_tokens"], 0);
    let unknown = json!({"input": "x", "previous_response_id": "resp_x"});
    router.post("/v1/responses/input_tokens", &unknown).await.fails(404, "response_not_found");
    router.post("/v1/responses/input_tokens", &json!({})).await.fails(400, "missing_field");
}

#[tokio::test]
async fn responses_in_the_background_are_refused_and_no_other_is_cancelled() {
    let router = Router::default().await;
    let body = json!({"input": "x", "background": true});
    let message = router.post(RESPONSES, &body).await.fails(400, "unsupported_field");
    assert!(message.contains("`background`"), "{message}");
    let id = router.post(RESPONSES, &json!({"input": "x"})).await.ok()["id"].clone();
    let cancel = |id: &str| format!("{RESPONSES}/{id}/cancel");
    let answer = router.post(&cancel(id.as_str().unwrap()), &json!({})).await;
    let message = answer.fails(400, "response_not_in_background");
    assert!(message.contains("was not created with `background`"), "{message}");
    router.post(&cancel("resp_x"), &json!({})).await.fails(404, "response_not_found");
}

#[tokio::test]
async fn calls_are_returned_as_items() {
    let router = Router::saying(CALL).await;
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let answer = router.post(RESPONSES, &json!({"input": "x", "tools": tools})).await.ok();
    let call = &answer["output"][1];
    assert_eq!(
        json!([call["type"], call["name"], call["arguments"]]),
        json!(["function_call", "f", "{\"a\": \"b\"}"])
    );
    let body = json!({"input": "x", "tools": tools, "stream": true});
    let events = router.post(RESPONSES, &body).await.named_events();
    let pieces = events.iter().filter(|(name, _)| name == "response.function_call_arguments.delta");
    let arguments: String = pieces.filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(arguments, "{\"a\": \"b\"}");
    // The result is sent back with the call, once with the response's id, once with the call itself.
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "7"});
    let by_id = json!({"input": [output], "previous_response_id": answer["id"]});
    router.post(RESPONSES, &by_id).await.ok();
    let prompt = router.last_prompt();
    let by_hand = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                                   answer["output"][0], call, output]});
    router.post(RESPONSES, &by_hand).await.ok();
    assert_eq!(router.last_prompt(), prompt);
    assert!(prompt.contains("tool\n7"), "{prompt}");
}

#[tokio::test]
async fn items_of_stored_responses_can_be_referenced() {
    let router = Router::saying(CALL).await;
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let answer = router.post(RESPONSES, &json!({"input": "x", "tools": tools})).await.ok();
    let items = answer["output"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    let user = json!({"role": "user", "content": "x"});
    let result = json!({"type": "function_call_output", "call_id": items[1]["call_id"], "output": "7"});
    let prompt = async |input: Value| {
        router.post(RESPONSES, &json!({"input": input})).await.ok();
        router.last_prompt()
    };
    let whole = prompt(json!([user, items[0], items[1], result])).await;
    let references = [json!({"type": "item_reference", "id": items[0]["id"]}), json!({"id": items[1]["id"]})];
    assert_eq!(prompt(json!([user, references[0], references[1], result])).await, whole);
    // Items are deleted with their response.
    let path = format!("{RESPONSES}/{}", answer["id"].as_str().unwrap());
    router.connect().await.request("DELETE", &path, b"").await.ok();
    router.post(RESPONSES, &json!({"input": [user, references[0]]})).await.fails(404, "response_not_found");
}

#[tokio::test]
async fn several_items_of_reasoning_are_joined() {
    let router = Router::default().await;
    let reasoning = |content: Value| with(json!({"type": "reasoning", "summary": []}), content);
    let text = |text: &str| json!({"content": [{"type": "reasoning_text", "text": text}]});
    let summary = |texts: &[&str]| {
        let parts: Vec<Value> =
            texts.iter().map(|text| json!({"type": "summary_text", "text": text})).collect();
        json!({"summary": parts})
    };
    let user = json!({"role": "user", "content": "hi"});
    let message = json!({"role": "assistant", "content": "Done."});
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "c", "output": "7"});
    for (items, reasoning) in [
        (vec![reasoning(text("One.")), reasoning(text("Two.")), message.clone()], vec!["One.\nTwo."]),
        (vec![reasoning(text("One.")), reasoning(text("Two.")), call.clone()], vec!["One.\nTwo."]),
        (vec![reasoning(json!({})), reasoning(text("Two.")), message.clone()], vec!["Two."]),
        (
            vec![reasoning(text("One.")), message.clone(), reasoning(text("Two.")), message.clone()],
            vec!["One.", "Two."],
        ),
        (
            vec![reasoning(text("One.")), call.clone(), reasoning(text("Two.")), message.clone()],
            vec!["One.\nTwo."],
        ),
        (
            vec![reasoning(text("One.")), call.clone(), result, reasoning(text("Two.")), message.clone()],
            vec!["One.", "Two."],
        ),
        (vec![reasoning(summary(&["One.", "Two."])), message.clone()], vec!["One.\nTwo."]),
        (vec![with(reasoning(summary(&["Short."])), text("Long.")), message.clone()], vec!["Long."]),
    ] {
        let input: Vec<Value> = [vec![user.clone()], items].concat();
        let answer = router.post(RESPONSES, &json!({"input": input})).await.ok();
        let path = format!("{RESPONSES}/{}/input_items?order=asc", answer["id"].as_str().unwrap());
        let items = router.get(&path).await.ok();
        let kept: Vec<&str> = items["data"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["type"] == "reasoning")
            .map(|item| item["content"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(kept, reasoning, "{input:?}");
        let num_messages = router.last_prompt().matches("assistant\n").count() - 1;
        assert_eq!(num_messages, kept.len(), "{}", router.last_prompt());
    }
}

/// Returns the messages of a stored response's conversation.
fn conversation(router: &Router, response: &Value) -> Vec<ChatMessage> {
    let (turn, _) = router.app.responses.get(None, response["id"].as_str().unwrap()).unwrap();
    turn.conversation()
}

#[tokio::test]
async fn a_stored_reply_has_the_messages_that_its_items_make() {
    let marks = ReasoningMarks::Harmony;
    let style =
        ReplyStyle { reasons: true, marks, tools: Some(ToolFormat::HARMONY), ..ReplyStyle::default() };
    let message = |header: &str, text: &str| bytes(&format!("<|channel|>{header}<|message|>{text}"));
    let next = [vec![END, START], bytes("assistant")].concat();
    let call = "commentary to=functions.f <|constrain|>json";
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    for (messages, reasoning) in [
        (
            vec![("analysis", "One."), ("commentary", "Hm."), ("analysis", "Two."), ("final", "Ok.")],
            vec!["One.", "Two."],
        ),
        (vec![("analysis", "One."), ("commentary", "Hm."), (call, "{}")], vec!["One."]),
        (vec![("analysis", "One."), (call, "{}"), ("analysis", "Two."), (call, "{}")], vec!["One.\nTwo."]),
    ] {
        let reply =
            messages.iter().map(|(header, text)| message(header, text)).collect::<Vec<_>>().join(&next[..]);
        // `<|end|>` ends only a message in this format.
        let reply = [reply, vec![PAD]].concat();
        let plan = ShardPlan { script: Arc::new(move |_| reply.clone()), ..ShardPlan::default() };
        let router = Router::start_with_replies(plan, style).await;
        let user = json!({"role": "user", "content": "hi"});
        let first = router.post(RESPONSES, &json!({"input": [user], "tools": tools})).await.ok();
        let kept = conversation(&router, &first);
        let thoughts: Vec<&str> =
            kept.iter().filter_map(|message| message.extra.get("reasoning_content")?.as_str()).collect();
        assert_eq!(thoughts, reasoning, "{first}");
        let items = first["output"].as_array().unwrap().clone();
        let references =
            items.iter().map(|item| json!({"type": "item_reference", "id": item["id"]})).collect();
        for items in [items, references] {
            let input: Vec<Value> = [vec![user.clone()], items].concat();
            let by_hand = router.post(RESPONSES, &json!({"input": input})).await.ok();
            assert_eq!(conversation(&router, &by_hand)[..kept.len()], kept);
        }
    }
}

#[tokio::test]
async fn many_references_to_a_large_response_are_read_at_once() {
    let router = Router::saying("ok").await;
    let large = "x".repeat(4 << 20);
    let answer = router.post(RESPONSES, &json!({"input": "hi", "metadata": {"a": large}})).await.ok();
    let reference = json!({"type": "item_reference", "id": answer["output"][0]["id"]});
    let referring = |num: usize| json!({"input": vec![reference.clone(); num], "store": false});
    for path in [RESPONSES, INPUT_TOKENS] {
        router.post(path, &referring(100)).await.ok();
    }
    assert_eq!(router.last_prompt().matches("assistant\nok").count(), 100);
    // If each of them read the whole response, this would take minutes.
    let counted = router.post(INPUT_TOKENS, &referring(16_000)).await.ok();
    assert!(counted["input_tokens"].as_u64().unwrap() > 16_000 * 13);
}

#[tokio::test]
async fn what_a_request_brings_in_from_the_store_is_bounded_like_a_body() {
    let limits = Limits { max_body_bytes: 64 << 10, max_messages: 40, ..Limits::default() };
    let router = Router::start(ShardPlan::saying(&"x".repeat(4_000)), limits).await;
    // The template writes no reasoning, so it may be longer than the context.
    let thought = json!({"type": "reasoning", "content": "r".repeat(31_000)});
    let turn = async |input: Value, before: &Value| {
        let body = json!({"input": input, "previous_response_id": before, "max_output_tokens": 1500});
        router.post(RESPONSES, &body).await
    };
    let ask = json!({"role": "user", "content": "hi"});
    let first = turn(json!([ask]), &Value::Null).await.ok();
    let second = turn(json!([thought, ask]), &first["id"]).await.ok();
    let third = turn(json!([thought, ask]), &second["id"]).await.ok();
    for path in [RESPONSES, INPUT_TOKENS] {
        let body = json!({"input": "x", "previous_response_id": third["id"]});
        let answer = router.post(path, &body).await;
        let message = answer.fails(400, "invalid_value");
        let words = "`previous_response_id` brings the prompt to";
        assert!(message.starts_with(words) && message.contains("--max-body-bytes"), "{message}");
    }
    // References are bounded together with the conversation.
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let message = turn(json!(vec![reference; 30]), &second["id"]).await.fails(400, "invalid_value");
    assert!(message.starts_with("`input[") && message.contains("].id` brings the prompt to"), "{message}");
    assert!(message.contains("bytes of stored responses, the limit is 65536"), "{message}");
    // So are the messages.
    let message = turn(json!(vec![ask.clone(); 36]), &second["id"]).await.fails(400, "invalid_value");
    assert!(message.contains("41 messages, the limit is 40"), "{message}");
    turn(json!([ask]), &second["id"]).await.ok();
}

#[tokio::test]
async fn a_continued_conversation_takes_memory_until_its_response_is_stored() {
    const LIMIT: usize = 3 << 20;
    let limits = ServerLimits { max_answers_bytes: LIMIT, ..ServerLimits::default() };
    let router = Router::start(ShardPlan::saying("ok").held(), limits).await;
    router.add_steps(1000);
    let thought = json!({"type": "reasoning", "content": "r".repeat(1 << 20)});
    let ask = json!({"role": "user", "content": "hi"});
    let long = json!([thought, ask]);
    let first = router.post(RESPONSES, &json!({"input": long})).await.ok();
    let second = json!({"input": long, "previous_response_id": first["id"]});
    let second = router.post(RESPONSES, &second).await.ok();
    let num_held = || LIMIT - router.app.admission.answers.free.available_permits() * 1024;
    assert_eq!(num_held(), 0);

    // The conversation and its copy would take more than all of the memory.
    for path in [RESPONSES, INPUT_TOKENS] {
        let body = json!({"input": "x", "previous_response_id": second["id"]});
        router.post(path, &body).await.fails(400, "answer_too_large");
    }
    // While the response is generated, the conversation may be evicted, so the request holds its memory.
    router.wait_idle().await;
    let taken = router.shard().steps.available_permits();
    router.shard().steps.acquire_many(taken as u32).await.unwrap().forget();
    let body = json!({"input": "x", "previous_response_id": first["id"], "stream": true});
    let mut stream = router.begin(RESPONSES, &body).await;
    router.wait_running(1).await;
    assert!((1 << 19..3 << 19).contains(&num_held()), "{} bytes", num_held());
    // Others find no more than the rest.
    let others = router.app.admission.answers.free.acquire_many(2 << 10).await.unwrap();
    for path in [RESPONSES, INPUT_TOKENS] {
        let body = json!({"input": "x", "previous_response_id": first["id"]});
        router.post(path, &body).await.fails(503, "too_many_answers");
    }
    drop(others);
    router.add_steps(1000);
    assert_eq!(stream.answer().await.status, 200);
    router.wait_idle().await;
    assert_eq!(num_held(), 0);
}

#[tokio::test]
async fn a_stream_that_holds_its_conversation_evicts_no_other_tenant() {
    let limits = Limits { max_response_store_bytes: 400_000, ..Limits::default() };
    let router = Router::start_with_keys(KEYS, ShardPlan::saying("ok").held(), limits).await;
    router.add_steps(100);
    let create = async |key: &str, num_bytes: usize| {
        let input = json!([{"type": "reasoning", "content": "r".repeat(num_bytes)}, {"role": "user", "content": "x"}]);
        router.ask(key, "POST", RESPONSES, &json!({"input": input})).await.ok()["id"].clone()
    };
    let is_kept = async |key: &str, id: &Value| {
        let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
        router.ask(key, "GET", &path, &Value::Null).await.status == 200
    };
    let kept = create(BOB, 50_000).await;
    let long = create(ALICE, 300_000).await;
    router.wait_idle().await;
    let taken = router.shard().steps.available_permits();
    router.shard().steps.acquire_many(taken as u32).await.unwrap().forget();
    let body = json!({"input": "y", "previous_response_id": long, "stream": true}).to_string();
    let mut stream = router.connect().await;
    stream.send_with("POST", RESPONSES, &[("x-api-key", ALICE)], body.as_bytes()).await;
    router.wait_running(1).await;
    // What the stream holds is evicted, and what is stored after that is counted without it.
    router.app.responses.remove(Some("alice"), long.as_str().unwrap());
    assert!(router.app.responses.num_bytes() < 100_000);
    router.add_steps(10_000);
    for _ in 0..10 {
        create(ALICE, 200_000).await;
        assert!(is_kept(BOB, &kept).await);
    }
    assert_eq!(stream.answer().await.status, 200);
}

#[tokio::test]
async fn a_stored_response_is_continued_without_input() {
    let router = Router::default().await;
    let answer = router.post(RESPONSES, &json!({"input": "x"})).await.ok();
    let body = json!({"input": [], "previous_response_id": answer["id"]});
    router.post(RESPONSES, &body).await.ok();
    assert!(router.last_prompt().contains(TEXT));
}
