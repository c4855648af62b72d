use serde_json::{Value, json};
use trunkline_router::api::chat::call_ids::{fit_message, fitting, is_particular};
use trunkline_text::ChatMessage;

#[test]
fn only_mistrals_template_requires_short_ids() {
    assert!(is_particular(include_str!("../../../../../text/testdata/templates/mistral.jinja")));
    assert!(!is_particular(include_str!("../../../../../text/testdata/templates/qwen3.jinja")));
    assert!(!is_particular(include_str!("../../../../../text/testdata/templates/llama3.jinja")));
}

#[test]
fn a_call_and_its_result_keep_the_same_id() {
    let message = |role: &str, extra: Value| ChatMessage {
        role: role.into(),
        content: None,
        extra: extra.as_object().cloned().unwrap_or_default(),
    };
    let call = json!({"id": "call_abc123DEF456", "function": {"name": "f"}});
    let mut messages = [
        message("assistant", json!({"tool_calls": [call, {"function": {"name": "g"}}]})),
        message("tool", json!({"tool_call_id": "call_abc123DEF456"})),
    ];
    messages.iter_mut().for_each(fit_message);
    let fitted = fitting("call_abc123DEF456");
    assert_eq!(messages[0].extra["tool_calls"][0]["id"], fitted.as_str());
    assert_eq!(messages[0].extra["tool_calls"][1], json!({"function": {"name": "g"}}));
    assert_eq!(messages[1].extra["tool_call_id"], fitted.as_str());
}

#[test]
fn only_unsuitable_ids_are_changed_and_always_in_the_same_way() {
    assert_eq!(fitting("a1B2c3D4e"), "a1B2c3D4e");
    for id in ["call_abc123DEF456", "toolu_01", "", "abc-12345"] {
        let fitted = fitting(id);
        assert_eq!((fitted.len(), &fitting(id)), (9, &fitted));
        assert!(fitted.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{fitted}");
    }
    assert_ne!(fitting("call_1"), fitting("call_2"));
}
