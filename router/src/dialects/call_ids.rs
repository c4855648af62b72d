//! Ids of calls in a conversation's history, for templates that are particular about them.

use serde_json::Value;
use sha2::{Digest, Sha256};
use trunkline_text::{ChatMessage, ModelText};

/// Letters and digits that Mistral's templates want, no more and no less.
const NUM_CHARS: usize = 9;
/// How their templates say so.
const CONDITIONS: [&str; 2] = ["length != 9", "length == 9"];

/// Ids of other makers (`call_abc...`, `toolu_...`) in a form that the model's template takes. The same id stays the
/// same in all of a conversation, so that its prefix does.
pub fn fit(messages: &mut [ChatMessage], text: &ModelText) {
    let has_ids = |message: &ChatMessage| {
        message.extra.contains_key("tool_calls") || message.extra.contains_key("tool_call_id")
    };
    if !messages.iter().any(has_ids) {
        return;
    }
    let Some(templates) = &text.chat_templates else { return };
    if templates.names().filter_map(|name| templates.source(name)).any(is_particular) {
        messages.iter_mut().for_each(fit_message);
    }
}

fn is_particular(template: &str) -> bool {
    CONDITIONS.iter().any(|words| template.contains(words))
}

fn fit_message(message: &mut ChatMessage) {
    let calls = message.extra.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(Value::String(id)) = call.get_mut("id") {
            *id = fitting(id);
        }
    }
    if let Some(Value::String(id)) = message.extra.get_mut("tool_call_id") {
        *id = fitting(id);
    }
}

fn fitting(id: &str) -> String {
    if id.len() == NUM_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let digest = Sha256::digest(id.as_bytes());
    digest.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(NUM_CHARS).map(hex_digit).collect()
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mistrals_template_is_particular_and_others_are_not() {
        assert!(is_particular(include_str!("../../text/testdata/templates/mistral.jinja")));
        assert!(!is_particular(include_str!("../../text/testdata/templates/qwen3.jinja")));
        assert!(!is_particular(include_str!("../../text/testdata/templates/llama3.jinja")));
    }

    #[test]
    fn a_call_and_its_result_keep_one_id() {
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
    fn only_ids_that_do_not_fit_are_changed_and_all_alike() {
        assert_eq!(fitting("a1B2c3D4e"), "a1B2c3D4e");
        for id in ["call_abc123DEF456", "toolu_01", "", "abc-12345"] {
            let fitted = fitting(id);
            assert_eq!((fitted.len(), &fitting(id)), (NUM_CHARS, &fitted));
            assert!(fitted.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{fitted}");
        }
        assert_ne!(fitting("call_1"), fitting("call_2"));
    }
}
