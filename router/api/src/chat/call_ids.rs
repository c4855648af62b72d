//! Call ids: those of new calls, and those in a conversation's history, for templates that require a certain form.

use std::collections::HashMap;

use serde_json::Value;
use sha2::{Digest, Sha256};
use trunkline_text::ChatMessage;

use trunkline_generation::model::CallIds;

/// The exact number of letters and digits that Mistral's templates require.
const NUM_CHARS: usize = 9;

/// Returns the id of a new call. It begins with `prefix`, unless the template accepts only short ids.
pub fn new_id(prefix: &str, ids: CallIds) -> String {
    let id = trunkline_base::random::id();
    if ids == CallIds::Nine { id.chars().take(NUM_CHARS).collect() } else { format!("{prefix}{id}") }
}

/// Converts the ids of a conversation to the form that the model's template requires. Equal ids stay equal in all
/// requests of a conversation, so its prefix stays the same too.
pub fn fit(messages: &mut [ChatMessage], ids: CallIds) {
    match ids {
        CallIds::Any => {}
        CallIds::Nine => messages.iter_mut().flat_map(ids_of).for_each(|id| *id = fitting(id)),
        CallIds::Named => name_ids(messages),
    }
}

/// Returns the ids of a message: those of its calls, or that of the call whose result it is.
fn ids_of(message: &mut ChatMessage) -> Vec<&mut String> {
    let text = |value| match value {
        &mut Value::String(ref mut id) => Some(id),
        _ => None,
    };
    let mut ids = Vec::new();
    for (name, value) in message.extra.iter_mut() {
        match (name.as_str(), value) {
            ("tool_calls", Value::Array(calls)) => {
                ids.extend(calls.iter_mut().filter_map(|call| call.get_mut("id").and_then(text)));
            }
            ("tool_call_id", value) => ids.extend(text(value)),
            _ => {}
        }
    }
    ids
}

/// Gives each call the id `functions.NAME:N`, and each result that of its call.
fn name_ids(messages: &mut [ChatMessage]) {
    let mut named: HashMap<String, String> = HashMap::new();
    let mut num_calls = 0;
    for message in messages {
        let calls = message.extra.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let id =
                format!("functions.{}:{num_calls}", call["function"]["name"].as_str().unwrap_or_default());
            num_calls += 1;
            if let Some(old) = call.get("id").and_then(Value::as_str) {
                named.insert(old.to_owned(), id.clone());
            }
            if let Value::Object(call) = call {
                call.insert("id".into(), id.into());
            }
        }
        if let Some(Value::String(id)) = message.extra.get_mut("tool_call_id")
            && let Some(known) = named.get(id)
        {
            id.clone_from(known);
        }
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
