use serde_json::json;
use trunkline_api::chat::prompt::num_bytes;
use trunkline_text::{ChatMessage, ChatRequest};

/// A long text must be tokenized away from the HTTP threads in whichever field the client sends it.
#[test]
fn everything_that_a_template_may_render_counts() {
    let long = "x".repeat(10_000);
    let fields = |value: serde_json::Value| value.as_object().cloned().unwrap();
    let with_extra = |value| ChatMessage { extra: fields(value), ..ChatMessage::new("user", "hi") };
    let of_message = |message| ChatRequest { messages: vec![message], ..ChatRequest::default() };
    let chats = [
        of_message(ChatMessage::new("user", long.clone())),
        of_message(ChatMessage::new(long.clone(), "hi")),
        of_message(with_extra(json!({"reasoning_content": long}))),
        of_message(with_extra(json!({"tool_calls": [{"function": {"arguments": {"query": long}}}]}))),
        of_message(with_extra(json!({long.clone(): 1}))),
        ChatRequest { tools: vec![json!({"function": {"description": long}})], ..ChatRequest::default() },
        ChatRequest { kwargs: fields(json!({"documents": [{"text": long}]})), ..ChatRequest::default() },
        ChatRequest { messages: vec![ChatMessage::new("", ""); 10_000], ..ChatRequest::default() },
        ChatRequest { kwargs: fields(json!({"numbers": vec![0; 10_000]})), ..ChatRequest::default() },
    ];
    for chat in chats {
        assert!(num_bytes(&chat) >= 10_000, "{} bytes", num_bytes(&chat));
    }
    assert!(num_bytes(&of_message(ChatMessage::new("user", "hi"))) < 100);
}
