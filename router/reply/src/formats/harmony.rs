//! Messages with a recipient in the harmony format; `channels.rs` separates the messages.

use super::format::{CallBody, CallForm, Syntax, read_named};
use crate::call_start::{CallStart, Header, split_header};
use crate::channels::{CHANNEL, MESSAGE, RECIPIENT, START};
use crate::signature::Signature;

/// `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`, written by GPT-OSS. The recipient
/// may also precede the channel.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<|channel|>commentary"],
    opening_marks: &[CHANNEL, START, RECIPIENT],
    inner_marks: &["<|constrain|>", MESSAGE],
    call_form: Some(CallForm {
        body: CallBody::Named {
            before_name: "commentary to=functions.",
            after_name: " <|constrain|>json<|message|>",
        },
        closing_mark: None,
    }),
    read_start,
    ..Syntax::JSON_CALLS
};

/// Reads a header without its first mark.
fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    let (header, arguments) = match split_header(text, MESSAGE) {
        Header::Undecided => return CallStart::Undecided,
        Header::Missing => return CallStart::NotACall,
        Header::Complete(header, arguments) => (header, arguments),
    };
    // If the first mark was that of a recipient, the header begins with the name.
    let named = header.find(RECIPIENT).map_or(header, |at| &header[at + RECIPIENT.len()..]);
    let name = named.split(|c: char| c == '<' || c.is_whitespace()).next().unwrap_or_default();
    read_named(name, text, arguments, tools)
}
