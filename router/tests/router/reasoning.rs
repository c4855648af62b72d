//! Reasoning before an answer. Every dialect returns it separately, also in streams, and the fields that ask for it
//! reach the template.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan, user, with};
use trunkline_generation::model::ReplyStyle;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const THOUGHT: &str = "Zürich? Let me see";
const ANSWER: &str = "It rains.";

async fn router() -> Router {
    let plan = ShardPlan::saying(&format!("<think>{THOUGHT}</think>{ANSWER}"));
    Router::start_with_replies(plan, ReplyStyle { reasons: true, ..ReplyStyle::default() }).await
}

fn chat(fields: Value) -> Value {
    with(json!({"messages": user("x")}), fields)
}

/// Returns a body for `/v1/messages` with these fields.
fn message(fields: Value) -> Value {
    with(chat(json!({"max_tokens": 200})), fields)
}

#[tokio::test]
async fn chats_return_reasoning_separately() {
    let router = router().await;
    let answer = router.post(CHAT, &chat(json!({}))).await.ok();
    let message = &answer["choices"][0]["message"];
    assert_eq!(json!([message["reasoning_content"], message["content"]]), json!([THOUGHT, ANSWER]));
    assert_eq!(message["reasoning"], THOUGHT);
    let events = router.post(CHAT, &chat(json!({"stream": true}))).await.events();
    let (mut thought, mut text) = (String::new(), String::new());
    for delta in events.iter().filter_map(|event| event["choices"][0].get("delta")) {
        if let Some(piece) = delta["reasoning_content"].as_str() {
            assert!(text.is_empty(), "reasoning comes first");
            thought.push_str(piece);
            assert_eq!(delta["reasoning"], piece);
        }
        text.push_str(delta["content"].as_str().unwrap_or_default());
    }
    assert_eq!((thought.as_str(), text.as_str()), (THOUGHT, ANSWER));
    // Reasoning can be omitted on request. Its tokens are still counted.
    let hidden = router.post(CHAT, &chat(json!({"include_reasoning": false}))).await.ok();
    let message = &hidden["choices"][0]["message"];
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!(ANSWER)));
    assert_eq!(message.get("reasoning"), None);
    assert_eq!(hidden["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
    let events = router.post(CHAT, &chat(json!({"include_reasoning": false, "stream": true}))).await.events();
    let deltas: Vec<_> = events.iter().filter_map(|event| event["choices"][0]["delta"].as_object()).collect();
    assert!(deltas.iter().all(|delta| !delta.contains_key("reasoning_content")), "{deltas:?}");
    let text: String = deltas.iter().filter_map(|delta| delta.get("content")?.as_str()).collect();
    assert_eq!(text, ANSWER);
}

#[tokio::test]
async fn messages_return_a_thinking_block() {
    let router = router().await;
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let answer = router.post(MESSAGES, &message(thinking.clone())).await.ok();
    let content =
        json!([{"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": ANSWER}]);
    assert_eq!(answer["content"], content);
    assert!(router.last_prompt().contains("[thinking true]"));
    let mut body = message(thinking);
    body["stream"] = true.into();
    let (mut blocks, mut texts) = (Vec::new(), [String::new(), String::new()]);
    for (_, event) in router.post(MESSAGES, &body).await.named_events() {
        match event["type"].as_str().unwrap() {
            "content_block_start" => blocks.push(event["content_block"]["type"].clone()),
            "content_block_delta" => {
                let (index, delta) = (event["index"].as_u64().unwrap() as usize, &event["delta"]);
                assert_eq!(index, blocks.len() - 1, "one block after the other");
                let text = if index == 0 { &delta["thinking"] } else { &delta["text"] };
                texts[index].push_str(text.as_str().unwrap());
            }
            _ => {}
        }
    }
    assert_eq!(blocks, ["thinking", "text"]);
    assert_eq!(texts, [THOUGHT, ANSWER]);
    // Without `thinking`, the template is told so, and reasoning that is generated anyway is not returned.
    for fields in [json!({}), json!({"thinking": {"type": "disabled"}})] {
        let answer = router.post(MESSAGES, &message(fields)).await.ok();
        assert_eq!(answer["content"], json!([{"type": "text", "text": ANSWER}]));
        assert!(router.last_prompt().contains("[thinking false]"));
    }
}

#[tokio::test]
async fn responses_return_a_reasoning_item() {
    let router = router().await;
    let answer = router.post(RESPONSES, &json!({"input": "x"})).await.ok();
    let (thought, text) = (&answer["output"][0], &answer["output"][1]);
    assert_eq!(json!([thought["type"], thought["content"][0]["text"]]), json!(["reasoning", THOUGHT]));
    assert_eq!(json!([text["type"], text["content"][0]["text"]]), json!(["message", ANSWER]));
    let events = router.post(RESPONSES, &json!({"input": "x", "stream": true})).await.named_events();
    let joined = |kind: &str| -> String {
        events
            .iter()
            .filter(|(name, _)| name == kind)
            .filter_map(|(_, data)| data["delta"].as_str())
            .collect()
    };
    assert_eq!(joined("response.reasoning_text.delta"), THOUGHT);
    assert_eq!(joined("response.output_text.delta"), ANSWER);
    let at = |kind: &str| events.iter().position(|(name, _)| name == kind).unwrap();
    assert!(at("response.reasoning_text.done") < at("response.output_text.delta"));
}

#[tokio::test]
async fn effort_and_template_variables_reach_the_template() {
    let router = router().await;
    for (path, body, expected) in [
        (CHAT, chat(json!({"reasoning_effort": "high"})), ["[thinking true]", "[effort high]"]),
        (CHAT, chat(json!({"reasoning_effort": "none"})), ["[thinking false]", "[effort none]"]),
        (
            CHAT,
            chat(json!({"chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "x"}})),
            ["[thinking false]", "[effort x]"],
        ),
        (
            RESPONSES,
            json!({"input": "x", "reasoning": {"effort": "low"}}),
            ["[thinking true]", "[effort low]"],
        ),
        (
            MESSAGES,
            message(json!({"output_config": {"effort": "max"}})),
            ["[thinking false]", "[effort max]"],
        ),
    ] {
        router.post(path, &body).await.ok();
        let prompt = router.last_prompt();
        assert!(expected.iter().all(|words| prompt.contains(words)), "{body}: {prompt}");
    }
    router.post(CHAT, &chat(json!({}))).await.ok();
    assert!(!router.last_prompt().contains('['), "the template received no variables");
}

#[tokio::test]
async fn stop_strings_match_only_outside_reasoning() {
    let router = router().await;
    let (in_both, in_answer) = ("i", ANSWER.split_at(1).1);
    assert!(THOUGHT.contains(in_both) && ANSWER.contains(in_both) && !THOUGHT.contains(in_answer));
    for stop in [THOUGHT, "think", "</think>", in_answer] {
        let answer = router.post(CHAT, &chat(json!({"stop": [stop]}))).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], THOUGHT, "{stop}");
        let expected = ANSWER.find(stop).map_or(ANSWER, |at| &ANSWER[..at]);
        assert_eq!(message["content"], expected, "{stop}");
    }
    let answer = router.post(MESSAGES, &message(json!({"stop_sequences": [in_both, THOUGHT]}))).await.ok();
    assert_eq!(json!([answer["stop_sequence"], answer["content"][0]["text"]]), json!([in_both, "It ra"]));
}

/// A thought that would go on for long, and the text that the shard writes once its budget has ended it.
const ENDLESS: &str = "<think>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa</think>It rains.";

fn after_budget(budget: usize) -> (String, String) {
    let written = "<think>".len() + budget + "</think>".len();
    ("a".repeat(budget), ENDLESS[written..].to_owned())
}

async fn endless_router() -> Router {
    Router::start_with_replies(
        ShardPlan::saying(ENDLESS),
        ReplyStyle { reasons: true, ..ReplyStyle::default() },
    )
    .await
}

#[tokio::test]
async fn reasoning_ends_with_its_budget() {
    let router = endless_router().await;
    for (fields, budget) in [
        (json!({"thinking_token_budget": 5}), 5),
        (json!({"reasoning_budget_tokens": 5}), 5),
        (json!({"reasoning": {"max_tokens": 5}}), 5),
        (json!({"reasoning": {"max_tokens": 7, "effort": "high"}, "thinking_token_budget": 7}), 7),
        (json!({"thinking_token_budget": 0}), 0),
        (json!({"thinking_token_budget": 5, "logprobs": true, "top_logprobs": 1}), 5),
        (json!({"thinking_token_budget": 5, "min_tokens": 30, "ignore_eos": true, "max_tokens": 90}), 5),
        (json!({"thinking_token_budget": 5, "prompt_logprobs": 1}), 5),
        (json!({"thinking_token_budget": 5, "n": 2, "seed": 1}), 5),
        (json!({"thinking_token_budget": 5, "speculation": false}), 5),
    ] {
        let answer = router.post(CHAT, &chat(fields.clone())).await.ok();
        let (thought, text) = after_budget(budget);
        for choice in answer["choices"].as_array().unwrap() {
            let message = &choice["message"];
            assert_eq!(
                message["reasoning_content"].as_str().unwrap_or_default(),
                thought,
                "{fields}: {answer}"
            );
            assert!(message["content"].as_str().unwrap().starts_with(&text), "{fields}: {answer}");
        }
    }
    // Without a budget, or with a larger one, reasoning ends by itself.
    let unlimited = router.post(CHAT, &chat(json!({}))).await.ok()["choices"][0]["message"].clone();
    for fields in [
        json!({"thinking_token_budget": -1, "reasoning_budget_tokens": -1, "reasoning": {}}),
        json!({"thinking_token_budget": 1000}),
    ] {
        let answer = router.post(CHAT, &chat(fields)).await.ok();
        assert_eq!(answer["choices"][0]["message"], unlimited);
    }
    let hidden = router.post(CHAT, &chat(json!({"reasoning": {"exclude": true}}))).await.ok();
    assert_eq!(hidden["choices"][0]["message"].get("reasoning_content"), None);
    router.post(CHAT, &chat(json!({"reasoning": {"enabled": false}}))).await.ok();
    assert!(router.last_prompt().contains("[thinking false]"));
    for (fields, field) in [
        (json!({"thinking_token_budget": -2}), "thinking_token_budget"),
        (json!({"reasoning": {"max_tokens": -1}}), "reasoning.max_tokens"),
        (json!({"thinking_token_budget": 5, "reasoning": {"max_tokens": 6}}), "reasoning.max_tokens"),
    ] {
        let answer = router.post(CHAT, &chat(fields)).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["param"], field);
    }
}

#[tokio::test]
async fn a_budget_holds_in_every_dialect_and_under_a_grammar() {
    let router = endless_router().await;
    let (thought, text) = after_budget(9);
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 9}});
    let answer = router.post(MESSAGES, &message(thinking)).await.ok();
    let content =
        json!([{"type": "thinking", "thinking": thought, "signature": ""}, {"type": "text", "text": text}]);
    assert_eq!(answer["content"], content);
    let none =
        router.post(MESSAGES, &message(json!({"thinking": {"type": "enabled", "budget_tokens": 0}}))).await;
    assert_eq!(none.status, 400);
    let begun = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>"}]);
    let continues = json!({
        "messages": begun, "continue_final_message": true, "add_generation_prompt": false,
        "thinking_token_budget": 4,
    });
    for (fields, text) in [(json!({}), None), (json!({"guided_choice": ["yes"]}), Some("yes"))] {
        let answer = router.post(CHAT, &with(chat(fields), continues.clone())).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], &ENDLESS[..4], "{answer}");
        assert!(text.is_none_or(|text| message["content"] == text), "{answer}");
    }
}

#[tokio::test]
async fn several_thinking_blocks_are_joined() {
    let router = router().await;
    let thinking = |text: &str| json!({"type": "thinking", "thinking": text, "signature": ""});
    let text = json!({"type": "text", "text": "Hm."});
    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": "7"});
    for (blocks, reasoning) in [
        (json!([thinking("One."), thinking("Two."), text]), "One.\nTwo."),
        (json!([thinking("One."), text, thinking("Two."), call]), "One.\nTwo."),
        (json!([thinking("One."), {"type": "redacted_thinking", "data": "x"}, thinking(""), text]), "One."),
    ] {
        let messages = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
        ]);
        let fields = json!({"messages": messages, "output_config": {"effort": "high"}});
        router.post(MESSAGES, &message(fields)).await.ok();
        let prompt = router.last_prompt();
        assert!(prompt.contains(&format!("[reasoning {reasoning}]")), "{prompt}");
    }
}

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn with_tool(fields: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    chat(with(json!({"tools": [tool]}), fields))
}

/// Returns reasoning, content and the arguments of calls of a chat's answer, whole or streamed.
async fn parts(router: &Router, body: Value, is_streamed: bool) -> (String, String, String) {
    let answers = match is_streamed {
        false => vec![router.post(CHAT, &body).await.ok()["choices"][0]["message"].clone()],
        true => {
            let events = router.post(CHAT, &with(body, json!({"stream": true}))).await.events();
            events.iter().filter_map(|event| event["choices"][0].get("delta").cloned()).collect()
        }
    };
    let joined = |name: &str| answers.iter().filter_map(|part| part[name].as_str()).collect();
    let calls = answers.iter().filter_map(|part| part["tool_calls"].as_array()).flatten();
    let arguments = calls.filter_map(|call| call["function"]["arguments"].as_str()).collect();
    (joined("reasoning_content"), joined("content"), arguments)
}

#[tokio::test]
async fn a_call_before_the_end_of_reasoning_is_a_call_in_every_dialect() {
    for end in ["\n</think>\n\n", ""] {
        let plan = ShardPlan::saying(&format!("<think>{THOUGHT}\n{CALL}{end}"));
        let style = ReplyStyle { reasons: true, ..ReplyStyle::default() };
        let router = Router::start_with_replies(plan, style).await;
        for is_streamed in [false, true] {
            let found = parts(&router, with_tool(json!({})), is_streamed).await;
            assert_eq!(found, (THOUGHT.into(), String::new(), "{\"a\": 1}".into()), "{is_streamed} {end:?}");
        }
        let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": tools});
        let events = router.post(MESSAGES, &message(with(thinking.clone(), json!({"stream": true})))).await;
        let events = events.named_events();
        let blocks: Vec<&Value> =
            events.iter().filter_map(|(_, event)| event["content_block"].get("type")).collect();
        assert_eq!(blocks, ["thinking", "tool_use"]);
        let content = router.post(MESSAGES, &message(thinking)).await.ok()["content"].clone();
        assert_eq!(content[0]["thinking"], THOUGHT);
        assert_eq!(json!([content[1]["type"], content[1]["input"]]), json!(["tool_use", {"a": 1}]));
        let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
        let output =
            router.post(RESPONSES, &json!({"input": "x", "tools": tools})).await.ok()["output"].clone();
        assert_eq!(json!([output[0]["type"], output[1]["type"]]), json!(["reasoning", "function_call"]));
        assert_eq!(output[1]["arguments"], "{\"a\": 1}");
        router.wait_idle().await;
    }
}

#[tokio::test]
async fn a_reply_under_a_grammar_has_no_calls_in_its_reasoning() {
    // The prompt opens reasoning, because the mock's vocabulary has no token for the mark.
    let template = "{{ messages[0].content }}<think>{# up to </think> #}";
    let plan = ShardPlan::saying(&format!("{THOUGHT}{CALL}</think>{{}}"));
    let router = Router::start_with_template(plan, template).await;
    let format = json!({"response_format": {"type": "json_object"}});
    for is_streamed in [false, true] {
        let (thought, content, calls) = parts(&router, with_tool(format.clone()), is_streamed).await;
        assert_eq!((thought, calls), (format!("{THOUGHT}{CALL}"), String::new()), "{is_streamed}");
        assert_eq!(serde_json::from_str::<Value>(&content).unwrap(), json!({}), "{is_streamed}");
    }
    router.wait_idle().await;
}
