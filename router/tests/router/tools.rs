//! Tools and reasoning in chats.

use serde_json::{Value, json};

use crate::support::{self, Router, ShardPlan, user};
use trunkline_generation::model::ReplyStyle;

const CHAT: &str = "/v1/chat/completions";
const CALL: &str = "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>";

fn body() -> Value {
    json!({
        "messages": user("x"),
        "tools": [{"type": "function", "function": {"name": "get_weather", "description": "says how it is",
                   "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
    })
}

fn with(fields: Value) -> Value {
    support::with(body(), fields)
}

#[tokio::test]
async fn a_call_is_separated_from_the_text() {
    let router = Router::saying(CALL).await;
    let answer = router.post(CHAT, &body()).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"], json!({"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"}));
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    // This template does not support tools, so a system message describes them.
    let prompt = router.last_prompt();
    assert!(prompt.contains("says how it is"), "{prompt}");
    // With `tool_choice: none`, the prompt does not mention tools, and text that looks like a call stays text.
    let none = router.post(CHAT, &with(json!({"tool_choice": "none"}))).await.ok();
    assert_eq!(none["choices"][0]["message"]["content"], CALL);
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn without_parallel_calls_only_the_first_call_is_returned() {
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
    let router = Router::saying(&[call("Bern"), call("Basel"), call("Chur")].concat()).await;
    let cities = |calls: Vec<&Value>| -> Vec<String> { calls.iter().map(|call| call.to_string()).collect() };
    for (is_parallel, num_calls) in [(true, 3), (false, 1)] {
        let fields = json!({"parallel_tool_calls": is_parallel});
        let answer = router.post(CHAT, &with(fields.clone())).await.ok();
        let choice = &answer["choices"][0];
        let calls = cities(choice["message"]["tool_calls"].as_array().unwrap().iter().collect());
        assert_eq!((calls.len(), choice["finish_reason"].as_str()), (num_calls, Some("tool_calls")));
        assert!(calls[0].contains("Bern"), "{calls:?}");
        let streamed = support::with(with(fields), json!({"stream": true}));
        let text = router.post(CHAT, &streamed).await.text();
        assert_eq!(text.matches("get_weather").count(), num_calls, "{text}");

        let tool = json!({"name": "get_weather", "input_schema": {"type": "object"}});
        let choice = json!({"type": "auto", "disable_parallel_tool_use": !is_parallel});
        let body = json!({"messages": user("x"), "max_tokens": 900, "tools": [tool],
                          "tool_choice": choice});
        let answer = router.post("/v1/messages", &body).await.ok();
        assert_eq!(answer["content"].as_array().unwrap().len(), num_calls, "{answer}");
        assert_eq!(answer["stop_reason"], "tool_use");
        assert!(answer["content"][0]["id"].as_str().unwrap().starts_with("toolu_"), "{answer}");
        let streamed = support::with(body, json!({"stream": true}));
        let text = router.post("/v1/messages", &streamed).await.text();
        assert_eq!(text.matches("\"id\":\"toolu_").count(), num_calls, "{text}");

        let tool = json!({"type": "function", "name": "get_weather", "parameters": {"type": "object"}});
        let body = json!({"input": "x", "tools": [tool], "parallel_tool_calls": is_parallel});
        let answer = router.post("/v1/responses", &body).await.ok();
        assert_eq!(answer["output"].as_array().unwrap().len(), num_calls, "{answer}");
    }
}

#[tokio::test]
async fn only_allowed_tools_are_called_and_all_are_in_the_prompt() {
    let router = Router::saying(CALL).await;
    let other = json!({"type": "function", "function": {"name": "other", "description": "does more"}});
    let tools = json!([body()["tools"][0], other]);
    for (name, is_called) in [("get_weather", true), ("other", false)] {
        let choice = json!({"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": name}}]}});
        let fields = json!({"tools": tools, "tool_choice": choice});
        let answer = router.post(CHAT, &with(fields)).await.ok();
        assert_eq!(answer["choices"][0]["message"]["tool_calls"].is_array(), is_called, "{answer}");
        assert!(
            router.last_prompt().contains("says how it is") && router.last_prompt().contains("does more")
        );
        let flat = |tool: &Value| support::with(tool["function"].clone(), json!({"type": "function"}));
        let choice =
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name}]});
        let tools: Vec<Value> = tools.as_array().unwrap().iter().map(flat).collect();
        let body = json!({"input": "x", "tools": tools, "tool_choice": choice});
        let answer = router.post("/v1/responses", &body).await.ok();
        let has_call =
            answer["output"].as_array().unwrap().iter().any(|item| item["type"] == "function_call");
        assert_eq!((has_call, &answer["tool_choice"]), (is_called, &choice), "{answer}");
    }
}

#[tokio::test]
async fn a_call_is_streamed() {
    let router = Router::saying(CALL).await;
    let events = router.post(CHAT, &with(json!({"stream": true}))).await.events();
    let (mut text, mut arguments, mut heads) = (String::new(), String::new(), Vec::new());
    for delta in events.iter().filter_map(|event| event["choices"][0].get("delta")) {
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["index"], 0);
            arguments.push_str(call["function"]["arguments"].as_str().unwrap());
            heads.extend(
                call["function"]["name"].as_str().map(|name| (name.to_owned(), call["type"].clone())),
            );
        }
    }
    assert_eq!((text.as_str(), arguments.as_str()), ("Let me see.", "{\"city\": \"Zürich\"}"));
    assert_eq!(heads, [("get_weather".to_owned(), json!("function"))]);
    let last = events.iter().rev().find(|event| event["choices"][0]["finish_reason"].is_string()).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    // Arguments are sent as they are generated, not at the end.
    let num_pieces =
        events.iter().filter(|event| event["choices"][0]["delta"]["tool_calls"].is_array()).count();
    assert!(num_pieces > 5, "{num_pieces}");
}

#[tokio::test]
async fn calls_and_results_are_part_of_the_next_prompt() {
    let router = Router::saying("ok").await;
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null,
         "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    ]);
    router.post(CHAT, &with(json!({"messages": messages}))).await.ok();
}

#[tokio::test]
async fn histories_are_accepted_as_clients_keep_them() {
    let router = Router::saying("ok").await;
    let prompt = async |messages: Value| {
        router.post(CHAT, &json!({"messages": messages})).await.ok();
        router.shard().last_start().token_ids
    };
    let user = json!({"role": "user", "content": "x"});
    let said = |fields: Value| json!([user, support::with(json!({"role": "assistant"}), fields), user]);
    // A reply may be empty, or consist only of reasoning or a refusal.
    let empty = prompt(said(json!({"content": ""}))).await;
    for fields in [json!({}), json!({"content": null}), json!({"content": null, "tool_calls": []})] {
        assert_eq!(prompt(said(fields.clone())).await, empty, "{fields}");
    }
    let refusal = json!({"content": [{"type": "refusal", "refusal": "I will not."}]});
    assert_eq!(prompt(said(refusal)).await, prompt(said(json!({"content": "I will not."}))).await);
    // Clients send various empty arguments for tools without parameters.
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        said(json!({"tool_calls": [{"id": "a", "type": "function", "function": function}]}))
    };
    let none = prompt(call(json!("{}"))).await;
    for arguments in [json!(""), json!("null"), json!(null), json!({})] {
        assert_eq!(prompt(call(arguments.clone())).await, none, "{arguments}");
    }
}

#[tokio::test]
async fn tools_are_accepted_in_tgis_form() {
    let router = Router::saying(CALL).await;
    let function = body()["tools"][0]["function"].clone();
    let mut tgis = function.clone();
    let map = tgis.as_object_mut().unwrap();
    let schema = map.remove("parameters").unwrap();
    map.insert("arguments".into(), schema);
    let mut prompts = Vec::new();
    for function in [function, tgis] {
        let fields = json!({"tools": [{"type": "function", "function": function}]});
        let answer = router.post(CHAT, &with(fields)).await.ok();
        assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather");
        prompts.push(router.shard().last_start().token_ids);
    }
    assert_eq!(prompts[0], prompts[1]);
}

#[tokio::test]
async fn replies_are_text_if_the_parser_is_off() {
    let call = "<tool_call>{\"name\": \"look_up\", \"arguments\": {}}</tool_call>";
    let style = ReplyStyle { ignores_calls: true, ..ReplyStyle::default() };
    let router = Router::start_with_replies(ShardPlan::saying(call), style).await;
    let tools = json!([{"type": "function", "function": {"name": "look_up"}}]);
    let body = json!({"messages": user("x"), "tools": tools, "max_tokens": 200});
    let answer = router.post(CHAT, &body).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], call);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // A required call is still parsed.
    let required = support::with(body, json!({"tool_choice": "required"}));
    let answer = router.post(CHAT, &required).await.ok();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "look_up");
}

#[tokio::test]
async fn a_malformed_schema_of_a_tool_that_need_not_be_called_is_accepted() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "stsring"}}});
    Router::default().await.post(CHAT, &json!({"messages": user("x"), "tools": [tool]})).await.ok();
}
