//! Messages with a recipient in the harmony format; `channels.rs` separates the messages.

use super::format::{CallStart, Syntax, ToolFormat};
use crate::channels::{CHANNEL, MAX_HEADER_BYTES, MESSAGE, RECIPIENT, START};

impl ToolFormat {
    /// `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`, written by GPT-OSS. The recipient
    /// may also precede the channel.
    pub const HARMONY: Self = Self(&Syntax {
        name: "harmony",
        template_marks: &["<|channel|>commentary"],
        opening_marks: &[CHANNEL, START, RECIPIENT],
        inner_marks: &["<|constrain|>", MESSAGE],
        closing_mark: None,
        separators: &[],
        allows_unmarked_calls: false,
        read_start,
    });
}

/// Reads a header without its first mark.
fn read_start(text: &str, tools: &[String]) -> CallStart {
    let header_len = match text.find(MESSAGE) {
        Some(len) if len <= MAX_HEADER_BYTES => len,
        None if text.len() <= MAX_HEADER_BYTES + MESSAGE.len() => return CallStart::Undecided,
        _ => return CallStart::NotACall,
    };
    let header = &text[..header_len];
    // If the first mark was that of a recipient, the header begins with the name.
    let named = header.find(RECIPIENT).map_or(header, |at| &header[at + RECIPIENT.len()..]);
    let name = named.split(|c: char| c == '<' || c.is_whitespace()).next().unwrap_or_default();
    if !tools.iter().any(|tool| tool == name) {
        return CallStart::NotACall;
    }
    let arguments = text[header_len + MESSAGE.len()..].trim_start();
    match arguments.chars().next() {
        None => CallStart::Undecided,
        Some('{') => CallStart::Named { name: name.to_owned(), arguments_at: text.len() - arguments.len() },
        Some(_) => CallStart::NotACall,
    }
}
