//! The routes of Anthropic's Messages API.

use serde_json::{Value, json};

use crate::support::{END, Router, ShardPlan, bytes, prompt_of, user, with};

const MESSAGES: &str = "/v1/messages";
const TEXT: &str = "Hello wörld 🙂!";

#[tokio::test]
async fn a_message_is_answered_in_one_piece() {
    let router = Router::default().await;
    let body = json!({"model": "test/model", "max_tokens": 100, "messages": user("hi")});
    let answer = router.post(MESSAGES, &body).await;
    let message = answer.ok();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(message["content"], json!([{"type": "text", "text": TEXT}]));
    let prompt = prompt_of("hi");
    assert_eq!(
        json!([message["type"], message["role"], message["stop_reason"], message["stop_sequence"]]),
        json!(["message", "assistant", "end_turn", null])
    );
    assert_eq!(
        message["usage"],
        json!({"input_tokens": prompt.len(), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
               "output_tokens": bytes(TEXT).len() + 1})
    );
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    assert_eq!(router.shard().last_start().token_ids, prompt);
    // Cached tokens do not count as input tokens.
    let again = router.post(MESSAGES, &body).await.ok();
    let (input, cached) = (&again["usage"]["input_tokens"], &again["usage"]["cache_read_input_tokens"]);
    assert!(cached.as_u64().unwrap() > 0);
    assert_eq!(input.as_u64().unwrap() + cached.as_u64().unwrap(), prompt.len() as u64);
    router.wait_idle().await;
}

#[tokio::test]
async fn a_message_is_streamed_as_events() {
    let router = Router::default().await;
    let body = json!({"max_tokens": 100, "messages": user("hi"), "stream": true,
                      "stop_sequences": ["never", "🙂"]});
    let events = router.post(MESSAGES, &body).await.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let num_deltas = names.iter().filter(|name| **name == "content_block_delta").count();
    let deltas = &names[3..3 + num_deltas];
    assert!(deltas.iter().all(|name| *name == "content_block_delta"));
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[3 + num_deltas..], ["content_block_stop", "message_delta", "message_stop"]);
    // The data of each event repeats the event's name.
    assert!(events.iter().all(|(name, data)| data["type"] == json!(name)));
    let text: String = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Hello wörld ");
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], prompt_of("hi").len());
    assert_eq!(events[0].1["message"]["content"], json!([]));
    // The second request's prompt is in the cache.
    let again = router.post(MESSAGES, &body).await.named_events();
    let usage = &again[0].1["message"]["usage"];
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(usage["input_tokens"].as_u64().unwrap() + cached, prompt_of("hi").len() as u64);
    assert!(
        cached > 0 && usage["cache_creation_input_tokens"] == 0 && usage["output_tokens"].is_u64(),
        "{usage}"
    );
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": "🙂"}));
    assert_eq!(last["usage"]["output_tokens"], bytes("Hello wörld 🙂").len());
}

#[tokio::test]
async fn a_reply_without_text_has_no_block() {
    let plan = ShardPlan { replies: vec![vec![END]], ..ShardPlan::default() };
    let router = Router::with(plan).await;
    let body = json!({"max_tokens": 5, "messages": user("hi")});
    assert_eq!(router.post(MESSAGES, &body).await.ok()["content"], json!([]));
    let body = json!({"max_tokens": 5, "messages": user("hi"), "stream": true});
    let events = router.post(MESSAGES, &body).await.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["message_start", "ping", "message_delta", "message_stop"]);
}

#[tokio::test]
async fn blocks_and_turns_are_merged_into_one_chat() {
    let router = Router::default().await;
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]);
    router.post(MESSAGES, &json!({"max_tokens": 1, "messages": messages})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, prompt_of("hi"));
    // Successive messages of one role are merged, each on a new line.
    let messages = json!([{"role": "user", "content": "h"}, {"role": "user", "content": "i"}]);
    router.post(MESSAGES, &json!({"max_tokens": 1, "messages": messages})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, prompt_of("h\ni"));
    let counted = router.post("/v1/messages/count_tokens", &json!({"messages": messages})).await.ok();
    assert_eq!(counted, json!({"input_tokens": prompt_of("h\ni").len()}));
    // The reply continues a last message of the assistant.
    let begun = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}]);
    router.post(MESSAGES, &json!({"max_tokens": 1, "messages": begun})).await.ok();
    assert_eq!(router.shard().last_start().token_ids, [prompt_of("hi"), bytes("So ")].concat());
}

/// Returns the prompt for a request with these fields.
async fn prompt_for(router: &Router, fields: Value) -> Vec<u32> {
    router.post(MESSAGES, &with(json!({"max_tokens": 1}), fields)).await.ok();
    router.shard().last_start().token_ids
}

#[tokio::test]
async fn later_system_messages_join_the_users_turn() {
    let router = Router::default().await;
    let told = |content: Value| json!({"role": "system", "content": content});
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let prompt =
        prompt_for(&router, json!({"messages": [said("user", "hi"), told(json!("Be brief."))]})).await;
    assert_eq!(prompt, prompt_of("hi\nBe brief."));
    // Agents send empty system messages that only carry other fields.
    let prompt = prompt_for(&router, json!({"messages": [said("user", "hi"), told(json!([]))]})).await;
    assert_eq!(prompt, prompt_of("hi"));
    let block = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    let messages = json!([said("user", "hi"), said("assistant", "ho"), told(block), said("user", "more")]);
    let with_user = json!([said("user", "hi"), said("assistant", "ho"), said("user", "Be brief.\nmore")]);
    assert_eq!(
        prompt_for(&router, json!({"messages": messages})).await,
        prompt_for(&router, json!({"messages": with_user})).await
    );
    // A system message before all others acts like `system`.
    let first = json!({"messages": [told(json!("Be brief.")), said("user", "hi")]});
    let field = json!({"system": "Be brief.", "messages": [said("user", "hi")]});
    assert_eq!(prompt_for(&router, first).await, prompt_for(&router, field).await);
}

#[tokio::test]
async fn an_agents_extra_fields_do_not_change_the_prompt() {
    let router = Router::default().await;
    let system = json!([{"type": "text", "text": "You are an agent."}]);
    let plain = prompt_for(&router, json!({"system": system, "messages": user("hi")})).await;
    for nonce in ["cch=00000", "cch=a1b2c"] {
        let header = format!("x-anthropic-billing-header: cc_version=2.1; {nonce};");
        let system = json!([{"type": "text", "text": header}, {"type": "text", "text": "You are an agent."}]);
        let sent = json!({
            "system": system, "messages": user("hi"),
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        });
        assert_eq!(prompt_for(&router, sent).await, plain);
    }
    let body = json!({"max_tokens": 1, "messages": user("hi"),
                      "context_management": {"edits": [{"type": "compact_20260112"}]}});
    router.post(MESSAGES, &body).await.refuses(400, "`context_management.edits[0].type` is not supported");
}

#[tokio::test]
async fn documents_and_search_results_are_read_as_text() {
    let router = Router::default().await;
    let content = json!([
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "b"}]}},
        {"type": "search_result", "source": "http://c", "title": "C", "content": [{"type": "text", "text": "c"}]},
        {"type": "text", "text": "hi"},
    ]);
    let prompt = prompt_for(&router, json!({"messages": user(content)})).await;
    assert_eq!(prompt, prompt_of("T\na\nb\nC\nhttp://c\nc\nhi"));
    let result = |content: Value| {
        let call = json!([{"type": "tool_use", "id": "abcdefghi", "name": "look", "input": {}}]);
        let result = json!([{"type": "tool_result", "tool_use_id": "abcdefghi", "content": content}]);
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": call},
                            {"role": "user", "content": result}]})
    };
    // A conversation with an image in a tool result can continue.
    let pictured = json!([{"type": "text", "text": "seen: "}, {"type": "image", "source": {"type": "base64"}},
                          {"type": "tool_reference", "tool_name": "draw"}]);
    assert_eq!(
        prompt_for(&router, result(pictured)).await,
        prompt_for(&router, result(json!("seen: [an image, which this model cannot see]draw"))).await
    );
}

#[tokio::test]
async fn prompts_that_do_not_fit_get_anthropics_wording() {
    let router = Router::default().await;
    let context = 8192;
    let told = async |max_tokens: usize, text: String| {
        let body = json!({"max_tokens": max_tokens, "messages": user(text)});
        router.post(MESSAGES, &body).await.fails(400, "context_length_exceeded")
    };
    let num_prompt = prompt_of("hi").len();
    let message = told(context, "hi".to_owned()).await;
    let words =
        format!("input length and `max_tokens` exceed context limit: {num_prompt} + {context} > {context}, ");
    assert!(message.starts_with(&words), "{message}");
    let long = "x".repeat(context);
    let num_prompt = prompt_of(&long).len();
    let message = told(1, long).await;
    assert!(message.starts_with(&format!("prompt is too long: {num_prompt} tokens > ")), "{message}");
}

const CALL: &str =
    "I look.\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";

fn with_tools(fields: Value) -> Value {
    let tools = json!([{"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}]);
    with(json!({"max_tokens": 200, "messages": user("x"), "tools": tools}), fields)
}

#[tokio::test]
async fn a_call_is_a_separate_block() {
    let router = Router::saying(CALL).await;
    let message = router.post(MESSAGES, &with_tools(json!({}))).await.ok();
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0], json!({"type": "text", "text": "I look."}));
    let call = &message["content"][1];
    assert_eq!(
        json!([call["type"], call["name"], call["input"]]),
        json!(["tool_use", "get_weather", {"city": "Rome"}])
    );

    let events = router.post(MESSAGES, &with_tools(json!({"stream": true}))).await.named_events();
    let blocks: Vec<&Value> = events
        .iter()
        .filter(|(name, _)| name == "content_block_start")
        .map(|(_, data)| &data["content_block"]["type"])
        .collect();
    assert_eq!(blocks, ["text", "tool_use"]);
    let input: String =
        events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(input, "{\"city\": \"Rome\"}");
    // Blocks are numbered, and each one ends before the next begins.
    let order: Vec<(&str, u64)> = events
        .iter()
        .filter_map(|(name, data)| Some((name.as_str(), data["index"].as_u64()?)))
        .filter(|(name, _)| *name != "content_block_delta")
        .collect();
    let (start, stop) = ("content_block_start", "content_block_stop");
    assert_eq!(order, [(start, 0), (stop, 0), (start, 1), (stop, 1)]);
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn calls_and_results_are_part_of_the_next_prompt() {
    let router = Router::default().await;
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Rome"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "so?"},
        ]},
    ]);
    router.post(MESSAGES, &with_tools(json!({"messages": messages}))).await.ok();
    let prompt = router.last_prompt();
    // The mock's template renders only roles and contents.
    let places: Vec<usize> =
        ["I look.", "tool\nsunny", "user\nso?"].iter().map(|part| prompt.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{prompt}");
}
