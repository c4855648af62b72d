//! The routes of OpenAI's Responses API.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan, bytes, prompt_of};
use trunkline_router::limits::Limits;

const RESPONSES: &str = "/v1/responses";
const TEXT: &str = "Hello wörld 🙂!";
const CALL: &str = r#"So.
<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>"#;

#[tokio::test]
async fn a_response_is_returned_in_one_piece() {
    let router = Router::default().await;
    let answer = router.post(RESPONSES, &json!({"input": "hi", "metadata": {"a": "b"}})).await.ok();
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
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
async fn included_logprobs_are_refused_and_other_includes_ignored() {
    let router = Router::default().await;
    let asked = |name: &str| json!({"input": "hi", "include": [name]});
    let message =
        router.post(RESPONSES, &asked("message.output_text.logprobs")).await.fails(400, "unsupported_field");
    assert!(message.contains("message.output_text.logprobs"), "{message}");
    router.post(RESPONSES, &asked("reasoning.encrypted_content")).await.ok();
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
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(idx)));
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
    assert_eq!((&kept["id"], &kept["instructions"]), (&json!(id), &json!("Be brief.")));
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
    assert_eq!((&call["name"], &call["arguments"]), (&json!("f"), &json!("{\"a\":1}")));
    assert_eq!((&result["call_id"], &result["output"]), (&json!("c1"), &json!("7")));
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
        (&call["type"], &call["name"], &call["arguments"]),
        (&json!("function_call"), &json!("f"), &json!("{\"a\": \"b\"}"))
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
async fn a_stored_response_is_continued_without_input() {
    let router = Router::default().await;
    let answer = router.post(RESPONSES, &json!({"input": "x"})).await.ok();
    let body = json!({"input": [], "previous_response_id": answer["id"]});
    router.post(RESPONSES, &body).await.ok();
    assert!(router.last_prompt().contains(TEXT));
}

#[tokio::test]
async fn errors_name_the_wrong_field() {
    let router = Router::default().await;
    for (body, words) in [
        (json!({}), "`input` is missing"),
        (json!({"input": []}), "`input` is empty"),
        (json!({"input": [{"type": "web_search_call", "id": "x"}]}), "`input[0].type` must be"),
        (json!({"input": [{"type": "item_reference"}]}), "`input[0].id` is missing"),
        (json!({"input": [{"content": "x"}]}), "`input[0].role` is missing"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "`input[0].content[0].type` is `input_image`, but images are not supported by this model",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
            "`input[0].content[0].type` is `input_file`, but files are not supported by this model",
        ),
        (json!({"input": "x", "max_output_tokens": 0}), "`max_output_tokens` is 0"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "`tools[0].type` must be `function`"),
        (json!({"input": "x", "tool_choice": "always"}), "`tool_choice` names a tool"),
        (json!({"input": "x", "background": true}), "`background` is not supported"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "`text.format.type` must be"),
    ] {
        router.post(RESPONSES, &body).await.refuses(400, words);
    }
}
