//! Messages in the form that clients send.

use serde_json::{Value, json};
use trunkline_text::ChatMessage;

#[test]
fn parts_are_joined_and_arguments_parsed() {
    let message = ChatMessage::from_json(
        0,
        &json!({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "name": null,
                "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}},
                               {"function": {"name": "g", "arguments": "not json"}}]}),
    )
    .unwrap();
    assert_eq!(message.content.as_deref(), Some("ab"));
    assert_eq!(
        Value::Object(message.extra),
        json!({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}},
                              {"function": {"name": "g", "arguments": "not json"}}]})
    );
}

#[test]
fn absent_content_is_empty_text_to_a_template() {
    for message in [json!({"role": "assistant"}), json!({"role": "assistant", "content": null})] {
        let message = ChatMessage::from_json(0, &message).unwrap();
        assert_eq!(message.content, None);
        assert_eq!(message.to_json(), json!({"role": "assistant", "content": ""}));
    }
}

#[test]
fn errors_name_the_field() {
    let cases = [
        (json!("hi"), "`messages[3]` is not an object"),
        (json!({"content": "hi"}), "`messages[3].role` is missing"),
        (json!({"role": 1, "content": "hi"}), "`messages[3].role` is not a string"),
        (
            json!({"role": "user", "content": 5}),
            "`messages[3].content` is neither a string nor a list of parts",
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}),
            "`messages[3].content[1].type` is `image_url`, but only `text` is supported",
        ),
        (
            json!({"role": "user", "content": ["x"]}),
            "`messages[3].content[0].type` is missing or not a string",
        ),
        (
            json!({"role": "user", "content": [{"type": "text"}]}),
            "`messages[3].content[0].text` is missing or not a string",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(ChatMessage::from_json(3, &message).unwrap_err().to_string(), expected);
    }
}
