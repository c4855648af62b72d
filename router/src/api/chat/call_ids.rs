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

/// Whether a template takes only ids of its own form.
pub fn is_particular(template: &str) -> bool {
    CONDITIONS.iter().any(|words| template.contains(words))
}

/// Changes the ids in one message.
pub fn fit_message(message: &mut ChatMessage) {
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

/// An id of the form that the templates take; the id itself if it has that form.
pub fn fitting(id: &str) -> String {
    if id.len() == NUM_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let digest = Sha256::digest(id.as_bytes());
    digest.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(NUM_CHARS).map(hex_digit).collect()
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap_or('0')
}
