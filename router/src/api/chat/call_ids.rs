//! Call ids in a conversation's history, for templates that require a certain form.

use serde_json::Value;
use sha2::{Digest, Sha256};
use trunkline_text::{ChatMessage, ModelText};

/// The exact number of letters and digits that Mistral's templates require.
const NUM_CHARS: usize = 9;
/// Expressions by which those templates are recognised.
const CONDITIONS: [&str; 2] = ["length != 9", "length == 9"];

/// Converts ids from other models (`call_abc...`, `toolu_...`) to the form that the model's template requires. Equal
/// ids stay equal in all requests of a conversation, so its prefix stays the same too.
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

/// Returns true if a template accepts only ids of its own form.
pub fn is_particular(template: &str) -> bool {
    CONDITIONS.iter().any(|words| template.contains(words))
}

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

/// Returns the id itself if it has the required form, otherwise one derived from its digest.
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
