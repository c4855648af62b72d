//! Errors about a limit that a flag sets name the flag.

use serde_json::{Value, json};
use trunkline_base::limits::Limits;

use crate::support::{Router, ShardPlan, user, with};

const CHAT: &str = "/v1/chat/completions";
const ANTHROPIC: &str = "/v1/messages";

fn limits() -> Limits {
    Limits {
        max_body_bytes: 4096,
        max_input_tokens: Some(50),
        max_messages: 2,
        max_message_parts: 2,
        max_best_of: 3,
        max_concurrent_requests: Some(2),
        max_tools: 1,
        max_stop_sequences: 1,
        max_schema_bytes: 200,
        max_schema_depth: 3,
        max_schema_properties: 4,
        ..Limits::default()
    }
}

/// Returns the body of a chat with these fields.
fn chat(fields: Value) -> Value {
    with(json!({"messages": user("x")}), fields)
}

#[tokio::test]
async fn every_error_of_a_limit_names_its_flag() {
    let router = Router::start(ShardPlan::default(), limits()).await;
    let (message, part) = (json!({"role": "user", "content": "x"}), json!({"type": "text", "text": "x"}));
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let messages = json!([message, message, message]);
    let parts = user(json!([part, part, part]));
    let schema = |schema: Value| chat(json!({"guided_json": schema}));
    let deep = json!({"items": {"items": {"items": {"items": {"items": {}}}}}});
    let wide = json!({"properties": {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}}});
    for (path, body, flag, code) in [
        (CHAT, chat(json!({"user": "x".repeat(5_000)})), "--max-body-bytes", "body_too_large"),
        ("/v1/completions", json!({"prompt": vec![7; 60]}), "--max-input-tokens", "context_length_exceeded"),
        (CHAT, json!({"messages": messages}), "--max-messages", "invalid_value"),
        (ANTHROPIC, json!({"max_tokens": 1, "messages": messages}), "--max-messages", "invalid_value"),
        ("/v1/messages/count_tokens", json!({"messages": messages}), "--max-messages", "invalid_value"),
        ("/v1/responses", json!({"input": messages}), "--max-messages", "invalid_value"),
        ("/v1/chat/completions/render", json!({"messages": messages}), "--max-messages", "invalid_value"),
        ("/chat_tokenize", json!({"messages": messages}), "--max-messages", "invalid_value"),
        ("/chat_tokenize", json!({"messages": parts}), "--max-message-parts", "invalid_value"),
        (CHAT, json!({"messages": parts}), "--max-message-parts", "invalid_value"),
        (ANTHROPIC, json!({"max_tokens": 1, "messages": parts}), "--max-message-parts", "invalid_value"),
        ("/v1/responses", json!({"input": parts}), "--max-message-parts", "invalid_value"),
        (CHAT, chat(json!({"n": 4})), "--max-best-of", "invalid_value"),
        (CHAT, chat(json!({"n": 3})), "--max-concurrent-requests", "invalid_value"),
        (CHAT, chat(json!({"tools": [tool("a"), tool("b")]})), "--max-tools", "invalid_value"),
        (CHAT, chat(json!({"stop": ["a", "b"]})), "--max-stop-sequences", "invalid_value"),
        (CHAT, chat(json!({"guided_regex": "x".repeat(201)})), "--max-schema-bytes", "schema_too_large"),
        (CHAT, schema(json!({"const": "x".repeat(201)})), "--max-schema-bytes", "schema_too_large"),
        (CHAT, schema(deep), "--max-schema-depth", "schema_too_large"),
        (CHAT, schema(wide), "--max-schema-properties", "schema_too_large"),
    ] {
        let answer = router.post(path, &body).await;
        assert!((400..500).contains(&answer.status), "{path} {flag}: {}", answer.status);
        let text = answer.fails(answer.status, code);
        assert!(text.contains(&format!("`{flag}`")), "{path} {flag}: {text}");
        assert!(["limit", "at most", "larger"].iter().any(|word| text.contains(word)), "no limit: {text}");
    }
    // No refused request holds a place, and a request within the limits is served.
    router.post(CHAT, &json!({"messages": [message, message], "n": 2, "stop": "a"})).await.ok();
    router.wait_places().await;
}
