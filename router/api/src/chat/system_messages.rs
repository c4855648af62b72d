//! System messages that are not the first message, which many chat templates refuse.

use trunkline_text::ChatMessage;

use super::prompt::Mark;

/// Merges the system messages at the beginning, and lets each later one join the user's turn, in its place.
///
/// A text that joins a turn starts on a new line. `mark` is moved with the text before it.
pub fn merge(messages: &mut Vec<ChatMessage>, mark: &mut Option<Mark>) {
    let mut merged: Vec<ChatMessage> = Vec::with_capacity(messages.len());
    let mut has_begun = false;
    // True while the last turn is one that later messages of its role join.
    let mut is_open = false;
    for (idx, mut message) in std::mem::take(messages).into_iter().enumerate() {
        let is_later = message.role == "system" && has_begun;
        if is_later {
            message.role = "user".to_owned();
        }
        let is_system = message.role == "system";
        has_begun |= !is_system;
        let may_join = is_system || is_later || (is_open && message.extra.is_empty());
        let turn = merged.last_mut().filter(|turn| may_join && turn.role == message.role);
        let is_joined = turn.is_some();
        let num_before = match turn {
            Some(turn) => join(turn.content.get_or_insert_default(), &message.content.unwrap_or_default()),
            None => {
                merged.push(message);
                0
            }
        };
        is_open = is_later || (is_open && is_joined);
        if let Some(mark) = mark.as_mut().filter(|mark| mark.message_idx == idx) {
            *mark = Mark { message_idx: merged.len() - 1, num_bytes: num_before + mark.num_bytes, ..*mark };
        }
    }
    *messages = merged;
}

/// Appends a text to a turn, and returns the number of bytes before it.
fn join(turn: &mut String, text: &str) -> usize {
    if !(turn.is_empty() || text.is_empty() || turn.ends_with('\n')) {
        turn.push('\n');
    }
    turn.push_str(text);
    turn.len() - text.len()
}
